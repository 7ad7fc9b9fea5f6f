"""Sync: collect a whole batch, learn from it, go on. Nobody acts with old parameters.

              parameters (all collectors, before the next rollout)
        ┌──────────────────────────────────────────────────┐
        ▼                                                  │
    collector × C ──rollout [T, B/C]──▶ queue (1 batch) ──batch [T, B]──▶ learner

Everyone waits for the slowest: first all collectors, then the learner. Rollouts are placed by collector, not by arrival,
and random numbers are keyed by counters, so a run is bit-reproducible for a given seed, core count and set of XLA flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rookery.data.queue import Queue
from rookery.topologies.job import TICK_SECONDS, Crew, Graph, Job, Meters, Progress, envs_each, loop_edges
from rookery.types import Agent, PyTree, Spec
from rookery.workers.collector import Collected


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Whole batch, then update."""

    overlaps: ClassVar[bool] = False
    num_envs: int = 8
    """Environments in all."""
    collectors: int = 1
    groups: int = 1
    """Groups of environments per collector: one steps while the next is decided on."""

    def max_lag(self) -> int:
        return 0

    def graph(self, agent: Agent, spec: Spec) -> Graph:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        steps = self.num_envs * agent.needs.rollout_length
        return Graph(
            nodes={"environment": self.num_envs, "collector": self.collectors, "learner": 1},
            edges=loop_edges(agent, spec, envs_per_collector=each, parts=self.collectors, when_full="collectors wait"),
            facts={"steps per update": f"{steps:,}", "policy lag": "0"},
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        meters = Meters.continued(snapshot)
        try:
            crew = Crew(
                job, collectors=(self.collectors, self.collectors), envs_per_collector=each, groups=self.groups,
                parts=self.collectors, snapshot=snapshot,
            )  # fmt: skip
            queue, fleet = Queue(crew.specs, parts=self.collectors, slots=1, discount=job.agent.needs.discount), crew.collectors
            while True:
                parts = [part for _ in range(self.collectors) if (part := queue.claim())]  # the whole batch is free
                rollouts: dict[int, Collected] = {}
                while len(rollouts) < self.collectors:
                    fleet.tend()
                    while who := fleet.next_of(place for place in range(self.collectors) if place not in rollouts):
                        fleet.ask(who, "collect", parts[who.place].rollout, tag=who.place)
                    ready, _ = job.runtime.wait(fleet.waiting(), fleet.within(TICK_SECONDS))
                    answers = fleet.take(ready)  # without a result: the next one in that place collects it anew
                    rollouts |= {place: rollout for place, rollout in answers if rollout is not None}
                    if not ready:
                        yield meters.progress(crew, snapshot=None)
                for place, part in enumerate(parts):
                    meters.collected(rollouts[place])
                    queue.commit(part)
                taken = queue.take()
                assert taken is not None, "every part was committed"
                learned = crew.learner.call("learn", taken.batch)
                while not crew.done(learned, TICK_SECONDS):
                    yield meters.progress(crew, snapshot=None)
                queue.release(taken.slot)
                meters.learned(learned.result())
                crew.publish(learned.result(), meters)
                yield meters.progress(crew, snapshot=lambda: crew.snapshot(meters, queue))
        finally:
            job.runtime.close()
