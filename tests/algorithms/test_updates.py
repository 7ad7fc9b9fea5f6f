"""What one update does: how episodes that end count, which rows count, which parameters move, and by how much."""

import functools
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algorithm_cases import (
    ALGORITHMS,
    FIRST_ORDER,
    GAMMA,
    SPEC,
    B,
    T,
    adapted,
    assert_trees_close,
    batch_of,
    gradient_of,
    model_of,
    random_rollout,
    random_state,
    with_plain_steps,
)

from rookery import ops
from rookery.algorithms import a2c, minibatches, optimizers, vtrace
from rookery.networks import NetworkConfig
from rookery.types import Gradients

STORED = Path(__file__).parent / "parameters.json"
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@functools.cache
def agent_of(name):
    return ALGORITHMS[name].build(SPEC)


@functools.cache
def learn_of(name):
    return jax.jit(agent_of(name).learn)


@functools.cache
def state_of(name):
    return random_state(agent_of(name))


def learn(name, rollout, state=None, seed=1):
    return learn_of(name)(state_of(name) if state is None else state, batch_of(rollout), ops.random.key(seed))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def gradient_tree(network, seen=None):
    """As the agents' `apply` takes it: beside the gradient, what the normalisers are to be told of the batch."""
    return {"network": network, "seen": seen or {}}


def differ(a, b):
    """The largest difference of two trees."""
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


# --------------------------------------------------------------------------------------------------- which rows count


@each_algorithm
def test_what_a_reset_row_holds_has_no_influence(name, rng):
    rollout = random_rollout(rng)
    reset = rollout.valid == 0
    noise = lambda x: np.where(reset, x + rng.normal(size=x.shape), x).astype(x.dtype)
    noisy = rollout._replace(
        reward=noise(rollout.reward),
        discount=np.where(reset, rng.uniform(size=(T, B)), rollout.discount).astype(np.float32),
        action=np.where(reset, (rollout.action + 1) % 4, rollout.action),
        extras={key: noise(value) for key, value in rollout.extras.items()},
    )
    clean, dirty = learn(name, rollout), learn(name, noisy)
    assert_trees_close(dirty.state.params, clean.state.params, rtol=1e-6, atol=1e-7)
    assert_trees_close(dirty.report, clean.report, rtol=1e-5, atol=1e-6)
    changed = learn(name, rollout._replace(reward=rollout.reward + 1.0))
    assert differ(changed.state.params, clean.state.params) > 1e-4, "rewards of other rows do count"


# ------------------------------------------------------------------------------------------------ how episodes may end


@each_algorithm
def test_truncation_bootstraps_from_the_last_observation_and_termination_does_not(name, rng, monkeypatch):
    with_plain_steps(monkeypatch)  # Adam's first step is the gradient's sign alone
    rollout, state = random_rollout(rng), state_of(name)
    assert rollout.valid[4, 0] == rollout.valid[4, 1] == 0  # row 3 is the last of an episode,
    assert rollout.discount[3, 0] > 0 and rollout.discount[3, 1] == 0  # truncated in column 0, terminated in column 1
    found = lambda rollout: gradient_of(adapted(name), state.params, rollout, slow=state.slow)[0]
    clean = found(rollout)

    def with_another_last_observation(column):
        observation = rollout.observation.copy()
        observation[4, column] += 1.0
        return found(rollout._replace(observation=observation))

    assert_trees_close(with_another_last_observation(1), clean, rtol=1e-6, atol=1e-7)
    assert differ(with_another_last_observation(0), clean) > 1e-5


@each_algorithm
def test_the_value_of_reward_one_for_ever_is_learned_although_episodes_are_cut(name):
    """Always the same observation and reward, cut every 4 steps: worth 1 / (1 - gamma) = 2; less if it really ended."""
    assert learned_value(name, last_discount=GAMMA) == pytest.approx(1 / (1 - GAMMA), abs=0.1)
    assert learned_value(name, last_discount=0.0) < 1.75


def learned_value(name, *, last_discount):
    rollout = random_rollout(np.random.default_rng(0))
    valid, discount = np.ones((T, B), np.float32), np.full((T, B), GAMMA, np.float32)
    valid[4] = 0.0
    discount[3] = discount[8] = last_discount
    rollout = rollout._replace(
        observation=np.ones_like(rollout.observation), reward=valid.copy(), discount=discount, valid=valid
    )
    state = state_of(name)
    act = jax.jit(model_of().act)
    observation, explore = np.ones((1, 3), np.float32), np.ones(1, np.float32)
    for update in range(400):
        if update % 20 == 0:  # what was known when the data was made must not be too old
            out = act(state.params, observation, (), ops.random.key(update), explore)
            extras = {"behaviour_logp": np.full((T, B), np.log(0.25)), "value": np.full((T, B), out.extras["value"][0])}
            rollout = rollout._replace(extras={key: value.astype(np.float32) for key, value in extras.items()})
        state = learn(name, rollout, state, seed=update).state
    return float(act(state.params, observation, (), ops.random.key(0), explore).extras["value"][0])


