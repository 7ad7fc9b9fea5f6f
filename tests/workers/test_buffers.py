"""Who owns a buffer: jax on CPU reads a slot's own memory, later than the call that dispatched it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.appo import APPO
from rookery.algorithms.ppo import PPO
from rookery.data import arrays
from rookery.data.queue import Queue
from rookery.networks import NetworkConfig
from rookery.testing import SPEC, ScriptedPool, counting_agent
from rookery.types import Agent, Array, Batch, Learned, TrainState
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner

B, T, SIZE = 4, 3, 300_000


def big_batch(value: float) -> Batch:
    """An aligned slot that takes a while to be read."""
    rollout = arrays.allocate(rollout_specs(counting_agent(T), SPEC, B))
    rollout = rollout._replace(observation=arrays.aligned_zeros((T + 1, B, SIZE), np.dtype(np.float32)))
    refill(rollout, value)
    return Batch(rollout, np.ones(B, np.float32), np.zeros(B, np.int64))


def refill(rollout: Any, value: float) -> None:
    rollout.observation[:] = value


def slow_sum(state: TrainState, batch: Batch, key: Array) -> Learned:
    """Starts with work that does not need the batch, so that the batch is read late."""
    start = jnp.full((8, 8), 1e-3) + batch.weight[0] * 0.0  # unknown to the compiler, which would do the work itself
    late = jax.lax.fori_loop(0, 4000, lambda _, x: jnp.tanh(x @ x + 1.0), start).min() * 0.0
    seen = batch.rollout.observation
    report = {"low": seen.min() + late, "high": seen.max() + late}
    params = {"offset": state.params["offset"] + 1, "sum": state.params["sum"] + report["high"]}
    return Learned(state._replace(params=params, updates=state.updates + 1), report, None)


def test_a_slot_may_be_refilled_as_soon_as_learn_has_returned() -> None:
    learner, batch = Learner(counting_agent(T, learn=slow_sum), seed=0), big_batch(0.0)
    for i in range(12):
        refill(batch.rollout, i)
        update = learner.learn(batch)
        refill(batch.rollout, -1.0)
        assert update.report == {"low": i, "high": i}
        assert float(update.params["sum"]) == sum(range(i + 1)), "the parameters, too, are those of what was there"


def test_the_hazard_is_real_without_waiting() -> None:
    """Not of this project but of its ground: if it is gone, slots could go back earlier. See Queue.release."""
    learn = jax.jit(lambda batch: slow_sum(counting_agent().init(jax.random.key(0)), batch, jax.random.key(0)).report)
    batch = big_batch(0.0)
    device = batch._replace(rollout=batch.rollout._replace(stream=(), step=()), key=())
    jax.block_until_ready(learn(device))
    spoiled = 0
    for i in range(1, 13):
        refill(batch.rollout, i)
        report = learn(device)
        refill(batch.rollout, -1.0)
        spoiled += float(report["low"]) != i
    if spoiled == 0:
        pytest.skip("dispatch was never late on this machine")
    assert spoiled > 0


def test_slots_of_the_queue_are_what_the_learner_reads() -> None:
    """No copy is made between collector and learner, so everything hangs on when a slot is released."""
    agent = counting_agent(T)
    queue = Queue(rollout_specs(agent, SPEC, B), parts=2, slots=1, discount=0.5)
    parts = [queue.claim(), queue.claim()]
    for i, part in enumerate(parts):
        assert part is not None
        part.rollout.observation[:] = i
        queue.commit(part)
    taken = queue.take()
    assert taken is not None and all(np.shares_memory(p.rollout.reward, taken.batch.rollout.reward) for p in parts if p)
    assert jax.device_put(taken.batch.rollout.reward).unsafe_buffer_pointer() == taken.batch.rollout.reward.ctypes.data


def agents() -> list[Agent]:
    small = NetworkConfig(hidden=(4,), core="lstm", core_size=4)
    ppo = PPO(rollout_length=T, epochs=2, minibatches=2, network=NetworkConfig(hidden=(4,)), normalise_observations=True)
    return [
        counting_agent(T),
        APPO(rollout_length=T, network=small, variant="target-policy", target_period=1).build(SPEC),
        ppo.build(SPEC),
    ]


@pytest.mark.parametrize("agent", agents(), ids=["counting", "appo-target", "ppo-normalised"])
def test_published_parameters_stay_readable_and_unchanged_while_training_goes_on(agent: Agent) -> None:
    """The state is donated to the next update; what was handed out never is, nor anything that shares its memory."""
    learner, collector = Learner(agent, seed=0), Collector(agent, lambda: ScriptedPool(B))
    held, copies = [learner.published()[0]], [jax.tree.map(np.array, learner.params)]
    collector.publish(learner.params, 0)
    for i in range(6):
        rollout = collector.collect().rollout
        update = learner.learn(Batch(rollout, np.ones(B, np.float32), np.zeros(B, np.int64)))
        collector.publish(held[i // 2], update.version)  # someone may still act with an old one
        held.append(update.params)
        copies.append(jax.tree.map(np.array, update.params))
    for old, copy in zip(held, copies):
        for leaf, saved in zip(jax.tree.leaves(old), jax.tree.leaves(copy), strict=True):
            assert not leaf.is_deleted() and np.array(leaf).tobytes() == saved.tobytes()
    assert any(a.tobytes() != b.tobytes() for a, b in zip(jax.tree.leaves(copies[0]), jax.tree.leaves(copies[-1])))


def test_refilling_a_slot_does_not_reach_parameters_that_were_made_from_it() -> None:
    """Moments and sums of a batch are new memory, never views of the batch."""

    def keep(state: TrainState, batch: Batch, key: Array) -> Learned:
        params = {"offset": state.params["offset"] + 1, "sum": batch.rollout.reward[0, 0]}
        return Learned(state._replace(params=params, slow={"target": batch.rollout.observation}), {"x": jnp.zeros(())}, None)

    agent = counting_agent(T, learn=keep)
    init = lambda key: agent.init(key)._replace(slow={"target": jnp.zeros((T + 1, B, 3))})
    learner = Learner(agent._replace(init=init), seed=0)
    rollout = arrays.allocate(rollout_specs(agent, SPEC, B))
    rollout.observation[:], rollout.reward[:] = 5.0, 6.0
    update = learner.learn(Batch(rollout, np.ones(B, np.float32), np.zeros(B, np.int64)))
    rollout.observation[:], rollout.reward[:] = -1.0, -1.0
    assert float(update.params["sum"]) == 6.0 and (learner.snapshot()["state"]["slow/target"] == 5.0).all()
