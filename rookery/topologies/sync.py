"""Sync: collect a whole batch, learn from it, go on. Nobody acts with old parameters.

              parameters (all collectors, before the next rollout)
        ┌──────────────────────────────────────────────────┐
        ▼                                                  │
    collector × C ──rollout [T, B/C]──▶ queue (1 batch), or replay ──batch──▶ learner

Everyone waits for the slowest: first all collectors, then the learner. Rollouts are placed by collector, not by arrival,
and random numbers are keyed by counters, so a run is bit-reproducible for a given seed, core count and set of XLA flags.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rookery.data.interface import Taken
from rookery.ranges import Count, Workers
from rookery.topologies.compatibility import fixed_rollouts, steps_per_batch
from rookery.topologies.job import TICK_SECONDS, Job, Progress
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Node, Plan
from rookery.topologies.wiring import envs_each, loop, replay_facts
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.learning.learners import AnyLearner
from rookery.workers.replay.shards import written


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Whole batch, then update."""

    overlaps: ClassVar[bool] = False
    num_envs: Count = 8
    """Environments in all."""
    collectors: Workers = 1
    groups: Workers = 1
    """Groups of environments per collector: one steps while the policy acts for another."""

    refuses, steps_per_update = fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        return 0

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, each = agents[MAIN], envs_each(self.num_envs, self.collectors, self.groups)
        collectors = Node(
            name="collector", most=self.collectors, hosted=True, worker=Collector, envs=each, groups=self.groups
        )  # fmt: skip
        nodes, edges = loop(
            agent, spec, collectors, columns=each, writers=self.collectors, ahead=1, parts=self.collectors, slots=1, prefetch=0,
            shard_ahead=0, when_full="collectors wait",
        )  # fmt: skip
        return Plan(
            nodes=(Node(name="environment", most=self.num_envs), collectors, *nodes),
            edges=edges,
            facts={"steps per update": f"{self.num_envs * agent.needs.rollout_length:,}", "policy lag": "0"}
            | replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            plan = self.plan(job.agents, job.spec)
            parts, meters = Launched(job, plan, snapshot), Meters.of(plan, snapshot)
            seat, fleet = parts.seats[MAIN], parts.fleets["collector"]
            (table,) = parts.tables.values()
            edges = [edge.name for edge in plan.edges if edge.name in ("batches", "priorities")]

            def batch() -> Generator[Progress, None, Taken | None]:
                """Take the next batch, None where there is none; replies of replay shards are processed first."""
                while True:
                    while not table.settled:
                        ready, _ = job.runtime.wait(table.pending(), TICK_SECONDS)
                        table.serve(ready)
                        if not ready:
                            yield meters.progress(parts, snapshot=None)
                    if (taken := table.take()) is not None or table.settled:
                        return taken

            taken = yield from batch()  # a replay that was saved between two updates goes on with the next
            while True:
                while taken is not None:  # a queue gives one batch, a replay as many as its limiter allows
                    learned = seat.learner.call(AnyLearner.learn, taken.batch)
                    while not job.runtime.wait([learned], TICK_SECONDS)[0]:
                        yield meters.progress(parts, snapshot=None)
                    update = learned.result()
                    table.release(taken.slot, update.priorities)
                    meters.learned(update, table.metrics(), edges=edges if update.priorities is not None else edges[:1])
                    seat.publish(update, meters)
                    yield meters.progress(parts, snapshot=lambda: parts.snapshot(meters))
                    taken = yield from batch()
                written_to = [part for _ in range(self.collectors) if (part := table.claim())]  # there is room for all
                rollouts: dict[int, Collected] = {}
                while len(rollouts) < self.collectors:
                    fleet.tend()
                    while who := fleet.next_of(place for place in range(self.collectors) if place not in rollouts):
                        fleet.ask(who, who.place, AnyCollector.collect, written_to[who.place].rollout)
                    ready, _ = job.runtime.wait(fleet.waiting(), fleet.within(TICK_SECONDS))
                    answers = fleet.take(ready)  # without a result: the next one in that place collects it anew
                    rollouts |= {place: rollout for place, rollout in answers if rollout is not None}
                    if not ready:
                        yield meters.progress(parts, snapshot=None, waiting=table.waiting())
                for place, part in enumerate(written_to):
                    meters.collected(rollouts[place])
                    table.commit(written(part, rollouts[place]), rollouts[place].priorities)
                if (taken := (yield from batch())) is None:  # a replay that waits for more
                    yield meters.progress(parts, snapshot=lambda: parts.snapshot(meters), waiting=table.waiting())
        finally:
            job.runtime.close()
