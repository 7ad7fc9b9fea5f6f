"""Runs of a topology on a few environments, update by update, to be compared bit for bit."""

from __future__ import annotations

from typing import Any

from rookery import envs
from rookery.runtime.local import LocalRuntime
from rookery.testing import checkpointed, digest
from rookery.topologies.job import Job
from rookery.types import Agent

ENV = "CartPole-v1"


def agent_of(algorithm: Any, env: str = ENV) -> Agent:
    return algorithm.build(envs.spec_of(env), num_updates=40)


def start(topology: Any, agent: Agent, *, seed: int = 0, snapshot: Any = None, env: str = ENV) -> Any:
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    return topology.drive(Job(agent, envs.spec_of(env), make, LocalRuntime(), seed), snapshot)


def follow(topology: Any, agent: Agent, updates: int, *, save_at: int | None = None, **options: Any) -> tuple[dict, Any]:
    """update -> (digest of the parameters, steps, returns so far), and the snapshot after `save_at` or the first one beyond."""
    driver = start(topology, agent, **options)
    seen: dict[int, tuple[str, int, tuple[float, ...]]] = {}
    saved, returns = None, []  # type: Any, list[float]
    for progress in driver:
        returns += [episode.total_reward for episode in progress.finished]
        if progress.updates and progress.updates not in seen:
            seen[progress.updates] = digest(progress.params), progress.env_steps, tuple(returns)
            if saved is None and save_at is not None and progress.updates >= save_at:  # two may come at once
                saved = checkpointed(progress.snapshot())
        if progress.updates >= updates:
            break
    driver.close()
    return seen, saved
