"""ActorLearner: collectors and learner never wait for each other while there is work (IMPALA, Espeholt et al. 2018).

                 parameters (newest wins; read at the start of a rollout)
        ┌───────────────────────────────────────────────────────────────────┐
        ▼                                                                   │
    collector × C ──rollout [T, B/C], K in flight each──▶ queue ──batch──▶ learner
                                                          (full: collectors wait)

Data is a little old when it is learned from: at most `max_lag()` updates, because rollouts in flight and batches waiting
are bounded by the slots of the queue. Nothing is dropped: a full queue makes collectors wait, an empty one the learner.
Collectors are a fleet: one that is lost takes only the rollouts that it owed with it, and is replaced.

`Pipeline` drives any plan of collectors, refiners, tables and learners, however many of each: ActorLearner's has one of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from rookery.data.interface import Taken
from rookery.data.refined import Refined
from rookery.ranges import Count, Natural, NotNegative, Range, Workers
from rookery.runtime.roster import span
from rookery.topologies import central
from rookery.topologies.compatibility import fixed_rollouts, steps_per_batch
from rookery.topologies.job import TICK_SECONDS, Job, Progress
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Node, Plan
from rookery.topologies.refining import Refining, Sources
from rookery.topologies.wiring import envs_each, loop, replay_facts
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.learning.learner import Update
from rookery.workers.learning.learners import AnyLearner
from rookery.workers.learning.refiner import Refiner
from rookery.workers.replay.shards import written


@dataclass(frozen=True, kw_only=True)
class ActorLearner:
    """Collectors stream rollouts to a learner that never waits while data exists."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 32
    """Environments in all."""
    collectors: Workers | str = 1
    """Collectors (actors): a number, or a range such as 2..16: as many as the cluster has room for, growing and shrinking."""
    groups: Workers = 2
    """Groups of environments per collector: one steps while the policy acts for another."""
    rollouts_per_batch: Workers = 1
    in_flight: Annotated[int, Range(1, 256)] = 2
    """Rollouts requested ahead from each collector, so that it never waits for the driver."""
    prefetch: Annotated[int, Range(0, 256)] = 1
    """Batches queued at the learner while it computes."""
    inference: Literal["local", "central"] = "local"
    """local: each collector runs the policy; central: one batched policy beside the learner, collectors only step (SEED RL)."""
    inference_batch: Natural = 0
    """Central inference: most environments per forward pass; 0: those of a group."""
    inference_wait_ms: NotNegative | None = 10.0
    """Central inference: longest wait for a full inference batch, in milliseconds; None: wait until it is full."""
    inference_lag: Natural = 16
    """Central inference: discard a rollout during which more updates than this came (not with a replay)."""

    refuses, steps_per_update = fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        """Bound the policy lag: batches in flight or waiting when a rollout's parameters are read, plus the update itself."""
        return self.slots() + (self.inference_lag if self.inference == "central" else 0)

    def slots(self) -> int:
        """Count the batches in use at most: claimed by collectors, learned from, waiting at the learner."""
        return -(-span(self.collectors)[1] * self.in_flight // self.rollouts_per_batch) + self.prefetch + 1

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        if self.inference == "central":
            return central.plan(self, agents, spec)
        agent, (least, most) = agents[MAIN], span(self.collectors)
        each = envs_each(self.num_envs, most, self.groups)
        collectors = Node(
            name="collector", least=least, most=most, hosted=True, worker=Collector, envs=each, groups=self.groups,
            in_flight=self.in_flight,
        )  # fmt: skip
        nodes, edges = loop(
            agent, spec, collectors, columns=each, writers=most, ahead=self.in_flight, parts=self.rollouts_per_batch,
            slots=self.slots(), prefetch=self.prefetch, shard_ahead=2, when_full="collectors wait",
        )  # fmt: skip
        steps = each * self.rollouts_per_batch * agent.needs.rollout_length
        return Plan(
            nodes=(Node(name="environment", most=self.num_envs), collectors, *nodes),
            edges=edges,
            facts={"steps per update": f"{steps:,}", "policy lag": f"at most {self.max_lag()} updates"}
            | replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            plan = self.plan(job.agents, job.spec)
            pools = {"inference": central.pool(self, job)} if self.inference == "central" else {}
            yield from Pipeline(Launched(job, plan, snapshot, pools=pools), Meters.of(plan, snapshot)).run()
        finally:
            job.runtime.close()


class Pipeline:
    """The calls in flight along the edges of a plan. All of it belongs to the driver's thread."""

    def __init__(self, launched: Launched, meters: Meters, *, beside: Sequence[Any] = ()) -> None:
        """beside: SecondLearners, which read a table as well (beside.py)."""
        self.beside = beside
        self.parts, self.meters, plan = launched, meters, launched.plan
        self.runtime, self.tables = launched.job.runtime, launched.tables
        refiners = [node.name for node in plan.nodes if node.worker is Refiner]
        self.collectors = [
            (launched.fleets[edge.source], edge.name, launched.tables[edge.target])
            for edge in plan.edges
            if edge.target in launched.tables and edge.source in launched.fleets and edge.source not in refiners
        ]
        self.refining = [Refining(plan, launched, name) for name in refiners]
        self.learning = [_Learning(plan, launched, name) for name in launched.seats]

    def run(self) -> Iterator[Progress]:
        while True:
            self.dispatch()
            self.serve(TICK_SECONDS)
            self.dispatch()  # before the yield, too: whoever advances this may take its time
            yield self.meters.progress(self.parts, snapshot=self.snapshot, waiting=self.parts.waiting())

    def dispatch(self) -> None:
        """Keep collectors, refiners and learners busy, as far as there is work."""
        for fleet in self.parts.fleets.values():
            fleet.tend()
        self.ask_collectors()
        self.ask_refiners()
        self.feed_learners()
        for one in self.beside:
            one.ask(self.meters)

    def ask_collectors(self) -> None:
        """Top every collector up to `in_flight` calls, the least busy first, as far as there are columns to write into."""
        for fleet, _, table in self.collectors:
            while (who := fleet.next()) is not None and (part := table.claim()) is not None:
                fleet.ask(who, part, AnyCollector.collect, part.rollout)

    def ask_refiners(self) -> None:
        """Give every idle refiner a batch of its table, as far as there is room for what it makes of it."""
        for one in self.refining:
            while (who := one.fleet.next()) is not None and (part := one.into.claim()) is not None:
                if not one.ask(who, part):
                    break

    def feed_learners(self) -> None:
        """Queue the next batch at each learner, so that it is there when the running update ends."""
        for one in self.learning:
            while len(one.calls) < one.ahead and (taken := one.table.take()) is not None:
                one.calls.append((one.seat.learner.call(AnyLearner.learn, taken.batch), taken))

    def serve(self, seconds: float) -> None:
        """Wait for the first call that ends and process all that have."""
        waiting = [*self.parts.futures(), *(future for one in self.learning for future, _ in one.calls)]
        waiting += [future for one in self.beside for future in one.waiting()]
        ready, _ = self.runtime.wait(waiting, self.parts.within(seconds))
        for table in self.tables.values():
            table.serve(ready)
        for fleet, edge, table in self.collectors:
            for part, rollout in fleet.take(ready):
                if rollout is None:  # its collector is gone: the next to ask writes there
                    table.abandon(part)
                    continue
                self.meters.collected(rollout, edge=edge)
                table.commit(written(part, rollout), rollout.priorities)
        for refining in self.refining:
            refining.take(ready, self.meters)
        for learning in self.learning:
            learning.take(self.meters)
        for other in self.beside:
            other.take(ready, self.meters, queued=sum(len(one.calls) for one in self.learning if one.seat is other.seat))

    def snapshot(self) -> PyTree:
        """Drain: what was asked for is collected and learned from, so that no step is lost and none is counted twice."""
        fleets, tables = self.parts.fleets.values(), self.tables.values()
        under_way = lambda: any(one.calls for one in self.learning) or any(one.busy for one in self.beside)
        while (busy := any(fleet.busy for fleet in fleets)) or under_way() or self._full():
            for fleet in fleets:
                fleet.tend()
            if busy or self._full():  # a replay always has a batch: with the last rollout it ends
                self.feed_learners()
            if not any(fleet.busy for fleet in fleets) and not any(one.calls for one in self.learning):
                self.ask_collectors()  # full batches that wait for one whose collector is gone
            self.serve(TICK_SECONDS)
        assert all(not table.num_full for table in tables)
        saved = self.parts.snapshot(self.meters)
        return saved | {"beside": {one.name: one.snapshot() for one in self.beside}} if self.beside else saved

    def _full(self) -> bool:
        return any(table.num_full for table in self.tables.values())


class _Learning:
    """A learner with the batches in its line."""

    def __init__(self, plan: Plan, launched: Launched, name: str) -> None:
        self.seat, self.calls = launched.seats[name], deque[tuple[Future[Update], Taken]]()
        node = self.seat.node.name
        batches = next(edge for edge in plan.into(node) if edge.source in launched.tables)
        back = [edge for edge in plan.out_of(node) if edge.target in launched.tables]
        self.table, self.ahead = launched.tables[batches.source], batches.ahead
        self.edges, self.back = [batches.name], [edge.name for edge in back]
        self.refined = Sources(plan, launched, batches.source) if isinstance(self.table, Refined) else None

    def take(self, meters: Meters) -> None:
        """Process the updates that are ready, in their order: free the batch, renew priorities, publish."""
        while self.calls and self.calls[0][0].done():
            future, taken = self.calls.popleft()
            update = future.result()
            if self.refined is not None:
                self.refined.learned(taken, update)
            self.table.release(taken.slot, update.priorities)  # the update is ready: nothing reads the slot any more
            edges = self.edges if update.priorities is None else self.edges + self.back
            told = self.table.metrics() | (self.refined.metrics() if self.refined is not None else {})
            meters.learned(update, told, edges=edges, policy=self.seat.name)
            self.seat.publish(update, meters)
