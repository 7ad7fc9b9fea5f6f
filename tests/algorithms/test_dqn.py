"""DQN and each of its switches: targets against rlax and by hand, what is weighted, copied, explored and sent back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from algorithm_cases import SPEC

from rookery import ops
from rookery.algorithms.dqn import DQN, epsilons, first_priorities, loss, support_of, values_after
from rookery.data.config import ReplayConfig
from rookery.networks import NetworkConfig
from rookery.networks.q_network import q_network
from rookery.types import Batch, Rollout, TrainState

B, GAMMA = 6, 0.5
NETWORK = NetworkConfig(hidden=(8,))
BASE = DQN(network=NETWORK, batch_size=B, learning_rate=0.01, max_gradient_norm=1e9, target_period=3)
SWITCHES = {
    "dqn": {}, "double": {"double": True}, "dueling": {"dueling": True}, "c51": {"num_atoms": 11, "value_range": (-2.0, 2.0)},
    "noisy": {"noisy": True}, "rainbow": {"double": True, "dueling": True, "num_atoms": 11, "noisy": True, "n_step": 3},
}  # fmt: skip


def config(name, **changes):
    return dataclasses.replace(BASE, **SWITCHES[name] | changes)


def batch_of(rng, columns=B):
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    rollout = Rollout(
        observation=draw(2, columns, 3), action=rng.integers(0, 4, (1, columns)).astype(np.int32), reward=draw(1, columns),
        discount=(GAMMA * (rng.random((1, columns)) < 0.7)).astype(np.float32), valid=np.ones((1, columns), np.float32),
        extras={}, memory=(), version=np.zeros((1, columns), np.int32), stream=(), step=(),
    )  # fmt: skip
    return Batch(rollout, rng.random(columns).astype(np.float32), ())


def random_network(algorithm, seed, scale=0.5):
    network = network_of(algorithm)
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(network.init, ops.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(scale * rng.normal(size=x.shape), jnp.float32), shapes)


def atoms_of(algorithm):
    return support_of(algorithm) if algorithm.num_atoms > 1 else None


def network_of(algorithm):
    return q_network(SPEC, NETWORK, atoms=atoms_of(algorithm), dueling=algorithm.dueling, noisy=algorithm.noisy)


def loss_of(algorithm, newest, slow, batch, key=0):
    parts, key = {"network": network_of(algorithm), "config": algorithm}, ops.random.key(key)
    return loss(newest, values_after(slow, batch, key, **parts), batch, key, atoms=atoms_of(algorithm), **parts)


@pytest.mark.parametrize("name", ["dqn", "double", "dueling"])
def test_errors_are_those_of_rlax(name, rng):
    algorithm = config(name)
    newest, slow, batch = random_network(algorithm, 0), random_network(algorithm, 1), batch_of(rng)
    network, rollout = network_of(algorithm), batch.rollout
    q = lambda params, t: network.step(params, rollout.observation[t], (), None)[0].q
    shared = (rollout.action[0], rollout.reward[0], rollout.discount[0])
    if name == "double":
        error = jax.vmap(rlax.double_q_learning)(q(newest, 0), *shared, q(slow, 1), q(newest, 1))
    else:
        error = jax.vmap(rlax.q_learning)(q(newest, 0), *shared, q(slow, 1))
    value, (report, priorities) = loss_of(algorithm, newest, slow, batch)
    np.testing.assert_allclose(priorities, abs(error), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, (batch.weight * rlax.huber_loss(error)).mean(), rtol=1e-4)
    np.testing.assert_allclose(report["loss/q"], rlax.huber_loss(error).mean(), rtol=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_distributional_losses_are_those_of_rlax(double, rng):
    algorithm = config("c51", double=double)
    newest, slow, batch = random_network(algorithm, 0), random_network(algorithm, 1), batch_of(rng)
    network, rollout, atoms = network_of(algorithm), batch.rollout, atoms_of(algorithm)
    values = lambda params, t: network.step(params, rollout.observation[t], (), None)[0]
    shared = (atoms, values(newest, 0).logits, rollout.action[0], rollout.reward[0], rollout.discount[0], atoms)
    axes = (None, 0, 0, 0, 0, None, 0)
    if double:
        expected = jax.vmap(rlax.categorical_double_q_learning, (*axes, 0))(
            *shared, values(slow, 1).logits, values(newest, 1).q
        )
    else:
        expected = jax.vmap(rlax.categorical_q_learning, axes)(*shared, values(slow, 1).logits)
    value, (_, priorities) = loss_of(algorithm, newest, slow, batch)
    np.testing.assert_allclose(priorities, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(value, (batch.weight * expected).mean(), rtol=1e-3)


def test_errors_count_squared_as_far_as_the_option_says(rng):
    plain, batch = DQN(), batch_of(rng)
    newest, slow = random_network(plain, 1, scale=5.0), random_network(plain, 2, scale=5.0)
    _, (clipped, _) = loss_of(plain, newest, slow, batch)
    _, (squared, surprise) = loss_of(DQN(error_clip=1e6), newest, slow, batch)
    assert surprise.max() > 10, "some errors are beyond the clip of the default"
    np.testing.assert_allclose(squared["loss/q"], (0.5 * np.square(surprise)).mean(), rtol=1e-3)
    assert clipped["loss/q"] < 0.5 * squared["loss/q"]


def test_double_changes_the_target_where_the_networks_disagree(rng):
    newest, slow, batch = random_network(BASE, 0), random_network(BASE, 1), batch_of(rng, 64)
    single, double = (loss_of(config(n), newest, slow, batch)[1][1] for n in ("dqn", "double"))
    assert (abs(single - double) > 1e-3).sum() > 10


def test_maximising_noisy_values_overestimates_and_double_does_not(rng):
    """One state, ten actions worth nothing: the networks' errors are independent."""
    q, other = rng.normal(size=(2, 5000, 10))
    assert q.max(-1).mean() > 1.0
    assert abs(ops.of_action(jnp.asarray(other), jnp.asarray(q.argmax(-1))).mean()) < 0.05


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_truncation_bootstraps_and_termination_does_not(name, rng):
    """Of a terminated row the discount is 0, of a truncated one it is not; nothing else tells them apart."""
    algorithm = config(name)
    newest, batch = random_network(algorithm, 0), batch_of(rng)
    for discount, moves in ((0.0, False), (GAMMA, True)):
        rollout = batch.rollout._replace(discount=np.full((1, B), discount, np.float32))
        one, two = (
            loss_of(algorithm, newest, random_network(algorithm, seed), batch._replace(rollout=rollout))[0] for seed in (1, 2)
        )
        assert (abs(one - two) > 1e-3) == moves


