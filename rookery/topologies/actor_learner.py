"""ActorLearner: collectors and learner never wait for each other while there is work (IMPALA, Espeholt et al. 2018).

                 parameters (newest wins; read at the start of a rollout)
        ┌───────────────────────────────────────────────────────────────────┐
        ▼                                                                   │
    collector × C ──rollout [T, B/C], K in flight each──▶ queue ──batch──▶ learner
                                                          (full: collectors wait)

Data is a little old when it is learned from: at most `max_lag()` updates, because rollouts in flight and batches waiting
are bounded by the slots of the queue. Nothing is dropped: a full queue makes collectors wait, an empty one the learner.
Collectors are a fleet: one that is lost takes only the rollouts that it owed with it, and is replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rookery.data.queue import Taken
from rookery.ranges import Count, Natural, NotNegative, Range, Workers
from rookery.runtime.roster import span
from rookery.topologies import central
from rookery.topologies.compatibility import collector_roles, fixed_rollouts, steps_per_batch
from rookery.topologies.job import TICK_SECONDS, Crew, Graph, Job, Meters, Progress, loop_edges, replay_facts
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.learning.learner import Update
from rookery.workers.learning.learners import AnyLearner
from rookery.workers.replay.shards import AnyTable, open_table, written


@dataclass(frozen=True, kw_only=True)
class ActorLearner:
    """Collectors stream rollouts to a learner that never waits while data exists."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 32
    """Environments in all."""
    collectors: Workers | str = 1
    """A number, or a range such as 2..16: as many as there is room for, more and fewer while the run goes on."""
    groups: Workers = 2
    """Groups of environments per collector: one steps while the next is decided on."""
    rollouts_per_batch: Workers = 1
    in_flight: Annotated[int, Range(1, 256)] = 2
    """Rollouts that each collector is asked for ahead of time, so that it never waits for the driver."""
    prefetch: Annotated[int, Range(0, 256)] = 1
    """Batches that wait at the learner while it computes."""
    inference: Literal["local", "central"] = "local"
    """The policy lives with the environments of each collector, or once, beside the learner: collectors are hosts then."""
    inference_batch: Natural = 0
    """Of central inference: environments that are decided on together; 0: those of a group."""
    inference_wait_ms: NotNegative | None = 10.0
    """Of central inference: how long one that has answered waits for a batch to become full; None: until it is."""
    inference_lag: Natural = 16
    """Of central inference: updates that may come during a rollout; if there are more, it is discarded."""

    roles, refuses, steps_per_update = collector_roles, fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        """Bound the policy lag: batches in flight or waiting when a rollout's parameters are read, plus the update itself."""
        return self.slots() + (self.inference_lag if self.inference == "central" else 0)

    def slots(self) -> int:
        """Count the batches in use at most: claimed by collectors, learned from, waiting at the learner."""
        return -(-span(self.collectors)[1] * self.in_flight // self.rollouts_per_batch) + self.prefetch + 1

    def graph(self, agent: Agent, spec: Spec) -> Graph:
        if self.inference == "central":
            return central.graph(self, agent, spec)
        each = central.rollout_shape(self).columns
        steps = each * self.rollouts_per_batch * agent.needs.rollout_length
        return Graph(
            nodes={"environment": self.num_envs, "collector": span(self.collectors)[1], "learner": 1},
            edges=loop_edges(agent, spec, envs_per_collector=each, parts=self.rollouts_per_batch, when_full="collectors wait"),
            facts={"steps per update": f"{steps:,}", "policy lag": f"at most {self.max_lag()} updates"}
            | replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            crew, shape = central.crew(self, job, snapshot), central.rollout_shape(self)
            queue = open_table(
                job.runtime, job.agent.needs, crew.specs, collectors=shape.writers, in_flight=self.in_flight, parts=shape.parts,
                slots=self.slots(), prefetch=self.prefetch, ahead=2, seed=job.seed, stored=crew.stored, shown=job.shown,
            )  # fmt: skip
            if snapshot is not None:
                queue.restore(snapshot["queue"])
            pipeline = _Pipeline(self, crew, queue, Meters.continued(snapshot))
            while True:
                pipeline.dispatch()
                pipeline.serve(TICK_SECONDS)
                pipeline.dispatch()  # before the yield, too: whoever advances this may take its time
                yield pipeline.meters.progress(crew, snapshot=pipeline.snapshot, waiting=queue.waiting())
        finally:
            job.runtime.close()


class _Pipeline:
    """The calls in flight. All of it belongs to the driver's thread."""

    def __init__(self, topology: ActorLearner, crew: Crew, queue: AnyTable, meters: Meters) -> None:
        self.topology, self.crew, self.queue, self.meters = topology, crew, queue, meters
        self.learning: deque[tuple[Future[Update], Taken]] = deque()

    def dispatch(self) -> None:
        """Keep collectors and learner busy, as far as there is work."""
        self.crew.collectors.tend()
        self.ask_collectors()
        self.feed_learner()

    def ask_collectors(self) -> None:
        """Top every collector up to `in_flight` calls, the least busy first, as far as there are columns to write into."""
        fleet = self.crew.collectors
        while (who := fleet.next()) is not None and (part := self.queue.claim()) is not None:
            fleet.ask(who, part, AnyCollector.collect, part.rollout)

    def feed_learner(self) -> None:
        """Queue the next batch at the learner, so that it is there when the running update ends."""
        while len(self.learning) < 1 + self.topology.prefetch and (taken := self.queue.take()) is not None:
            self.learning.append((self.crew.learner.call(AnyLearner.learn, taken.batch), taken))

    def serve(self, seconds: float) -> None:
        """Wait for the first call that ends and process all that have."""
        fleet = self.crew.collectors
        waiting = [*fleet.waiting(), *self.queue.pending(), *(future for future, _ in self.learning)]
        ready, _ = self.crew.job.runtime.wait(waiting, fleet.within(seconds))
        self.queue.serve(ready)
        for part, rollout in fleet.take(ready):
            if rollout is None:  # its collector is gone: the next to ask writes there
                self.queue.abandon(part)
                continue
            self.meters.collected(rollout)
            self.queue.commit(written(part, rollout), rollout.priorities)
        while self.learning and self.learning[0][0].done():
            future, taken = self.learning.popleft()
            update = future.result()
            self.queue.release(taken.slot, update.priorities)  # the update is ready: nothing reads the slot any more
            self.meters.learned(update, self.queue.metrics())
            self.crew.publish(update, self.meters)

    def snapshot(self) -> PyTree:
        """Drain: what was asked for is collected and learned from, so that no step is lost and none is counted twice."""
        fleet = self.crew.collectors
        while fleet.busy or self.learning or self.queue.num_full:
            fleet.tend()
            if fleet.busy or self.queue.num_full:  # a replay always has a batch: with the last rollout it ends
                self.feed_learner()
            if not fleet.busy and not self.learning:  # full batches that wait for one whose collector is gone
                self.ask_collectors()
            self.serve(TICK_SECONDS)
        return self.crew.snapshot(self.meters, self.queue)
