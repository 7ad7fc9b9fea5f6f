"""QT-Opt: targets by hand, an update against plain jax and optax, labels of an updater against those of the learner."""

from __future__ import annotations

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from rookery import ops
from rookery.algorithms import off_policy
from rookery.algorithms.qt_opt import QTOpt, copies_every
from rookery.networks import NetworkConfig
from rookery.types import Batch, Rollout, Spec

B, GAMMA = 8, 0.9
SPEC = Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32))
PLAIN = QTOpt(
    network=NetworkConfig(hidden=(16,), activation="relu"), gradient_steps=1, batch_size=B, learning_rate=1e-3, samples=8,
    elites=3, polyak=0.1, target_lag=3, random_steps=0,
)  # fmt: skip
BOUNDED = dataclasses.replace(PLAIN, value_range=(-2.0, 3.0))


@cache
def agent_of(algorithm):
    return algorithm.build(SPEC)


@cache
def learn_of(algorithm):
    return jax.jit(agent_of(algorithm).learn)


def batch_of(columns=B, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    rollout = Rollout(
        observation=np.clip(normal(2, columns, 3), -1, 1), action=rng.uniform(-2, 2, (1, columns, 2)).astype(np.float32),
        reward=normal(1, columns), discount=np.where(np.arange(columns) % 3 == 0, 0.0, GAMMA).astype(np.float32)[None],
        valid=np.ones((1, columns), np.float32), extras={}, memory=(), version=np.zeros((1, columns), np.int32), stream=(),
        step=(),
    )  # fmt: skip
    return Batch(rollout, rng.uniform(0.5, 1, columns).astype(np.float32), ())


def state_of(algorithm, seed=3):
    """A state whose two target networks differ from each other and from the newest one."""
    state = agent_of(algorithm).init(ops.random.key(1))
    noisy = lambda tree, key: jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape), tree)
    keys = jax.random.split(ops.random.key(seed), 2)
    own = {name: noisy(state.slow[name], key) for name, key in zip(("average", "lagged"), keys)}
    return state._replace(slow=state.slow | own)


def raw(params, observation, unit):
    """The network's output, by hand: action and observation side by side, one layer, one number. -> [B]"""
    one = jax.tree.map(lambda leaf: leaf[0], params)
    layer, head = one["encoder"]["dense_0"], one["head"]
    x = jnp.maximum(jnp.concatenate([unit, observation], -1) @ layer["kernel"] + layer["bias"][None], 0.0)
    return (x @ head["kernel"] + head["bias"][None])[:, 0]


def values(algorithm, params, observation, unit):
    out = raw(params, observation, unit)
    if algorithm.value_range is None:
        return out
    low, high = algorithm.value_range
    return low + (high - low) / (1 + jnp.exp(-(out + np.log(0.4 / 0.6))))  # 0 is at 0.4 of the way from -2 to 3


def targets(algorithm, state, batch, key):
    """r + gamma min(Q'1, Q'2) of the action that the search finds by Q'1."""
    after, rollout = batch.rollout.observation[1], batch.rollout
    search_key = jax.random.split(jax.random.split(key, 1)[0])[0]
    score = lambda tried: jnp.stack([values(algorithm, state.slow["average"], after, action) for action in tried])
    action = ops.cross_entropy_method(
        score, search_key, batch=B, size=2, samples=algorithm.samples, elites=algorithm.elites, iterations=2
    ).action
    both = [np.asarray(values(algorithm, state.slow[name], after, action)) for name in ("average", "lagged")]
    assert (both[0] < both[1]).any() and (both[1] < both[0]).any(), "each of them is the doubtful one somewhere"
    return np.array(rollout.reward[0]) + np.array(rollout.discount[0]) * np.minimum(*both)