def prioritized(algorithm: DQN) -> DQN:
    return dataclasses.replace(algorithm, replay=dataclasses.replace(algorithm.replay, selector="prioritized"))


def test_priorities_are_made_only_for_a_table_that_wants_them(rng):
    for algorithm, wanted in ((BASE, False), (prioritized(BASE), True)):
        for steps in (1, 2):
            agent = dataclasses.replace(algorithm, gradient_steps=steps).build(SPEC)
            key = ops.random.key(0)
            learned = jax.eval_shape(agent.learn, jax.eval_shape(agent.init, key), batch_of(rng), key)
            assert (learned.priorities is not None) == wanted


@pytest.mark.parametrize("name", SWITCHES)
def test_every_parameter_is_learned_and_the_target_is_copied_when_its_period_is_over(name, rng):
    algorithm = prioritized(config(name))
    agent = algorithm.build(SPEC)
    state = jax.jit(agent.init)(ops.random.key(0))
    slow = random_network(algorithm, 3, scale=1.0)
    state = TrainState(state.params | {"network": random_network(algorithm, 2)}, slow, state.optimizer, state.updates)
    learn = jax.jit(agent.learn)
    begin, seen = state, []
    for update in range(1, 5):
        learned = learn(state, batch_of(rng), ops.random.key(update))
        state = learned.state
        assert learned.priorities.shape == (B,) and (learned.priorities > 0).all() and state.updates == update
        copied = jax.tree.map(lambda a, b: bool((a == b).all()), state.slow, state.params["network"])
        seen.append(all(jax.tree.leaves(copied)))
    assert seen == [False, False, True, False]
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), begin.params["network"], state.params["network"])
    assert all(jax.tree.leaves(moved)), moved