# --------------------------------------------------------------------------------------------- how parameters are moved


@each_algorithm
def test_every_parameter_is_moved(name, rng):
    before = state_of(name).params["network"]
    after = learn(name, random_rollout(rng)).state.params["network"]
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after)):
        assert np.abs(np.asarray(new - old)).max() > 1e-5, f"{jax.tree_util.keystr(path)} has no gradient"


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_parameters_move_by_the_optimizers_step_of_the_gradient(name, rng):
    """RMSProp without momentum (A2C, V-trace) and Adam (PG, APPO), three steps by hand."""
    agent, state = agent_of(name), state_of(name)
    apply = jax.jit(agent.apply)
    weights, first, second = flat(state.params["network"]), 0.0, 0.0
    for step in (1, 2, 3):
        given = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), state.params["network"])
        g = flat(given)
        if name in ("a2c", "vtrace"):
            second = 0.99 * second + 0.01 * g**2
            weights = weights - 0.01 * g / np.sqrt(second + {"a2c": 1e-5, "vtrace": 0.01}[name])
        else:
            epsilon = 1e-5 if name == "pg" else 1e-6
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            weights = weights - 0.01 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + epsilon)
        state = apply(state, Gradients(gradient_tree(given), {}))
        assert int(state.updates) == step
        np.testing.assert_allclose(flat(state.params["network"]), weights, rtol=1e-4, atol=1e-6)


def test_learning_is_a_step_of_the_gradient_clipped_by_its_norm(rng):
    rollout, state, limit = random_rollout(rng), state_of("vtrace"), 0.01
    whole = jax.jit(agent_of("vtrace").gradients)(state.params, state.slow, batch_of(rollout), ops.random.key(0))
    norm = np.linalg.norm(flat(whole.tree["network"]))
    agent = adapted("vtrace", max_gradient_norm=limit).build(SPEC)
    learned = jax.jit(agent.learn)(state, batch_of(rollout), ops.random.key(0))
    np.testing.assert_allclose(learned.report["gradient_norm"], norm, rtol=1e-4, err_msg="the norm before clipping")
    clipped = jax.tree.map(lambda g: g * (limit / norm), whole.tree)
    by_hand = jax.jit(agent.apply)(state, Gradients(clipped, {}))
    assert norm > 2 * limit
    assert_trees_close(learned.state.params, by_hand.params, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["a2c", "vtrace"])
def test_the_value_is_fitted_by_several_steps_of_which_the_policy_takes_one(name, rng, monkeypatch):
    """The targets are those of the parameters before the first step. By hand: steps of minus the gradient."""
    rollout, state = random_rollout(rng), state_of(name)
    with_plain_steps(monkeypatch)
    rate = 1e-3 if name == "vtrace" else 1.0  # its gradient is that of a sum over the rows
    monkeypatch.setattr(optimizers, "rmsprop", lambda *args, **options: optax.sgd(rate))
    once, often = (jax.jit(adapted(name, value_steps=steps).build(SPEC).learn) for steps in (1, 4))
    state = random_state(adapted(name).build(SPEC), params=state.params)
    single = once(state, batch_of(rollout), ops.random.key(1)).state
    learned = often(state, batch_of(rollout), ops.random.key(1)).state
    config, model = ALGORITHMS[name], model_of()
    made = {"a2c": a2c.returns, "vtrace": vtrace.traced}[name]
    target = made(model.evaluate(state.params, rollout), state.params, rollout, model=model, config=config).target
    rows = rollout.valid.size if name == "vtrace" else 1

    def error(network):
        value = model.evaluate(state.params | {"network": network}, rollout).value
        return rows * (0.5 * (target - value) ** 2 * rollout.valid).sum() / rollout.valid.sum()

    network = single.params["network"]
    for _ in range(3):
        network = jax.tree.map(lambda leaf, by: leaf - rate * by, network, jax.jit(jax.grad(error))(network))
    assert differ(network, single.params["network"]) > 1e-3
    assert_trees_close(learned.params["network"], network, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["a2c", "vtrace"])
def test_more_steps_of_the_value_leave_the_policy_and_its_moments_alone(name, rng):
    rollout, state = random_rollout(rng), state_of(name)
    of_policy = lambda tree: {key: leaf for key, leaf in _by_path(tree).items() if "policy" in key}
    states = [
        jax.jit(adapted(name, value_steps=steps).build(SPEC).learn)(state, batch_of(rollout), ops.random.key(1)).state
        for steps in (1, 5)
    ]
    once, often = (of_policy(state.params["network"]) for state in states)
    assert_trees_close(often, once, rtol=1e-6, atol=1e-6)
    moments = [flat(state.optimizer) for state in states]
    changed = (~np.isclose(*moments, rtol=1e-5)).mean()
    assert 0.2 < changed < 0.8, "the value's moments change, the policy's do not"
    assert int(states[1].updates) == 1


