"""The Learner: what is not finite is named and never kept; what is saved comes back bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.a2c import A2C
from rookery.algorithms.appo import APPO
from rookery.algorithms.dqn import DQN
from rookery.algorithms.pg import PG
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.algorithms.vtrace import VTrace
from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.networks import NetworkConfig
from rookery.testing import SPEC, ScriptedPool, checkpointed, counting_agent
from rookery.testing import counting_params as params
from rookery.trees import tree_leaves
from rookery.types import Agent, Array, Batch, Learned, Rollout, TrainState
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner, Update, device_part, initial
from rookery.workers.learning.nonfinite import NonFinite
from rookery.workers.learning.tree_paths import from_flat, to_flat

B, T = 4, 3
SMALL = NetworkConfig(hidden=(4,))


def explosive(state: TrainState, batch: Batch, key: Array) -> Learned:
    """Rewards of 1000 make the loss infinite, of 2000 a parameter NaN, both on finite data."""
    reward = batch.rollout.reward.max()
    loss = jnp.where(reward == 1000, jnp.inf, batch.rollout.reward.mean())
    total = state.params["sum"] + jnp.where(reward == 2000, jnp.nan, batch.rollout.reward.sum())
    new = TrainState(
        {"offset": state.params["offset"] + 1, "sum": total},
        jax.tree.map(lambda x: x + loss, state.slow),
        jax.tree.map(lambda x: x * 2 + jax.random.uniform(key), state.optimizer),
        state.updates + 1,
    )
    return Learned(new, {"loss/policy": loss, "entropy": reward}, None)


FRAGILE = counting_agent(T, learn=explosive)


def batch_of(agent: Agent, *, seed: int = 0, **fields: Any) -> Batch:
    """A batch as the queue gives it; `fields` replace those of the rollout."""
    rollout = arrays.allocate(rollout_specs(agent, SPEC, B))
    rng = np.random.default_rng(seed)
    for leaf in tree_leaves(rollout):
        leaf[...] = rng.normal(size=leaf.shape) if leaf.dtype.kind == "f" else 0
    rollout = rollout._replace(**fields)
    rollout.valid[:], rollout.discount[:], rollout.stream[:] = 1.0, 0.9, 100 + np.arange(B)
    return Batch(rollout, np.ones(B, np.float32), np.zeros(B, np.int64))


def state_bytes(learner: Learner) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in learner.snapshot()["state"].items()}


def played(agent: Agent) -> Batch:
    """A real rollout of the agent on the script."""
    collector = Collector(agent, lambda: ScriptedPool(B))
    collector.publish(jax.jit(agent.init)(jax.random.key(0)).params, 0)
    return Batch(collector.collect().rollout, np.ones(B, np.float32), np.zeros(B, np.int64))


# --------------------------------------------------------------------------------------------------- non-finite


def reward_with(value: float, at: tuple[int, int] = (1, 2)) -> np.ndarray:
    reward = np.ones((T, B), np.float32)
    reward[at] = value
    return reward


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reward": reward_with(np.nan)}, ["reward", "nan", "(1, 2)", "stream 102"]),
        ({"reward": reward_with(np.inf, (0, 3))}, ["reward", "inf", "(0, 3)", "stream 103"]),
        ({"reward": reward_with(1000)}, ["loss/policy", "inf", "finite data"]),
        ({"reward": reward_with(2000)}, ["parameters sum", "learning rate"]),
    ],
    ids=["nan-reward", "inf-reward", "infinite-loss", "nan-parameter"],
)
def test_what_is_not_finite_is_named_not_kept_and_the_next_good_batch_learns(fields: Any, words: list[str]) -> None:
    learner, clean = Learner(FRAGILE, seed=1), Learner(FRAGILE, seed=1)
    good = [batch_of(FRAGILE, seed=i) for i in range(3)]
    for batch in good[:2]:
        learner.learn(batch)
        clean.learn(batch)
    before, held = state_bytes(learner), learner.published()
    with pytest.raises(NonFinite) as error:
        learner.learn(batch_of(FRAGILE, **fields))
    for word in ["update 3 was not applied", *words]:
        assert word in str(error.value)
    assert learner.version == 2 and learner.published()[1] == 2 and state_bytes(learner) == before
    assert jax.tree.all(jax.tree.map(np.array_equal, held[0], learner.params))
    update = learner.learn(good[2])
    assert update.version == 3
    clean.learn(good[2])
    assert state_bytes(learner) == state_bytes(clean), "as if the bad batch had never been"


def test_a_column_of_memory_that_is_not_finite_is_blamed_on_its_stream() -> None:
    memory = {"count": np.zeros(B, np.int32), "wide": np.ones((B, 2), np.float32)}
    memory["wide"][3, 1] = np.nan
    reward = reward_with(2000)
    with pytest.raises(NonFinite, match=r"memory/wide holds nan at index \(3, 1\) \(stream 103\)"):
        Learner(FRAGILE, seed=1).learn(batch_of(FRAGILE, memory=memory, reward=reward))


def test_a_real_algorithm_refuses_data_that_is_not_a_number_and_goes_on() -> None:
    agent = VTrace(rollout_length=T, network=SMALL).build(SPEC)
    learner, good, bad = Learner(agent, seed=0), played(agent), played(agent)
    learner.learn(good)
    before = state_bytes(learner)
    bad.rollout.observation[0, 1, 2] = np.nan
    with pytest.raises(NonFinite, match=r"observation holds nan at index \(0, 1, 2\)"):
        learner.learn(bad)
    assert state_bytes(learner) == before and learner.learn(good).version == 2


def test_an_agent_that_reports_nothing_can_learn() -> None:
    silent = counting_agent(T, learn=lambda state, batch, key: Learned(state._replace(updates=state.updates + 1), {}, None))
    assert Learner(silent, seed=0).learn(batch_of(silent)).report == {}


def test_an_agent_that_cannot_learn_raises_its_own_error_and_the_state_stays() -> None:
    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        raise LookupError("no such head")

    learner = Learner(counting_agent(T, learn=learn), seed=0)
    before = state_bytes(learner)
    with pytest.raises(LookupError, match="no such head"):
        learner.learn(batch_of(FRAGILE))
    assert learner.version == 0 and state_bytes(learner) == before


# ------------------------------------------------------------------------------------------------------- update


def test_an_update_says_how_old_its_data_was_and_how_much_of_it_counted() -> None:
    learner = Learner(FRAGILE, seed=0)
    for _ in range(5):
        learner.learn(batch_of(FRAGILE))
    batch = batch_of(FRAGILE, version=np.array([[5, 4, 5, 5], [5, 4, 5, 5], [5, 4, 5, 0]], np.int32))
    batch.rollout.valid[2, 3] = 0  # the oldest row is no transition
    update: Update = learner.learn(batch)
    assert update.trained_steps == 11 and update.lag_max == 1 and update.lag_mean == pytest.approx(3 / 11)
    assert update.version == 6 and set(update.report) == {"loss/policy", "entropy"}
    assert all(isinstance(value, float) for value in update.report.values())


def test_a_demonstration_has_no_lag_because_no_parameters_decided_it() -> None:
    learner = Learner(FRAGILE, seed=0)
    for _ in range(5):
        learner.learn(batch_of(FRAGILE))
    update = learner.learn(batch_of(FRAGILE, version=np.array([[5, 4, -1, 5], [5, 4, -1, 5], [5, 4, -1, 5]], np.int32)))
    assert update.trained_steps == 12 and update.lag_max == 1 and update.lag_mean == pytest.approx(3 / 9)
    update = learner.learn(batch_of(FRAGILE, version=np.full((3, 4), -1, np.int32)))  # nothing but demonstrations
    assert (update.lag_mean, update.lag_max) == (0.0, 0)


def test_columns_of_64_bits_stay_on_the_host() -> None:
    seen: list[Any] = []

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        seen.append((batch.rollout.stream, batch.rollout.step, batch.key))
        return Learned(state, {"loss": jnp.zeros(())}, None)

    Learner(counting_agent(T, learn=learn), seed=0).learn(batch_of(FRAGILE))
    assert seen == [((), (), ())]


def test_learning_is_traced_once_and_warming_up_changes_nothing() -> None:
    traces: list[int] = []

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        traces.append(1)
        return explosive(state, batch, key)

    agent = counting_agent(T, learn=learn)
    learner, cold = Learner(agent, seed=0), Learner(FRAGILE, seed=0)
    before = state_bytes(learner)
    learner.warm_up(rollout_specs(agent, SPEC, B))
    assert state_bytes(learner) == before and learner.version == 0
    for i in range(3):
        assert learner.learn(batch_of(agent, seed=i)).report == cold.learn(batch_of(agent, seed=i)).report
    assert len(traces) == 1 and state_bytes(learner) == state_bytes(cold)


def test_every_update_draws_numbers_of_its_own() -> None:
    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        return Learned(state, {"drawn": jax.random.uniform(key)}, None)

    agent = counting_agent(T, learn=learn)
    draws = [Learner(agent, seed=seed) for seed in (0, 1)]
    drawn = [[learner.learn(batch_of(agent)).report["drawn"] for _ in range(4)] for learner in draws]
    assert len({x for row in drawn for x in row}) == 8


# ------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize(
    "algorithm", [PPO(rollout_length=T, network=SMALL, epochs=2, minibatches=2), APPO(rollout_length=T, network=SMALL)]
)
def test_a_learner_that_is_saved_and_restored_goes_on_bit_for_bit(algorithm: Any) -> None:
    agent = algorithm.build(SPEC, num_updates=10)
    learner, batch = Learner(agent, seed=2), played(agent)
    for _ in range(3):
        learner.learn(batch)
    saved = checkpointed(learner.snapshot())
    again = Learner(agent, seed=2, snapshot=saved)
    assert again.version == 3 and state_bytes(again) == state_bytes(learner)
    for _ in range(2):
        a, b = learner.learn(batch), again.learn(batch)
        assert (a.version, a.report) == (b.version, b.report) and state_bytes(again) == state_bytes(learner)
    assert to_flat(from_flat(learner._state, saved["state"])).keys() == saved["state"].keys()


def test_a_snapshot_is_a_copy_that_later_updates_leave_alone() -> None:
    learner = Learner(FRAGILE, seed=0)
    saved = learner.snapshot()
    before = {name: value.copy() for name, value in saved["state"].items()}
    for i in range(3):
        learner.learn(batch_of(FRAGILE, seed=i))
    assert all(np.array_equal(before[name], value) for name, value in saved["state"].items())


def test_a_state_of_another_shape_is_refused_with_what_differs() -> None:
    saved = Learner(VTrace(network=SMALL).build(SPEC), seed=0).snapshot()
    with pytest.raises(ValueError, match="made by another agent") as error:
        Learner(VTrace(network=NetworkConfig(hidden=(5,))).build(SPEC), seed=0, snapshot=saved)
    assert "has shape (3, 4), this agent's has (3, 5)" in str(error.value)
    flat = to_flat(params())
    with pytest.raises(ValueError, match="offset is missing; other is not part of this agent"):
        from_flat(params(), {"sum": flat["sum"], "other": flat["sum"]})


def test_types_are_those_of_the_agent_not_of_the_file() -> None:
    like = {"a": jnp.zeros((2,), jnp.float32), "b": jnp.zeros((), jnp.int32)}
    back = from_flat(like, {"a": np.ones(2, np.float64), "b": np.array(3, np.int64)})
    assert back["a"].dtype == jnp.float32 and back["b"].dtype == jnp.int32 and int(back["b"]) == 3


def test_a_rollout_is_the_tuple_that_the_queue_gives() -> None:
    """The tests above would be worth little if their batches were not like real ones."""
    agent = VTrace(rollout_length=T, network=SMALL).build(SPEC)
    made, real = batch_of(agent).rollout, played(agent).rollout
    assert isinstance(made, Rollout) and jax.tree.structure(made) == jax.tree.structure(real)
    assert [x.shape for x in jax.tree.leaves(made)] == [x.shape for x in jax.tree.leaves(real)]


# ------------------------------------------------------------------------------------------------------- compiled once


def test_a_state_that_begins_with_types_which_follow_others_is_compiled_for_once() -> None:
    """jnp.full(shape, 0.5) is such an array; what comes of an update is not."""
    inner = counting_agent(T)

    def init(key: Array) -> TrainState:
        state = inner.init(key)
        return state._replace(params=state.params | {"sum": jnp.full((), 0.5)})

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        learned = inner.learn(state, batch, key)
        total = learned.state.params["sum"] + jnp.float32(1)
        return learned._replace(state=learned.state._replace(params=learned.state.params | {"sum": total}))

    agent = inner._replace(init=init, learn=learn)
    learner = Learner(agent, seed=0)
    learner.warm_up(rollout_specs(agent, SPEC, B))
    for seed in range(3):
        learner.learn(batch_of(agent, seed=seed))
    assert learner._learn._cache_size() == 1  # type: ignore[attr-defined]


ALL = [
    PPO(), PPO(normalise_observations=True, normalise_rewards=True), VTrace(), APPO(), A2C(), PG(), DQN(), R2D2(),
    DQN(double=True, dueling=True, noisy=True, num_atoms=11, n_step=3, gradient_steps=2, anneal=True),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: f"{type(a).__name__}{ALL.index(a)}")
def test_the_types_of_a_state_are_those_of_the_state_after_an_update(algorithm: Any) -> None:
    """Else `learn` and `act` would be compiled a second time, in the middle of the run."""
    agent = algorithm.build(SPEC, num_updates=10)
    batch = arrays.allocate(batch_specs(agent.needs, rollout_specs(agent, SPEC, B), 1))
    key = jax.random.key(0)
    before = jax.eval_shape(initial(agent), key)
    given = device_part(Batch(batch, np.ones(batch.reward.shape[1], np.float32), ()))
    after = jax.eval_shape(agent.learn, before, given, key).state
    types = lambda state: [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)]
    assert types(before) == types(after) and not any(weak for _, _, weak in types(before))
