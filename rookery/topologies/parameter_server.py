"""ParameterServer: bundles act, replay and differentiate; shards of the parameters apply (GORILA, Nair et al. 2015).

              parameters of all shards, pulled every so many gradients
        ┌──────────────────────────────────────────────────────────────┐
        ▼                                                              │
    bundle × W ──its part of each gradient──▶ shard × S, applied on arrival
    └ collector [T, B/W] ──▶ replay ──batch──▶ loss       (too old, or an outlier: discarded and counted)

A shard owns some leaves of the parameters and of the target network, with their optimizer, and applies gradients to them
independently: what a bundle pulls may mix versions. Targets are refreshed by the shards' own count of updates. Bundles are
a fleet; one that is lost takes its replay and the gradient that it owed with it. Shards live in the driver's process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax

from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.ranges import Count, Natural, NotNegative, Workers
from rookery.runtime.fleet import Fleet
from rookery.runtime.roster import Life
from rookery.topologies.compatibility import rows_of, shipped_gradients
from rookery.topologies.job import TICK_SECONDS, Job, Progress, Published
from rookery.topologies.launch import fleet_counts, one_device, spawn_fleet
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.staleness import Outliers, Staleness
from rookery.topologies.wiring import envs_each, parameter_bytes, replay_facts, slow_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.bundle import Bundle
from rookery.workers.learning.gradient_worker import Found
from rookery.workers.learning.learner import Update
from rookery.workers.learning.parameter_shard import Applied, ParameterShard, joined, owned, trained, whole_state
from rookery.workers.learning.tree_paths import to_flat


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """Bundles of actor, replay and learner send gradients to shards of the parameters."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 16
    """Environments in all."""
    workers: Workers = 4
    """Bundles, each with its share of the environments and a replay of its own."""
    shards: Workers = 2
    """Shards of the parameters; each applies its part of every gradient independently."""
    groups: Workers = 1
    """Groups of environments per bundle: one steps while the policy acts for another."""
    pull_every: Count = 1
    """Gradients that a bundle computes between two pulls of the newest parameters."""
    max_staleness: Natural | None = None
    """Discard (and count) gradients older than this many updates; None: none."""
    outlier_deviations: NotNegative | None = None
    """Discard (and count) gradients whose loss is this many standard deviations above the running mean; None: none."""

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        return shipped_gradients(agent, spec)

    def steps_per_update(self, algorithm: Any) -> float:
        steps = getattr(algorithm, "steps_per_update", None)
        return self.num_envs // self.workers * rows_of(algorithm) if steps is None else steps

    def max_lag(self) -> int:
        return 0  # without a replay, what is played is differentiated with the same parameters

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, each = agents[MAIN], envs_each(self.num_envs, self.workers, self.groups, whose="bundles")
        leaves = len(jax.tree.leaves(trained(agent, jax.eval_shape(agent.init, jax.random.key(0)).params)))
        if self.shards > leaves:
            raise ValueError(f"--shards {self.shards}: the network has {leaves} leaves, and each shard owns at least one")
        specs, whole = rollout_specs(agent, spec, each), parameter_bytes(agent)
        own = replay_facts(agent, spec, envs_per_collector=each, num_envs=each)
        edges = (
            Edge("rollouts", "bundle", "its replay", "table", arrays.nbytes(specs), "the oldest go"),
            Edge(
                "batches", "its replay", "bundle", "request", arrays.nbytes(batch_specs(agent.needs, specs, 1)), "one at a time"
            ),
            Edge("gradients", "bundle", "shard", "request", whole // self.shards, "bundles wait"),
            Edge("parameters", "shard", "bundle", "newest", (whole + slow_bytes(agent)) // self.shards, "asked for when due"),
        )  # fmt: skip
        bound = "not bounded" if self.max_staleness is None else f"at most {self.max_staleness} updates"
        return Plan(
            nodes=(
                Node(name="environment", most=self.num_envs),
                Node(name="bundle", most=self.workers, hosted=True, worker=Bundle, envs=each, groups=self.groups),
                Node(name="its replay", role="part of a bundle", most=self.workers),
                Node(name="shard", role="parameter shard", most=self.shards, worker=ParameterShard),
            ),
            edges=edges,
            facts={"steps per update": f"{each * agent.needs.rollout_length:,}", "policy lag": "0"}
            | own
            | ({"replay": f"{self.workers} × {own['replay']}"} if own else {})
            | {"staleness": bound, "parameters pulled": f"every {self.pull_every} gradients of a bundle"},
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            server = _Server(self, job, snapshot)
            while True:
                server.ask_bundles()
                server.serve(TICK_SECONDS)
                server.ask_bundles()  # before the yield, too: whoever advances this may take its time
                yield server.meters.progress(server, snapshot=server.snapshot)
        finally:
            job.runtime.close()


class Flight(NamedTuple):
    """A gradient on its way to the shards."""

    number: int  # the version of a shard that has applied it
    place: int  # whose it is
    found: Found
    parts: list[Future[Applied]]  # one for each shard


class _Server:
    """The gradients and parameters in flight. All of it belongs to the driver's thread."""

    def __init__(self, topology: ParameterServer, job: Job, snapshot: PyTree | None) -> None:
        plan = topology.plan(job.agents, job.spec)
        one_device(job, "bundle")
        self.topology, self.job = topology, job
        empty = {"policies": {MAIN: None}, "staleness": None, "outliers": None, "pulls": {"seconds": 0.0, "bytes": 0}}
        saved: PyTree = snapshot or empty
        self.shards = [
            job.runtime.spawn(
                ParameterShard, job.agent, seed=job.seed, index=index, num_shards=topology.shards,
                snapshot=saved["policies"][MAIN], name=f"shard-{index}", role="shard",
            )
            for index in range(topology.shards)
        ]  # fmt: skip
        node = plan.node("bundle")
        self.fleet: Fleet[Bundle] = spawn_fleet(job, node, snapshot, spec=job.spec, num_envs=node.envs)
        self.meters = Meters.of(plan, snapshot)
        self.staleness = Staleness(topology.max_staleness, saved["staleness"])
        self.outliers = Outliers(topology.outlier_deviations, saved["outliers"])
        self.pull_seconds, self.pull_bytes = float(saved["pulls"]["seconds"]), int(saved["pulls"]["bytes"])
        self.flights: deque[Flight] = deque()
        self.newest: list[Applied] = [shard.call(ParameterShard.pull).result() for shard in self.shards]
        self.accepted = self.version  # gradients that were, or will be, applied
        self._published: tuple[list[int], Any, Any] = [], None, None
        self._pulled: dict[int, tuple[int, int]] = {}  # place -> the life that has parameters, gradients since it took them
        self._nbytes = parameter_bytes(job.agent) + slow_bytes(job.agent)

    @property
    def params(self) -> PyTree:
        return joined([shard.params for shard in self.newest])

    @property
    def version(self) -> int:
        """The number of updates that every shard has applied."""
        return min(shard.version for shard in self.newest)

    def ask_bundles(self) -> None:
        """Call every idle bundle; one that is to pull parameters waits until its own gradient is applied."""
        self.fleet.tend()
        owed = {flight.place for flight in self.flights}
        for place in range(self.topology.workers):
            due = self._pulled.get(place, (-1, 0))[1] >= self.topology.pull_every
            if (due and place in owed) or (who := self.fleet.next_of([place])) is None:
                continue
            if due or self._pulled.get(place, (-1, 0))[0] != who.number:  # a new life has none
                self._pull(who)
            else:
                self.fleet.call(who, place, Bundle.work, None, None, 0)

    def _pull(self, who: Life) -> None:
        """Send a bundle the newest parameters of all shards, whatever their versions."""
        begin = time.perf_counter()
        versions = [shard.version for shard in self.newest]
        if versions != self._published[0]:
            slow = joined([shard.slow for shard in self.newest])
            self._published = versions, self.job.runtime.put(self.params), self.job.runtime.put(slow)
        self.fleet.call(who, who.place, Bundle.work, *self._published[1:], min(versions))
        self._pulled[who.place] = who.number, 0
        self.pull_seconds += time.perf_counter() - begin
        self.pull_bytes += self._nbytes
        self.meters.moved("parameters", len(self.shards))

    def serve(self, seconds: float) -> None:
        """Wait for the first call that ends and process all that have."""
        applying = [part for flight in self.flights for part in flight.parts if not part.done()]
        ready, _ = self.job.runtime.wait([*self.fleet.waiting(), *applying], self.fleet.within(seconds))
        for place, found in self.fleet.take(ready):
            if found is not None:  # else its bundle is gone: what it played was not counted
                self._arrived(place, found)
        for flight in self.flights:
            for index, part in enumerate(flight.parts):
                if part.done() and (now := part.result()).version > self.newest[index].version:
                    self.newest[index] = now
        while self.flights and self.version >= self.flights[0].number:  # seen above: a part may have ended since
            self._learned(self.flights.popleft())

    def _arrived(self, place: int, found: Found) -> None:
        if found.collected is not None:
            self.meters.collected(found.collected)
        if found.tree is None:  # its replay is being filled
            return
        self.meters.moved("batches")
        life, count = self._pulled[place]
        self._pulled[place] = life, count + 1
        if not self.outliers.admits(found.report) or not self.staleness.admits(self.accepted - found.version):
            return
        self.accepted += 1
        self.meters.moved("gradients", len(self.shards))
        cut = [owned(self.job.agent, found.tree, found.tree, index, len(self.shards)) for index in range(len(self.shards))]
        parts = [shard.call(ParameterShard.apply, part) for shard, part in zip(self.shards, cut)]
        self.flights.append(Flight(self.accepted, place, found, parts))

    def _learned(self, flight: Flight) -> None:
        """Count a gradient that every shard has applied."""
        found, done = flight.found, [part.result() for part in flight.parts]
        update = Update(
            version=done[0].version, params=None, report=found.report, priorities=None, trained_steps=found.trained_steps,
            lag_mean=found.lag_mean, lag_max=found.lag_max, busy_seconds=max(shard.busy_seconds for shard in done),
            idle_seconds=min(shard.idle_seconds for shard in done),
        )  # fmt: skip
        self.meters.learned(update)
        versions = [shard.version for shard in self.newest]
        self.meters.report |= (
            self.staleness.report()
            | self.outliers.report()
            | {
                "sample_reuse": self.meters.trained_steps / max(1, self.meters.env_steps),
                "shard_skew": float(max(versions) - min(versions)),
                "pull_seconds": self.pull_seconds,
                "pull_megabytes": self.pull_bytes / 1e6,
            }
        )

    @property
    def policies(self) -> dict[str, Published]:
        return {MAIN: Published(self.params, self.version)}

    def workers(self) -> dict[str, int]:
        return fleet_counts(self.fleet)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters on every shard; bundles get them when they next pull."""
        for shard in self.shards:
            shard.call(ParameterShard.tune, values).result()
        self.newest = [shard.call(ParameterShard.pull).result() for shard in self.shards]
        self._published = [], None, None

    def inspect(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> PyTree:
        """Drain: gradients in flight arrive and are applied, so that no step is lost and none is counted twice."""
        while self.fleet.busy or self.flights:
            self.fleet.tend()
            self.serve(TICK_SECONDS)
        like = jax.eval_shape(self.job.agent.init, jax.random.key(0))
        state = whole_state(self.job.agent, [shard.call(ParameterShard.state).result() for shard in self.shards], like)
        return {
            "policies": {MAIN: {"state": to_flat(state), "version": self.version}},
            "workers": {"bundle": self.fleet.gather(Bundle.snapshot)},
            "lives": {"bundle": self.fleet.roster.lives},
            "meters": self.meters.snapshot(),
            "staleness": self.staleness.snapshot(),
            "outliers": self.outliers.snapshot(),
            "pulls": {"seconds": self.pull_seconds, "bytes": self.pull_bytes},
        }