@pytest.mark.parametrize("algorithm", [PLAIN, BOUNDED], ids=["plain", "bounded"])
def test_a_label_is_the_least_of_two_lagged_networks_at_the_best_action_of_the_first(algorithm):
    state, batch, key = state_of(algorithm), batch_of(), ops.random.key(5)
    labelled = jax.jit(agent_of(algorithm).refine)(state.params, state.slow, batch, key)
    label = np.asarray(labelled.rollout.extras[off_policy.TARGET])
    np.testing.assert_allclose(label[0], targets(algorithm, state, batch, key), rtol=1e-4, atol=1e-5)
    ended = batch.rollout.discount[0] == 0
    np.testing.assert_array_equal(label[0][ended], batch.rollout.reward[0][ended], "what terminated is worth its reward")
    assert (label[0][~ended] != batch.rollout.reward[0][~ended]).all(), "what was cut bootstraps"


@pytest.mark.parametrize("algorithm", [PLAIN, BOUNDED], ids=["plain", "bounded"])
def test_an_update_is_that_of_the_paper_written_plainly(algorithm):
    state, batch, key = state_of(algorithm), batch_of(), ops.random.key(5)
    target, rollout = targets(algorithm, state, batch, key), batch.rollout
    before, unit = rollout.observation[0], rollout.action[0] / 2.0

    def loss(params):
        if algorithm.value_range is None:
            return jnp.mean(batch.weight * 0.5 * jnp.square(values(algorithm, params, before, unit) - target))
        low, high = algorithm.value_range
        wanted = np.clip((target - low) / (high - low), 0.0, 1.0)
        share = (values(algorithm, params, before, unit) - low) / (high - low)
        return -jnp.mean(batch.weight * (wanted * jnp.log(share) + (1 - wanted) * jnp.log(1 - share)))

    newest = state.params["critic"]
    optimizer = optax.adam(1e-3)
    change, _ = optimizer.update(jax.grad(loss)(newest), optimizer.init(newest))
    wanted = optax.apply_updates(newest, change)
    average = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state.slow["average"], wanted)
    learned = learn_of(algorithm)(state, batch, key)
    np.testing.assert_allclose(learned.report["loss/critic"], loss(newest), rtol=1e-4)
    for made, hand in ((learned.state.params["critic"], wanted), (learned.state.slow["average"], average)):
        for got, right in zip(jax.tree.leaves(made), jax.tree.leaves(hand), strict=True):
            np.testing.assert_allclose(got, right, atol=3e-6, rtol=2e-4)


@pytest.mark.parametrize("algorithm", [PLAIN, BOUNDED], ids=["plain", "bounded"])
def test_what_an_updater_labels_is_what_the_learner_would_compute(algorithm):
    state, batch, key = state_of(algorithm), batch_of(), ops.random.key(5)
    labelled = jax.jit(agent_of(algorithm).refine)(state.params, state.slow, batch, key)
    alone, fitted = learn_of(algorithm)(state, batch, key), learn_of(algorithm)(state, labelled, ops.random.key(99))
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(fitted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=1e-5)
    off = labelled.rollout.extras | {off_policy.TARGET: labelled.rollout.extras[off_policy.TARGET] + 1.0}
    wrong = learn_of(algorithm)(state, labelled._replace(rollout=labelled.rollout._replace(extras=off)), key)
    assert wrong.report["loss/critic"] != alone.report["loss/critic"], "the labels are what is fitted"


