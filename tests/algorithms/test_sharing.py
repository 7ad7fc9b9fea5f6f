"""Agents that differ in their leaves alone share their functions, and give what each would give if it were built alone."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from rookery import ops
from rookery.algorithms import sharing
from rookery.algorithms.a2c import A2C
from rookery.algorithms.appo import APPO
from rookery.algorithms.dqn import DQN
from rookery.algorithms.es import ES
from rookery.algorithms.pg import PG
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.algorithms.vtrace import VTrace
from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.networks import NetworkConfig
from rookery.types import Agent, Batch, Spec
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import device_part, initial

SPEC, B = Spec(gymnasium.spaces.Box(-1e9, 1e9, (3,), np.float32), gymnasium.spaces.Discrete(2)), 4
SMALL = {"network": NetworkConfig(hidden=(8,))}
ALL = [
    PPO(rollout_length=4, minibatches=2, **SMALL), VTrace(rollout_length=4, **SMALL), APPO(rollout_length=4, **SMALL),
    A2C(rollout_length=4, **SMALL), PG(rollout_length=4, **SMALL), DQN(**SMALL), DQN(num_atoms=5, n_step=3, **SMALL),
    R2D2(),
]  # fmt: skip


def others(algorithm: Any) -> Any:
    """Give every leaf another value, within its range."""
    return dataclasses.replace(algorithm, **{name: 0.5 * getattr(algorithm, name) for name in algorithm.leaves})


def pair(algorithm: Any) -> tuple[Agent, Agent]:
    """Build the same agent alone, and of the functions of one with other leaves."""
    sharing._kept.clear()
    sharing.build(others(algorithm), SPEC, num_updates=10, torso=None)
    return algorithm.build(SPEC, num_updates=10), sharing.build(algorithm, SPEC, num_updates=10, torso=None)


def programs(agent: Agent) -> str:
    """Write all that is compiled of an agent, its state and its batch being arguments."""
    key = ops.random.key(0)
    state = jax.eval_shape(initial(agent), key)
    rollout = arrays.allocate(batch_specs(agent.needs, rollout_specs(agent, SPEC, B), 1))
    batch = device_part(Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ()))
    traced = [jax.make_jaxpr(agent.learn)(state, batch, key)]
    if agent.inspect is not None:
        traced.append(jax.make_jaxpr(agent.inspect)(state, batch))
    return re.sub(r"0x[0-9a-f]+", "", "\n".join(map(str, traced)))


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: f"{type(a).__name__}{ALL.index(a)}")
def test_no_leaf_is_a_constant_of_a_program(algorithm):
    alone, shared = pair(algorithm)
    assert isinstance(shared.init, sharing.OwnLeaves) and programs(alone) == programs(shared)
    first, second = (initial(agent)(ops.random.key(3)) for agent in (alone, shared))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second))), "its own leaves"
    assert alone.needs == shared.needs and jax.tree.structure(first) == jax.tree.structure(second)


def test_what_is_compiled_is_keyed_by_what_is_the_same():
    first = sharing.build(ES(**SMALL), SPEC, num_updates=7, torso=None)
    second = sharing.build(ES(sigma=0.5, learning_rate=1.0, **SMALL), SPEC, num_updates=7, torso=None)
    assert first != second and sharing.program_of(first) == sharing.program_of(second)
    replaced = second._replace(learn=lambda state, batch, key: None)
    assert sharing.program_of(replaced).learn is replaced.learn, "a function of one's own is never passed over"


def test_another_program_is_shared_with_nobody_and_few_are_kept():
    sharing._kept.clear()
    agents = [sharing.build(PG(rollout_length=n, **SMALL), SPEC, num_updates=None, torso=None) for n in range(1, 20)]
    agents.append(sharing.build(PG(rollout_length=19, **SMALL), SPEC, num_updates=3, torso=None))
    assert len({sharing.program_of(agent) for agent in agents}) == 20 and len(sharing._kept) == sharing.KEPT
