"""AsyncGradients: workers play and differentiate, one learner applies what arrives (A3C, Mnih et al. 2016).

              parameters (fresh, with the answer to each gradient)
        ┌───────────────────────────────────────────────────────────┐
        ▼                                                           │
    worker × W ──gradient of its own rollout [T, B/W]──▶ learner, applied on arrival
    (environments, collector, loss)                      (too old: discarded and counted, if a bound is set)

Nobody waits for another worker. A rollout is differentiated with the parameters that played it, so data is never old; but
others' gradients are applied meanwhile: that age, in updates, is the staleness. Workers are a fleet: one that is lost
takes the gradient that it owed with it, and nothing is applied twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from rookery.ranges import Count, Natural, Workers
from rookery.runtime.fleet import Fleet
from rookery.topologies.compatibility import rows_of, shipped_gradients
from rookery.topologies.job import TICK_SECONDS, Job, Progress, Published
from rookery.topologies.launch import fleet_counts, one_device, spawn_fleet
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.staleness import Staleness
from rookery.topologies.wiring import envs_each, parameter_bytes, slow_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.learning.gradient_worker import Found, GradientWorker
from rookery.workers.learning.learner import Update
from rookery.workers.learning.parameter_shard import Applied, ParameterShard


@dataclass(frozen=True, kw_only=True)
class AsyncGradients:
    """Workers send gradients of their own rollouts; the learner applies them as they come."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 16
    """Environments in all."""
    workers: Workers = 16
    """Workers; each plays its share of the environments and computes gradients."""
    groups: Workers = 1
    """Groups of environments per worker: one steps while the policy acts for another."""
    max_staleness: Natural | None = None
    """Discard (and count) gradients older than this many updates; None: none."""

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        if (reason := shipped_gradients(agent, spec)) is not None:
            return reason
        if agent.needs.table is not None:
            return (
                "it learns from a replay, and these workers learn from what they have just played: use ParameterServer, "
                "whose bundles have a replay each, or a DQN with --fresh"
            )
        return None

    def steps_per_update(self, algorithm: Any) -> float:
        return self.num_envs // self.workers * rows_of(algorithm)

    def max_lag(self) -> int:
        return 0  # what is played is differentiated with the same parameters

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, each = agents[MAIN], envs_each(self.num_envs, self.workers, self.groups, whose="workers")
        nbytes = parameter_bytes(agent)
        bound = "not bounded" if self.max_staleness is None else f"at most {self.max_staleness} updates"
        return Plan(
            nodes=(
                Node(name="environment", most=self.num_envs),
                Node(name="worker", most=self.workers, hosted=True, worker=GradientWorker, envs=each, groups=self.groups),
                Node(name="learner", worker=ParameterShard),
            ),
            edges=(
                Edge("gradients", "worker", "learner", "request", nbytes, "workers wait"),
                Edge("parameters", "learner", "worker", "newest", nbytes + slow_bytes(agent), "one for each gradient"),
            ),
            facts={
                "steps per update": f"{each * agent.needs.rollout_length:,}",
                "policy lag": "0",
                "staleness": f"{bound}; {self.workers - 1} if all are equally fast",
            },
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            exchange = _Exchange(self, job, snapshot)
            while True:
                exchange.ask_workers()
                exchange.serve(TICK_SECONDS)
                exchange.ask_workers()  # before the yield, too: whoever advances this may take its time
                yield exchange.meters.progress(exchange, snapshot=exchange.snapshot)
        finally:
            job.runtime.close()


class _Exchange:
    """The gradients in flight. All of it belongs to the driver's thread."""

    def __init__(self, topology: AsyncGradients, job: Job, snapshot: PyTree | None) -> None:
        plan = topology.plan(job.agents, job.spec)
        one_device(job, "worker")
        self.job, self.num_workers = job, topology.workers
        self.learner = job.runtime.spawn(
            ParameterShard, job.agent, seed=job.seed, snapshot=snapshot["policies"][MAIN] if snapshot else None,
            name="learner", role="learner",
        )  # fmt: skip
        self.fleet: Fleet[GradientWorker] = spawn_fleet(job, plan.node("worker"), snapshot)
        self.meters = Meters.of(plan, snapshot)
        self.staleness = Staleness(topology.max_staleness, snapshot["staleness"] if snapshot else None)
        self.applying: dict[Future[Applied], tuple[int, Found]] = {}  # -> whose it is
        self.publish(self.learner.call(ParameterShard.pull).result())

    def publish(self, now: Applied) -> None:
        self.params, self.version = now.params, now.version
        self._published = self.job.runtime.put(now.params), self.job.runtime.put(now.slow)

    def ask_workers(self) -> None:
        """Call every idle worker without a gradient in flight, with the newest parameters."""
        self.fleet.tend()
        while who := self.fleet.next_of(self._answered()):
            self.fleet.call(who, who.place, GradientWorker.find, *self._published, self.version)
            self.meters.moved("parameters")

    def _answered(self) -> list[int]:
        owed = {place for place, _ in self.applying.values()}
        return [place for place in range(self.num_workers) if place not in owed]

    def serve(self, seconds: float) -> None:
        """Wait for the first call that ends and process all that have."""
        waiting = [*self.fleet.waiting(), *self.applying]
        ready, _ = self.job.runtime.wait(waiting, self.fleet.within(seconds))
        for place, found in self.fleet.take(ready):
            if found is None:  # its worker is gone: what it played was not counted
                continue
            self.meters.collected(found.collected, edge="gradients")
            if self.staleness.admits(self.version + len(self.applying) - found.version):  # those before it come first
                self.applying[self.learner.call(ParameterShard.apply, found.tree)] = place, found
        for future in [future for future in self.applying if future.done()]:
            _, found = self.applying.pop(future)
            self._learned(future.result(), found)

    def _learned(self, now: Applied, found: Found) -> None:
        self.publish(now)
        update = Update(
            version=now.version, params=now.params, report=found.report | self.staleness.report(), priorities=None,
            trained_steps=found.trained_steps, lag_mean=0.0, lag_max=0,
            busy_seconds=now.busy_seconds, idle_seconds=now.idle_seconds,
        )  # fmt: skip
        self.meters.learned(update)
        self.meters.report["sample_reuse"] = self.meters.trained_steps / max(1, self.meters.env_steps)

    @property
    def policies(self) -> dict[str, Published]:
        return {MAIN: Published(self.params, self.version)}

    def workers(self) -> dict[str, int]:
        return fleet_counts(self.fleet)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters; workers get them with the next parameters, and multiply a discount in themselves."""
        self.learner.call(ParameterShard.tune, values).result()
        self.publish(self.learner.call(ParameterShard.pull).result())

    def inspect(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> PyTree:
        """Drain: what was asked for is played and applied, so that no step is lost and none is counted twice."""
        while self.fleet.busy or self.applying:
            self.fleet.tend()
            self.serve(TICK_SECONDS)
        return {
            "policies": {MAIN: self.learner.call(ParameterShard.snapshot).result()},
            "workers": {"worker": self.fleet.gather(GradientWorker.snapshot)},
            "lives": {"worker": self.fleet.roster.lives},
            "meters": self.meters.snapshot(),
            "staleness": self.staleness.snapshot(),
        }