@pytest.mark.parametrize(
    ("name", "target_period"),
    [("double", 5), ("c51", 8), ("dqn", 4)],  # copied in the midst of the second call, at its end, at the end of each
)
def test_many_gradient_steps_at_once_are_as_many_one_by_one(name, target_period, rng):
    # the moments of rewards are taken once for the four, so without them
    base = prioritized(config(name, target_period=target_period, normalise_rewards=False))
    one, many = base.build(SPEC), dataclasses.replace(base, gradient_steps=4).build(SPEC)
    batches = [batch_of(rng) for _ in range(8)]
    state = jax.jit(one.init)(ops.random.key(0))
    singly, reports, priorities = state, [], []
    learn = jax.jit(one.learn)
    for batch in batches:
        learned = learn(singly, batch, ops.random.key(0))
        singly = learned.state
        reports.append(learned.report["q"])
        priorities.append(learned.priorities)
    join = lambda parts: jax.tree.map(lambda *x: np.concatenate(x, 1 if x[0].ndim > 1 else 0), *parts)
    together, learn = state, jax.jit(many.learn)
    for half in (0, 4):
        learned = learn(together, join(batches[half : half + 4]), ops.random.key(0))
        together = learned.state
    for a, b in zip(jax.tree.leaves(singly[:3]), jax.tree.leaves(together[:3])):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert together.updates == 2 and many.needs.table.batch_size == 4 * B
    np.testing.assert_allclose(learned.report["q"], np.mean(reports[4:]), rtol=1e-5)
    np.testing.assert_allclose(learned.priorities, np.concatenate(priorities[4:]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gradient_steps", [1, 2])
def test_an_annealed_learning_rate_falls_over_all_gradient_steps_and_is_zero_after_the_last_planned_one(gradient_steps, rng):
    algorithm = dataclasses.replace(BASE, anneal=True, gradient_steps=gradient_steps)
    agent = algorithm.build(SPEC, num_updates=4 // gradient_steps)
    state, learn, batch = jax.jit(agent.init)(ops.random.key(0)), jax.jit(agent.learn), batch_of(rng, gradient_steps * B)
    moved = []
    for _ in range(6 // gradient_steps):
        old, state = state, learn(state, batch, ops.random.key(0)).state
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), old.params["network"], state.params["network"])
        moved.append(max(jax.tree.leaves(apart)))
    planned = 4 // gradient_steps
    assert min(moved[:planned]) > 1e-4 and max(moved[planned:]) == 0.0 and moved[0] > 2 * moved[planned - 1]


@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"gradient_steps": 2}])
def test_what_is_learned_does_not_depend_on_the_unit_of_the_rewards(options, rng):
    def learned(factor, **more):
        algorithm = config("dqn", **options | more)
        agent, state = algorithm.build(SPEC), None
        state, learn = agent.init(ops.random.key(0)), jax.jit(agent.learn)
        for batch in batches:
            scaled = batch._replace(rollout=batch.rollout._replace(reward=batch.rollout.reward * np.float32(factor)))
            state = learn(state, scaled, ops.random.key(0)).state
        return jax.tree.leaves(state.params["network"])

    batches = [batch_of(rng, B * options.get("gradient_steps", 1)) for _ in range(4)]
    once = learned(1)
    for factor in (1024, 1 / 1024):  # powers of two: to the bit
        jax.tree.map(np.testing.assert_array_equal, learned(factor), once)
    apart = [abs(a - b).max() for a, b in zip(learned(1024, normalise_rewards=False), once)]
    assert max(apart) > 1e-3, "and without, it does"


def test_noise_is_drawn_apart_for_each_pass(rng):
    algorithm = config("noisy")
    newest, batch = random_network(algorithm, 0), batch_of(rng)
    errors = [loss_of(algorithm, newest, newest, batch, key)[1][1] for key in (0, 0, 1)]
    np.testing.assert_array_equal(errors[0], errors[1])
    assert abs(errors[0] - errors[2]).min() > 0


