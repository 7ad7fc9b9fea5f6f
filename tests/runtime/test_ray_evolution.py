"""Evolution with workers that are Ray actors: to the bit the run that threads make, also when one is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import pid_of, runtime_of

from rookery import envs
from rookery.algorithms.es import ES
from rookery.networks import NetworkConfig
from rookery.runtime.local import LocalRuntime
from rookery.topologies.evolution import Evolution
from rookery.topologies.job import Job
from rookery.workers.acting.evolution_worker import digest

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")
TOPOLOGY = Evolution(population=12, num_envs=6, workers=2)


def make(num_envs: int, groups: int) -> Any:
    return envs.make("CartPole-v1", num_envs, groups=groups)


def run(runtime: Any, updates: int, *, kill_at: int = -1) -> tuple[list[bytes], Any]:
    spec = envs.spec_of("CartPole-v1")
    agent = ES(network=NetworkConfig(hidden=(8,)), sigma=0.5, learning_rate=0.1, max_episode_steps=30).build(spec)
    driver = TOPOLOGY.drive(Job(agent, spec, make, runtime, seed=0))
    found, progress, deadline = [], None, time.monotonic() + 120  # type: list[bytes], Any, float
    for progress in driver:
        assert time.monotonic() < deadline, f"it hangs: {progress}"
        if progress.updates == len(found):
            continue
        found.append(digest(progress.params))
        if progress.updates == kill_at:
            os.kill(pid_of(runtime, "worker-1"), signal.SIGKILL)
        if progress.updates >= updates and (kill_at < 0 or progress.workers["workers_lost"]):
            break
    driver.close()
    return found, progress


def test_on_ray_a_run_is_that_of_threads_also_when_a_worker_is_killed() -> None:
    there, progress = run(runtime_of(worker=2), 8, kill_at=3)
    here, _ = run(LocalRuntime(), 8)
    assert there[:8] == here
    assert progress.workers["workers_lost"] == 1 and progress.report["copies_mended"] == 0
    assert progress.items["parameters"] in (2, 3), "once to each worker, and to the one that took a place"
