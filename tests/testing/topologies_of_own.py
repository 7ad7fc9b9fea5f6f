"""The smallest topology, and the ways in which one can be wrong: each fault is what somebody writes by mistake."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from rookery.topologies.job import Job, Progress, Published
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.types import Agent, Batch, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.learning.learner import Learner

EDGES = (
    Edge("rollouts", "collector", "driver", "request", 1, "waits"),
    Edge("batches", "driver", "learner", "request", 1, "waits"),
)


@dataclasses.dataclass(frozen=True)
class OneByOne:
    """A collector and a learner that take turns."""

    overlaps: ClassVar[bool] = False
    num_envs: int = 2
    fault: str = ""

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        return "it never does" if self.fault == "refuses" else None

    def max_lag(self) -> int:
        return 0 if self.fault == "old parameters" else 9

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        nodes = tuple(Node(name=name) for name in ("collector", "driver", "learner"))
        more = (Edge("whispers", "learner", "driver", "request", 1, "waits"),) if self.fault == "silent edge" else ()
        return Plan(nodes, (*EDGES, *more), {})

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        saved: Any = snapshot or {"policies": {MAIN: None}, "collector": None}
        meters = Meters.of(self.plan(job.agents, job.spec), None if self.fault == "forgets counters" else snapshot)
        if self.fault == "forgets environments":
            saved = saved | {"collector": None}
        workers = SimpleNamespace(policies={}, workers=dict, inspect=dict, tune=None)
        learner = job.runtime.spawn(
            Learner, job.agent, seed=job.seed, snapshot=saved["policies"][MAIN], name="learner", role="learner"
        )
        collector = job.runtime.spawn(
            Collector, job.agent, partial(job.make_pool, self.num_envs, 1), seed=job.seed, snapshot=saved["collector"],
            name="collector-0", role="collector",
        )  # fmt: skip

        def answer(future: Future) -> Generator[Progress, None, Any]:
            while not job.runtime.wait([future], 60.0 if self.fault == "silent" else 0.5)[0]:
                yield meters.progress(workers, snapshot=None)
            return future.result()

        def save() -> PyTree:
            parts = {"policies": {MAIN: learner.call(Learner.snapshot).result()}, "meters": meters.snapshot()}
            if self.fault == "no state":
                parts["policies"] = {MAIN: {"version": 0}}
            return parts | {"collector": collector.call(Collector.snapshot).result()}

        try:
            workers.policies[MAIN] = Published(*learner.call(Learner.published).result())
            collector.now(Collector.publish, *workers.policies[MAIN])
            before = None
            while True:
                collected = yield from answer(collector.call(Collector.collect))
                meters.collected(collected)
                if self.fault == "drops" and meters.items["rollouts"] % 4 == 0:
                    meters.env_steps -= collected.env_steps
                    continue
                batch = batch_of(job.agent, collected)
                if self.fault == "again" and before is not None:
                    batch = before
                before = batch
                update = yield from answer(learner.call(Learner.learn, batch))
                if self.fault == "twice":
                    update = yield from answer(learner.call(Learner.learn, batch))
                meters.learned(update, edges=["batches"])
                if self.fault == "edges":
                    meters.moved("whispers")
                workers.policies[MAIN] = Published(update.params, update.version)
                if self.fault != "old parameters":
                    collector.now(Collector.publish, update.params, update.version)
                yield meters.progress(workers, snapshot=save)
        finally:
            if self.fault != "open":
                job.runtime.close()


def batch_of(agent: Agent, collected: Any) -> Batch:
    rollout = collected.rollout
    rollout = rollout._replace(discount=rollout.discount * np.float32(agent.needs.discount))
    return Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ())