def test_a_value_that_shares_its_network_with_the_policy_takes_as_many_steps(rng):
    """Else the policy would be moved by the value alone."""
    shared = NetworkConfig(hidden=(8,), heads="shared")
    rollout, found = random_rollout(rng), []
    for steps in (None, 1, 16):
        agent = adapted("a2c", network=shared, value_steps=steps).build(SPEC)
        found.append(jax.jit(agent.learn)(random_state(agent), batch_of(rollout), ops.random.key(1)).state.params["network"])
    assert differ(found[0], found[1]) == 0 and differ(found[1], found[2]) > 1e-4


def _by_path(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_ppo_takes_one_adam_step_of_the_clipped_gradient_per_minibatch(rng, monkeypatch):
    """One epoch of one minibatch: what SGD would have been given, scaled to the limit, goes through Adam."""
    rollout, state = random_rollout(rng), state_of("ppo")
    adam_moved = flat(learn("ppo", rollout).state.params["network"]) - flat(state.params["network"])
    limited = adapted("ppo", max_gradient_norm=0.01)
    with_plain_steps(monkeypatch)
    g, report = gradient_of(limited, state.params, rollout)
    assert report["gradient_norm"] > 0.02
    np.testing.assert_allclose(np.linalg.norm(flat(g)), 0.01, rtol=1e-4)
    g = flat(g) / 0.01 * report["gradient_norm"]  # the algorithm of `adam_moved` clips at a norm that is never reached
    np.testing.assert_allclose(adam_moved, -0.01 * g / (np.abs(g) + 1e-5), rtol=1e-3, atol=2e-5)


def test_a_target_policy_is_refreshed_every_second_update(rng):
    state, rollout = state_of("appo-target"), random_rollout(rng)
    for update in (1, 2, 3, 4):
        before = state.slow
        state = learn("appo-target", rollout, state).state
        expected = state.params["network"] if update % 2 == 0 else before
        assert_trees_close(state.slow, expected, rtol=0, atol=0)
    assert differ(before, state.slow) > 1e-4


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_an_annealed_learning_rate_falls_in_a_line_and_is_zero_after_the_last_planned_update(name):
    agent = adapted(name, anneal=True).build(SPEC, num_updates=4)
    state = random_state(agent)
    ones = Gradients(gradient_tree(jax.tree.map(jnp.ones_like, state.params["network"])), {})
    apply, moved = jax.jit(agent.apply), []
    for _ in range(6):
        old, state = state, apply(state, ones)
        moved.append(differ(old.params, state.params))
    rates = np.array([4, 3, 2, 1, 0, 0]) / 4 * 0.01
    if name in ("a2c", "vtrace"):  # RMSProp has no bias correction: its first steps are long
        epsilon = ALGORITHMS[name].rmsprop_epsilon
        rates = rates / np.sqrt(1 - 0.99 ** np.arange(1, 7) + epsilon)
    np.testing.assert_allclose(moved, rates, rtol=1e-3, atol=1e-6)


def test_ppos_learning_rate_falls_from_update_to_update(rng):
    agent = adapted("ppo", anneal=True, epochs=2, minibatches=3).build(SPEC, num_updates=2)
    state, rollout = random_state(agent), random_rollout(rng)
    learn, moved = jax.jit(agent.learn), []
    for update in range(3):
        old, state = state, learn(state, batch_of(rollout), ops.random.key(update)).state
        moved.append(differ(old.params, state.params))
    assert moved[0] > moved[1] > 0.001 and moved[2] < 1e-6


def test_each_epoch_of_ppo_sees_every_column_once_in_another_order():
    for columns in (1, 6, 54):
        orders = np.asarray(jax.jit(lambda key, n=columns: minibatches.shuffles(key, 5, n))(ops.random.key(3)))
        assert (np.sort(orders, axis=1) == np.arange(columns)).all()
    assert len({tuple(order) for order in orders}) == 5


# ---------------------------------------------------------------------------------------------------- a refactor's guard


@each_algorithm
def test_five_updates_end_in_the_parameters_that_are_stored(name):
    """Sums and norms of the parameters after five updates on fixed data, so that a rewrite that changes results is seen.

    If the change is meant, renew them: ROOKERY_RENEW=1 python -m pytest tests/algorithms/test_updates.py -k stored
    """
    state = state_of(name)
    for update in range(5):
        rollout = random_rollout(np.random.default_rng(update))
        state = learn(name, rollout, state, seed=update).state
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): [float(jnp.sum(leaf)), float(jnp.linalg.norm(leaf.ravel()))]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.params["network"])
    }
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("ROOKERY_RENEW"):
        rounded = {path: [round(number, 6) for number in numbers] for path, numbers in found.items()}
        STORED.write_text(json.dumps(stored | {name: rounded}, indent=1, sort_keys=True) + "\n")
        return
    assert found.keys() == stored[name].keys()
    for path, numbers in found.items():
        np.testing.assert_allclose(numbers, stored[name][path], atol=1e-4, rtol=1e-4, err_msg=path)