def test_epsilon_falls_with_the_steps_and_the_ladder_is_that_of_ape_x():
    index = np.arange(8)
    anneal = DQN(epsilon=0.1, epsilon_steps=100)
    assert [round(float(epsilons(anneal, index, 8, steps)[0]), 3) for steps in (0, 50, 100, 999)] == [1.0, 0.55, 0.1, 0.1]
    ladder = DQN(exploration="ladder", epsilon=0.4)
    np.testing.assert_allclose(epsilons(ladder, index, 8, 0), 0.4 ** (1 + np.arange(8)), rtol=1e-5)
    assert epsilons(ladder, index[:1], 1, 0) == np.float32(0.4**4.5), "one environment alone has the middle of the ladder"
    both = DQN(exploration="anneal-ladder", epsilon=0.4, epsilon_steps=100)
    assert (epsilons(both, index, 8, 0) == 1).all(), "everyone begins at random"
    np.testing.assert_allclose(epsilons(both, index, 8, 100), epsilons(ladder, index, 8, 0), rtol=1e-5)
    assert (epsilons(DQN(noisy=True), index, 8, 0) == 0).all()


@pytest.mark.parametrize("name", ["dqn", "noisy"])
def test_a_tree_of_zeros_is_greedy(name, rng):
    algorithm = config(name)
    agent, params = algorithm.build(SPEC), {"network": random_network(algorithm, 0)}
    observation = rng.normal(size=(50, 3)).astype(np.float32)
    greedy = network_of(algorithm).step(params["network"], observation, (), None)[0].q.argmax(-1)
    explore = agent.explore(params, np.arange(50), 50, 0)
    act = lambda tree: np.asarray(agent.act(params, observation, (), ops.random.key(0), tree).action)
    np.testing.assert_array_equal(act(jax.tree.map(np.zeros_like, explore)), greedy)
    assert (act(explore) != np.asarray(greedy)).any()


def test_a_collector_gives_the_priorities_that_the_learner_would(rng):
    """With the same parameters for all: in windows that end inside the rollout, and rewards in their unit."""
    T, n, unit = 7, 3, 2.5
    replay = ReplayConfig(selector="prioritized")
    algorithm = config("dqn", exploration="ladder", n_step=n, replay=replay, discount=GAMMA)
    agent, params = algorithm.build(SPEC), {"network": random_network(algorithm, 0)}
    params["reward"] = ops.moments.of(np.tile(np.float32([unit * n, 1]), (8, 1)), 1)  # sums of three rewards
    observation = rng.normal(size=(T + 1, B, 3)).astype(np.float32)
    decisions = [
        agent.act(params, x, (), ops.random.key(t), agent.explore(params, np.arange(B), B, 0))
        for t, x in enumerate(observation)
    ]
    action, extras = np.stack([d.action for d in decisions[:T]]), {}
    for name in ("q", "value"):
        extras[name] = np.stack([d.extras[name] for d in decisions[:T]])
    reward, valid = rng.normal(size=(T, B)).astype(np.float32), np.ones((T, B), np.float32)
    discount = np.ones((T, B), np.float32)
    discount[3, 0] = 0.0
    valid[4, :2] = 0.0
    rollout = Rollout(observation, action, reward, discount, valid, extras, (), np.zeros((T, B), np.int32), (), ())
    same, priorities = agent.process(params, rollout)
    assert same is rollout and priorities.shape == (T, B)
    for t in range(T - n + 1):
        for b in range(B):
            if not valid[t, b]:
                continue
            total, product, at = 0.0, 1.0, t
            while at < t + n and valid[at, b]:
                total, product, at = total + product * reward[at, b] / unit, product * GAMMA * discount[at, b], at + 1
            one = Rollout(
                observation[[t, at]][:, b : b + 1], action[t : t + 1, b : b + 1],
                np.float32([[total]]), np.float32([[product]]), np.ones((1, 1), np.float32), {}, (),
                np.zeros((1, 1), np.int32), (), (),
            )  # fmt: skip
            _, (_, expected) = loss_of(algorithm, params["network"], params["network"], Batch(one, np.ones(1), ()))
            np.testing.assert_allclose(priorities[t, b], expected[0], rtol=1e-3, atol=1e-5)


def test_first_priorities_clip_rewards_as_the_table_does():
    rollout = Rollout((), (), np.full((2, 1), 9.0), np.zeros((2, 1)), np.ones((2, 1)), {"q": np.zeros((2, 1))}, (), (), (), ())
    got = first_priorities(rollout, np.zeros((3, 1)), DQN(reward_clip=1.0))
    np.testing.assert_allclose(got, 1.0, atol=1e-5)


def test_a_memory_is_refused():
    with pytest.raises(ValueError, match="core none"):
        DQN(network=NetworkConfig(core="lstm")).build(SPEC)
