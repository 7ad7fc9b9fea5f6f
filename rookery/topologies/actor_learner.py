"""ActorLearner: collectors and learner never wait for each other while there is work (IMPALA, Espeholt et al. 2018).

                 parameters (newest wins; read at the start of a rollout)
        ┌───────────────────────────────────────────────────────────────────┐
        ▼                                                                   │
    collector × C ──rollout [T, B/C], K in flight each──▶ queue ──batch──▶ learner
                                                          (full: collectors wait)

Data is a little old when it is learned from: at most `max_lag()` updates, because rollouts in flight and batches waiting
are bounded by the slots of the queue. Nothing is dropped: a full queue makes collectors wait, an empty one the learner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar

from rookery.data.queue import Part, Queue, Taken
from rookery.data.replay import Replay, table_for
from rookery.topologies.job import TICK_SECONDS, Crew, Graph, Job, Meters, Progress, envs_each, loop_edges, replay_facts
from rookery.types import Agent, PyTree, Spec


@dataclass(frozen=True, kw_only=True)
class ActorLearner:
    """Collectors stream rollouts to a learner that never waits while data exists."""

    overlaps: ClassVar[bool] = True
    num_envs: int = 32
    """Environments in all."""
    collectors: int = 1
    groups: int = 2
    """Groups of environments per collector: one steps while the next is decided on."""
    rollouts_per_batch: int = 1
    in_flight: int = 2
    """Rollouts that each collector is asked for ahead of time, so that it never waits for the driver."""
    prefetch: int = 1
    """Batches that wait at the learner while it computes."""

    def max_lag(self) -> int:
        """In updates: what may be in flight or waiting when a rollout's parameters are read, plus the update itself."""
        return -(-self.collectors * self.in_flight // self.rollouts_per_batch) + self.prefetch + 1

    def graph(self, agent: Agent, spec: Spec) -> Graph:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        steps = each * self.rollouts_per_batch * agent.needs.rollout_length
        return Graph(
            nodes={"environment": self.num_envs, "collector": self.collectors, "learner": 1},
            edges=loop_edges(
                agent, spec, envs_per_collector=each, parts=self.rollouts_per_batch, when_full="collectors wait"
            ),
            facts={"steps per update": f"{steps:,}", "policy lag": f"at most {self.max_lag()} updates"}
            | replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        each = envs_each(self.num_envs, self.collectors, self.groups)
        try:
            crew = Crew(
                job, collectors=self.collectors, envs_per_collector=each, groups=self.groups,
                parts=self.rollouts_per_batch, snapshot=snapshot,
            )  # fmt: skip
            # claimed by collectors + learning + waiting at the learner: max_lag() slots, and nobody needs one more
            queue = table_for(
                job.agent.needs, crew.specs, collectors=self.collectors, in_flight=self.in_flight,
                parts=self.rollouts_per_batch, slots=self.max_lag(), prefetch=self.prefetch, seed=job.seed,
            )  # fmt: skip
            if snapshot is not None:
                queue.restore(snapshot["queue"])
            pipeline = _Pipeline(self, crew, queue, Meters.continued(snapshot))
            while True:
                pipeline.dispatch()
                pipeline.serve(TICK_SECONDS)
                pipeline.dispatch()  # before the yield, too: whoever advances this may take its time
                yield pipeline.meters.progress(crew, snapshot=pipeline.snapshot)
        finally:
            job.runtime.close()


class _Pipeline:
    """What is in flight. All of it belongs to the driver's thread."""

    def __init__(self, topology: ActorLearner, crew: Crew, queue: Queue | Replay, meters: Meters) -> None:
        self.topology, self.crew, self.queue, self.meters = topology, crew, queue, meters
        self.collecting: dict[Future, tuple[int, Part]] = {}
        self.learning: deque[tuple[Future, Taken]] = deque()
        self.asked = [0] * topology.collectors  # rollouts in flight of each collector

    def dispatch(self) -> None:
        """Gives everyone as much to do as there is."""
        self.ask_collectors()
        self.feed_learner()

    def ask_collectors(self) -> None:
        """Tops every collector up to `in_flight`, the least asked first, as far as there are columns to write into."""
        while (who := min(range(len(self.asked)), key=self.asked.__getitem__)) >= 0:
            if self.asked[who] >= self.topology.in_flight or (part := self.queue.claim()) is None:
                return
            self.collecting[self.crew.collectors[who].call("collect", part.rollout)] = (who, part)
            self.asked[who] += 1

    def feed_learner(self) -> None:
        """The batch after the one being learned from is already there when that update ends."""
        while len(self.learning) < 1 + self.topology.prefetch and (taken := self.queue.take()) is not None:
            self.learning.append((self.crew.learner.call("learn", taken.batch), taken))

    def serve(self, seconds: float) -> None:
        """Waits for the first call that ends and takes in all that have."""
        waiting = [*self.collecting, *(future for future, _ in self.learning)]
        ready, _ = self.crew.job.runtime.wait(waiting, seconds)
        for future in ready:
            if future in self.collecting:
                who, part = self.collecting.pop(future)
                self.asked[who] -= 1
                self.meters.collected(future.result())
                self.queue.commit(part, future.result().priorities)
        while self.learning and self.learning[0][0].done():
            future, taken = self.learning.popleft()
            update = future.result()
            self.queue.release(taken.slot, update.priorities)  # the update is ready: nothing reads the slot any more
            self.meters.learned(update, self.queue.metrics())
            self.crew.publish(update, self.meters)

    def snapshot(self) -> PyTree:
        """Drains: what was asked for is collected and learned from, so that no step is lost and none is counted twice."""
        while self.collecting or self.learning or self.queue.num_full:
            if self.queue.num_full:  # a replay would always give another batch
                self.feed_learner()
            self.serve(TICK_SECONDS)
        return self.crew.snapshot(self.meters, self.queue)
