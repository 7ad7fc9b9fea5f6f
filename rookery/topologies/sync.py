"""Sync: collect a whole batch, learn from it, go on. Nobody acts with old parameters.

              parameters (all collectors, before the next rollout)
        ┌──────────────────────────────────────────────────┐
        ▼                                                  │
    collector × C ──rollout [T, B/C]──▶ queue (1 batch), or replay ──batch──▶ learner

Everyone waits for the slowest: first all collectors, then the learner. Rollouts are placed by collector, not by arrival,
and random numbers are keyed by counters, so a run is bit-reproducible for a given seed, core count and set of XLA flags.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rookery.data.queue import Taken
from rookery.ranges import Count, Workers
from rookery.topologies.compatibility import collector_roles, fixed_rollouts, steps_per_batch
from rookery.topologies.job import TICK_SECONDS, Crew, Graph, Job, Meters, Progress, envs_each, loop_edges, replay_facts
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collected
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.learning.learners import AnyLearner
from rookery.workers.replay.shards import open_table, written


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Whole batch, then update."""

    overlaps: ClassVar[bool] = False
    num_envs: Count = 8
    """Environments in all."""
    collectors: Workers = 1
    groups: Workers = 1
    """Groups of environments per collector: one steps while the next is decided on."""

    roles, refuses, steps_per_update = collector_roles, fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        return 0

    def graph(self, agent: Agent, spec: Spec) -> Graph:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        steps = self.num_envs * agent.needs.rollout_length
        return Graph(
            nodes={"environment": self.num_envs, "collector": self.collectors, "learner": 1},
            edges=loop_edges(agent, spec, envs_per_collector=each, parts=self.collectors, when_full="collectors wait"),
            facts={"steps per update": f"{steps:,}", "policy lag": "0"}
            | replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        meters = Meters.continued(snapshot)
        try:
            crew = Crew(
                job, collectors=(self.collectors, self.collectors), envs_per_collector=each,
                make_pool=partial(job.make_pool, each, self.groups), parts=self.collectors, snapshot=snapshot,
            )  # fmt: skip
            fleet = crew.collectors
            table = open_table(
                job.runtime, job.agent.needs, crew.specs, collectors=self.collectors, in_flight=1, parts=self.collectors,
                slots=1, prefetch=0, ahead=0, seed=job.seed, stored=crew.stored, shown=job.shown,
            )  # fmt: skip
            if snapshot is not None:
                table.restore(snapshot["queue"])

            def batch() -> Generator[Progress, None, Taken | None]:
                """Take the next batch, None where there is none; replies of replay shards are processed first."""
                while True:
                    while not table.settled:
                        ready, _ = job.runtime.wait(table.pending(), TICK_SECONDS)
                        table.serve(ready)
                        if not ready:
                            yield meters.progress(crew, snapshot=None)
                    if (taken := table.take()) is not None or table.settled:
                        return taken

            taken = yield from batch()  # a replay that was saved between two updates goes on with the next
            while True:
                while taken is not None:  # a queue gives one batch, a replay as many as its limiter allows
                    learned = crew.learner.call(AnyLearner.learn, taken.batch)
                    while not crew.done(learned, TICK_SECONDS):
                        yield meters.progress(crew, snapshot=None)
                    update = learned.result()
                    table.release(taken.slot, update.priorities)
                    meters.learned(update, table.metrics())
                    crew.publish(update, meters)
                    yield meters.progress(crew, snapshot=lambda: crew.snapshot(meters, table))
                    taken = yield from batch()
                parts = [part for _ in range(self.collectors) if (part := table.claim())]  # there is room for all of them
                rollouts: dict[int, Collected] = {}
                while len(rollouts) < self.collectors:
                    fleet.tend()
                    while who := fleet.next_of(place for place in range(self.collectors) if place not in rollouts):
                        fleet.ask(who, who.place, AnyCollector.collect, parts[who.place].rollout)
                    ready, _ = job.runtime.wait(fleet.waiting(), fleet.within(TICK_SECONDS))
                    answers = fleet.take(ready)  # without a result: the next one in that place collects it anew
                    rollouts |= {place: rollout for place, rollout in answers if rollout is not None}
                    if not ready:
                        yield meters.progress(crew, snapshot=None, waiting=table.waiting())
                for place, part in enumerate(parts):
                    meters.collected(rollouts[place])
                    table.commit(written(part, rollouts[place]), rollouts[place].priorities)
                if (taken := (yield from batch())) is None:  # a replay that waits for more
                    yield meters.progress(crew, snapshot=lambda: crew.snapshot(meters, table), waiting=table.waiting())
        finally:
            job.runtime.close()