def test_each_gradient_step_of_a_labelled_batch_fits_its_own_piece():
    algorithm = dataclasses.replace(PLAIN, gradient_steps=3)
    state, batch = state_of(algorithm), batch_of(3 * B)
    label = np.arange(3 * B, dtype=np.float32)[None]
    with_label = lambda piece, rows: piece._replace(rollout=piece.rollout._replace(extras={off_policy.TARGET: rows}))
    together = learn_of(algorithm)(state, with_label(batch, label), ops.random.key(0)).state
    for index in range(3):
        cut = slice(index * B, (index + 1) * B)
        piece = Batch(jax.tree.map(lambda x, cut=cut: x[:, cut], batch.rollout), batch.weight[cut], ())
        state = learn_of(PLAIN)(state, with_label(piece, label[:, cut]), ops.random.key(0)).state
    for got, wanted in zip(jax.tree.leaves(together.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6, rtol=1e-5)


def test_the_second_target_network_is_the_first_as_it_was_a_while_ago():
    """With a copy every 2 steps, what lags is 2 to 3 gradient steps old: as asked for, on average a lag of 3 is 2 to 4."""
    assert copies_every(PLAIN) == 2 and copies_every(dataclasses.replace(PLAIN, polyak=0.005, target_lag=None)) == 80
    state, batch = agent_of(PLAIN).init(ops.random.key(1)), batch_of()
    known = [state.slow["average"]]
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    for step in range(1, 8):
        learned = learn_of(PLAIN)(state, batch, ops.random.key(step))
        state = learned.state
        known.append(jax.tree.map(np.asarray, state.slow["average"]))
        ages = [age for age in range(step + 1) if same(state.slow["lagged"], known[step - age])]
        assert ages == [2 + step % 2] if step >= 4 else len(ages) > 0, (step, ages)
        if step >= 4:
            assert learned.report["target_lag"] == 2 + (step - 1) % 2, "as it was when the target was computed"


def test_actions_are_the_best_ones_and_explore_as_the_numbers_say():
    algorithm = dataclasses.replace(PLAIN, samples=64, elites=6, iterations=3, noise=0.2)
    agent, state = agent_of(algorithm), state_of(algorithm)
    seen = np.repeat(np.random.default_rng(1).uniform(-1, 1, (1, 3)).astype(np.float32), 400, 0)
    act = jax.jit(agent.act)

    def units(random, noise):
        explore = {"random": np.full(400, random, np.float32), "noise": np.full(400, noise, np.float32)}
        return np.asarray(act(state.params, seen, (), ops.random.key(7), explore).action) / 2.0

    greedy = units(0.0, 0.0)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 41, dtype=np.float32)] * 2), -1).reshape(-1, 2)
    tried = np.asarray(values(algorithm, state.params["critic"], np.repeat(seen[:1], len(grid), 0), grid))
    worth = np.asarray(values(algorithm, state.params["critic"], seen, greedy))
    assert worth.mean() > tried.max() - 0.02 * np.ptp(tried), "searched by samples, as good as on a grid"
    off = np.abs(units(0.0, 1.0) - greedy)[(np.abs(greedy) < 0.3)]
    if len(off):  # where no bound cuts it
        assert 0.1 < np.sqrt(np.mean(off**2)) < 0.3
    assert (np.abs(units(0.0, 1.0)) <= 1.0).all() and not np.array_equal(units(0.0, 1.0), greedy)
    assert 0.8 < np.std(units(1.0, 0.0)) * np.sqrt(3) < 1.2, "uniform over the box"
    changed = (units(0.25, 0.0) != greedy).any(1).mean()
    assert 0.15 < changed < 0.35, "each environment's share of random actions is a number of its own"


def test_exploration_is_uniform_first_and_then_a_share_of_it():
    agent = agent_of(dataclasses.replace(PLAIN, random_steps=100, epsilon=0.2))
    params = {"hyper": {}}
    assert agent.explore(params, np.arange(3), 3, 99)["random"].tolist() == [1.0] * 3
    np.testing.assert_allclose(agent.explore(params, np.arange(3), 3, 100)["random"], 0.2, rtol=1e-6)


def test_what_cannot_be_right_is_refused():
    with pytest.raises(ValueError, match="--elites 8 of --samples 8"):
        dataclasses.replace(PLAIN, elites=8).build(SPEC)
    with pytest.raises(ValueError, match=r"--value-range 1\.0 1\.0"):
        dataclasses.replace(PLAIN, value_range=(1.0, 1.0)).build(SPEC)
    with pytest.raises(ValueError, match="a critic of continuous actions takes Boxes"):
        PLAIN.build(SPEC._replace(action=spaces.Discrete(3)))
