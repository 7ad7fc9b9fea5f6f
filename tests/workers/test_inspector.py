"""The Inspector looks now and then, at a copy, and changes nothing."""

import dataclasses

import jax
import numpy as np
import pytest

from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.networks import NetworkConfig
from rookery.testing import SPEC
from rookery.topologies.meters import Meters
from rookery.trees import tree_leaves
from rookery.types import Batch
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning import inspection
from rookery.workers.learning.inspection import FIRST_SECONDS, PERIOD_SECONDS, Inspector, sample
from rookery.workers.learning.learner import Learner, Update, device_part

SMALL = NetworkConfig(hidden=(4,))


def batch_of(agent, columns=8, seed=0):
    specs = rollout_specs(agent, SPEC, columns)
    rollout = arrays.allocate(batch_specs(agent.needs, specs, 1) if agent.needs.table else specs)
    rng = np.random.default_rng(seed)
    for leaf in tree_leaves(rollout):
        leaf[...] = rng.normal(size=leaf.shape) if leaf.dtype.kind == "f" else 0
    rollout.valid[:], rollout.discount[:] = 1.0, 0.9
    count = rollout.reward.shape[1]
    return Batch(rollout, np.arange(count, dtype=np.float32), np.zeros(count, np.int64))


@pytest.mark.parametrize("algorithm", [PPO(rollout_length=4, network=SMALL), DQN(network=SMALL)], ids=["ppo", "dqn"])
def test_learning_is_the_same_bit_for_bit_whether_or_not_somebody_looks(algorithm, monkeypatch):
    monkeypatch.setattr(inspection, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(inspection, "PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(inspection, "SHARE", 1e9)
    agent = algorithm.build(SPEC)
    seen, alone = Learner(agent, seed=3), Learner(agent._replace(inspect=None), seed=3)
    for number in range(4):
        batch = batch_of(agent, seed=number)
        told, silent = seen.learn(batch), alone.learn(batch)
        health = {name for name in told.report if name.startswith("health/")}
        assert len(health) >= 3, "somebody looked"
        assert {name: value for name, value in told.report.items() if name not in health} == silent.report
        seen.inspect()
    jax.tree.map(np.testing.assert_array_equal, seen.snapshot(), alone.snapshot())
    assert alone.inspect() == {}


def test_it_looks_when_it_is_time_and_rarely_where_a_look_takes_long():
    agent = dataclasses.replace(PPO(rollout_length=4), network=SMALL).build(SPEC)
    clock = [100.0]
    takes = [0.0]
    state = agent.init(jax.random.key(0))

    def held(state, batch):
        return {"health/number": 1.0}

    inspector = Inspector(agent._replace(inspect=held), clock=lambda: clock[0])
    batch = device_part(batch_of(agent))

    def asked():
        clock[0] += takes[0]
        return state

    looks = lambda: bool(inspector.look(asked, batch))
    assert inspector.again(state) == {}, "nothing was learned yet"
    assert not looks()
    clock[0] += FIRST_SECONDS - 0.1
    assert not looks()
    clock[0] += 0.2
    takes[0] = 3.0  # it is compiled
    assert looks() and not looks()
    clock[0] += PERIOD_SECONDS
    takes[0] = 0.1
    assert looks()
    clock[0] += PERIOD_SECONDS
    assert not looks(), "a look of 0.1 s is worth it every 20"
    clock[0] += PERIOD_SECONDS + 0.1
    assert looks()


def test_what_it_looks_at_is_a_copy_of_columns_from_all_over_the_batch():
    agent = PPO(rollout_length=100, network=SMALL).build(SPEC)
    batch = batch_of(agent, columns=9)
    taken = sample(device_part(batch))
    assert taken.rollout.reward.shape == (100, 2) and taken.weight.tolist() == [0.0, 4.0]
    before = taken.rollout.reward.copy()
    np.testing.assert_array_equal(before, batch.rollout.reward[:, [0, 4]])
    batch.rollout.reward[:] = 7.0
    np.testing.assert_array_equal(taken.rollout.reward, before)


def test_rows_between_two_looks_show_the_last():
    meters = Meters(frozenset({"batches"}))
    update = Update(1, None, {"entropy": 1.0, "health/dead_units": 0.5}, None, 1, 0.0, 0, 0.0, 0.0)
    meters.learned(update)
    meters.learned(update._replace(report={"entropy": 0.9}), {"replay/size": 3.0})
    assert meters.report == {"entropy": 0.9, "health/dead_units": 0.5, "replay/size": 3.0}


def test_a_look_at_a_state_gives_what_the_agent_gives():
    agent = DQN(network=SMALL, target_period=2).build(SPEC)
    learner = Learner(agent, seed=0)
    for number in range(5):
        learner.learn(batch_of(agent, seed=number))
    assert learner.inspect()["health/target_copies"] == 2.0
