"""Central inference with hosts that are Ray actors: it goes on when one is killed, and only its environments begin anew."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from engine_fakes import SPEC, ScriptedPool, checkpointed, counting_agent
from simulation import Ledger, rows_of

from rookery.data.chunks import INCARNATIONS
from rookery.run import startup
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Resources
from rookery.runtime.ray import RayRuntime
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.types import Batch, Rollout
from rookery.workers.learner import Learner, Update

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")


class Recorded(RayRuntime):
    """Keeps a ledger of what the learner is given, and knows the processes of its hosts."""

    def __init__(self) -> None:
        super().__init__(
            resources={"host": Resources()}, counts={"host": (2, 2)}, prepare=startup.prepare, versions=fingerprint
        )  # fmt: skip
        self.ledger = ledger = Ledger()

        class RecordedLearner(Learner):
            def learn(self, batch: Batch) -> Update:
                ledger.write(batch, self.version)
                return super().learn(batch)

        self._recorded = RecordedLearner

    def spawn(self, worker: Callable[..., Any], *args: Any, name: str, **kwargs: Any) -> Any:
        return super().spawn(self._recorded if worker is Learner else worker, *args, name=name, **kwargs)

    def pid(self, name: str) -> int:
        handle = next(handle for handle in self._handles if handle.name == name)
        return ray.get(handle.actor.__ray_call__.remote(lambda host: os.getpid()))


def until(driver: Iterator[Progress], condition: Callable[[Progress], bool], seconds: float = 90.0) -> Progress:
    deadline = time.monotonic() + seconds
    for progress in driver:
        if condition(progress):
            return progress
        assert time.monotonic() < deadline, f"not after {seconds} s: {progress.workers}, {progress.updates} updates"
    raise AssertionError


def test_a_host_that_is_killed_is_replaced_and_only_its_environments_begin_anew() -> None:
    topology, runtime = ActorLearner(num_envs=8, collectors=2, groups=2, inference="central"), Recorded()
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups)
    driver = topology.drive(Job(counting_agent(3), SPEC, make, runtime, seed=0))
    progress = until(driver, lambda p: p.updates >= 10)
    assert progress.workers["hosts"] == 2 and runtime.pid("host-0") != os.getpid()
    os.kill(runtime.pid("host-1"), signal.SIGKILL)
    progress = until(driver, lambda p: p.workers["hosts_lost"] == 1 and p.workers["hosts"] == 2)
    again = progress.updates
    progress = until(driver, lambda p: p.updates >= again + 20)
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    driver.close()  # type: ignore[attr-defined]
    runtime.ledger.check(in_order=False, waiting=[row for part in saved["queue"]["parts"] for row in rows_of(Rollout(**part))])
    streams = {row.stream for row in runtime.ledger.rows}
    lives = {env: {s % INCARNATIONS for s in streams if s // INCARNATIONS == env} for env in range(8)}
    assert all(lives[env] == {0} for env in range(4)), "the other host went on"
    assert all({0} < lives[env] for env in range(4, 8)), "what was lost came back in new streams"
    assert progress.env_failures == 1 and max(runtime.ledger.lags) <= topology.max_lag()
    assert progress.workers["rollouts_discarded"] >= 1
    assert set(progress.items) == {edge.name for edge in topology.graph(counting_agent(3), SPEC).edges}
