"""A long run does not grow: batches, futures and old parameters are let go."""

from __future__ import annotations

import gc
import os
import tracemalloc

from rookery import envs
from rookery.envs.processes.memory import resident_mb
from rookery.runtime.local import LocalRuntime
from rookery.testing import counting_agent
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job


def test_three_hundred_updates_leave_no_memory_behind() -> None:
    """Rollouts of 0.1 MB and a future per call: whoever held on to one of each would show."""
    agent = counting_agent(6, act=lambda observation: observation.reshape(len(observation), -1)[:, :3])
    decide = agent.act
    agent = agent._replace(act=lambda *args: (made := decide(*args))._replace(action=made.action % 3))
    make = lambda num_envs, groups: envs.make("catch", num_envs, groups=groups, rows=20, columns=20)
    topology = ActorLearner(num_envs=8, groups=1)
    driver = topology.drive(Job(agent, envs.spec_of("catch", rows=20, columns=20), make, LocalRuntime(), seed=0))
    tracemalloc.start()
    try:
        sizes: dict[int, tuple[float, float]] = {}
        for progress in driver:
            if progress.updates >= (60, 360)[len(sizes)]:
                gc.collect()
                sizes[progress.updates] = tracemalloc.get_traced_memory()[0] / 1e6, resident_mb(os.getpid())
                if len(sizes) == 2:
                    break
    finally:
        driver.close()
        tracemalloc.stop()
    (traced, resident), (traced_later, resident_later) = sizes.values()
    assert traced_later - traced < 0.3, sizes
    assert resident_later - resident < 20, sizes
