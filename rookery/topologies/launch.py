"""Launch a plan: spawn its learners and fleets, and open its tables. What a topology then drives is in sight here.

    seats = {policy: Seat}       the learner of a policy, what it has published, and who is told of it
    fleets = {node: Fleet}       workers that act or refine, replaced when they are lost
    tables = {node: Table}       what stands between them
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rookery.data.dataset import Dataset
from rookery.data.interface import Table
from rookery.data.refined import Refined
from rookery.data.replay import batch_specs, table_for
from rookery.envs.pools.restarts import GOOD_STEPS
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle
from rookery.runtime.roster import Life, Roster, Terms
from rookery.topologies.job import Job, Published
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.types import EnvPool, Needs, PyTree, Rollout
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.absorbing import Absorbed
from rookery.workers.learning.auxiliary_worker import AuxiliaryWorker
from rookery.workers.learning.learner import Learner, Update
from rookery.workers.learning.learners import AnyLearner, Learners
from rookery.workers.learning.refiner import Refiner
from rookery.workers.replay.shards import Shards

TOLD_OF_TARGETS = (Refiner, AuxiliaryWorker)  # workers that step no environment, and are given what is slow as well
LIFE = 1 << 12  # incarnations that each life of a worker may use up: environments are rebuilt within a life, too


class Launched:
    """The learners, fleets and tables of a plan. All of it belongs to the driver's thread."""

    def __init__(
        self, job: Job, plan: Plan, snapshot: PyTree | None, *, pools: Mapping[str, Callable[[], EnvPool]] | None = None
    ) -> None:
        """pools: of a node that does not simply make its own environments (central inference), by its name."""
        self.job, self.plan = job, plan.checked()
        self.losses = {"learners_lost": 0, "updates_lost": 0}
        policies = snapshot["policies"] if snapshot else {}
        self.seats = {
            node.agent: Seat(job, plan, node, policies.get(node.agent), self.losses) for node in plan.of_role("learner")
        }
        self.fleets: dict[str, Fleet[Any]] = {}
        for node in plan.nodes:  # they start while the learners do
            if node.worker is not None and node.role != "learner":
                make_pool = (pools or {}).get(node.name)
                self.fleets[node.name] = spawn_fleet(job, node, snapshot, self._greet(node), make_pool=make_pool)
        self.tables = {node.name: self._table(node, snapshot) for node in plan.of_role("table", "shard")}
        for seat in self.seats.values():
            seat.start(plan, self.fleets)

    def _greet(self, node: Node) -> Callable[[Handle[Any]], None]:
        seat = self.seats[node.agent]
        return lambda worker: seat.greet(worker, node.worker)

    def _table(self, node: Node, snapshot: PyTree | None) -> Table:
        table = open_table(self.job, self.plan, node)
        if snapshot is not None:
            table.restore(snapshot["tables"][node.name])
        return table

    # --------------------------------------------------------------------------------- as meters.Driven asks for it

    @property
    def policies(self) -> dict[str, Published]:
        return {name: seat.published for name, seat in self.seats.items()}

    def workers(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, fleet in self.fleets.items():
            lost = "batches_lost" if self.plan.node(name).worker is Refiner else "rollouts_lost"
            for name, count in fleet_counts(fleet, lost=lost).items():
                counts[name] = counts.get(name, 0) + count
        return counts | (self.losses if self.job.learners else {})

    def inspect(self) -> dict[str, float]:
        return self.seats[MAIN].learner.call(AnyLearner.inspect).result()

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters of the main policy; of a discount, its tables are told as well."""
        self.seats[MAIN].learner.call(AnyLearner.tune, values).result()
        if "discount" in values:
            for node in self.plan.of_role("table", "shard"):
                if node.agent == MAIN:
                    self.tables[node.name].discount = float(values["discount"])

    def snapshot(self, meters: Meters) -> PyTree:
        """Gather the whole state as a tree of numpy arrays; nothing may be in flight."""
        collecting = [name for name in self.fleets if self.plan.node(name).worker not in TOLD_OF_TARGETS]
        return {
            "policies": {name: seat.learner.call(AnyLearner.snapshot).result() for name, seat in self.seats.items()},
            "workers": {name: self.fleets[name].gather(AnyCollector.snapshot) for name in collecting},
            "lives": {name: fleet.roster.lives for name, fleet in self.fleets.items()},
            "meters": meters.snapshot(),
            "tables": {name: table.snapshot() for name, table in self.tables.items()},
        }

    def futures(self) -> list[Any]:
        """Collect the calls to wait for, of fleets and tables."""
        return [
            *(future for fleet in self.fleets.values() for future in fleet.waiting()),
            *(future for table in self.tables.values() for future in table.pending()),
        ]

    def within(self, seconds: float) -> float:
        return min([seconds, *(fleet.within(seconds) for fleet in self.fleets.values())])

    def waiting(self) -> str | None:
        """Say which side a table holds back, and what for; None: neither."""
        return next(filter(None, (table.waiting() for table in self.tables.values())), None)


class Seat:
    """A policy of a job: its learner, what it has published last, and the fleets that act or refine with it."""

    def __init__(self, job: Job, plan: Plan, node: Node, snapshot: PyTree | None, losses: dict[str, int]) -> None:
        self.job, self.name, self.node = job, node.agent, node
        self.agent = job.agents[node.agent]
        kinds = {other.worker for other in plan.nodes if other.agent == node.agent}
        self._refines, self._shares_slow = Refiner in kinds, not kinds.isdisjoint(TOLD_OF_TARGETS)
        self.learner = self._spawn(snapshot, losses)
        self._followers: list[tuple[Edge, Fleet[Any], Any]] = []  # and the class of its workers
        self._shared: tuple[Any, Any] = None, None  # params and slow, as workers are given them
        self._put: Callable[[PyTree], Any] = lambda params: params

    def _spawn(self, snapshot: PyTree | None, losses: dict[str, int]) -> Handle[AnyLearner]:
        """Spawn a Learner in this process or, with --learners, a Learners, which spawns its ranks itself."""
        job, name = self.job, self.node.name
        seed = seed_of(job, self.name)
        slow: dict[str, Any] = {"shares_slow": True} if self._shares_slow else {}
        if job.learners is None:
            return job.runtime.spawn(
                Learner, self.agent, seed=seed, snapshot=snapshot, devices=job.devices, name=name, role="learner", **slow
            )
        return job.runtime.spawn(
            Learners, job.runtime, self.agent, seed=seed, count=job.learners, devices=job.devices, snapshot=snapshot,
            losses=losses, name="learners", **slow,
        )  # fmt: skip

    def start(self, plan: Plan, fleets: Mapping[str, Fleet[Any]]) -> None:
        """Wait for the learner, publish what it starts with, and let it compile its update meanwhile."""
        for edge in plan.out_of(self.node.name, "newest"):
            if edge.target in fleets:
                self._followers.append((edge, fleets[edge.target], plan.node(edge.target).worker))
                if plan.node(edge.target).hosted:
                    self._put = self.job.runtime.put
        self.params, self.version = self.learner.call(AnyLearner.published).result()
        slow = self.learner.call(AnyLearner.slow).result() if self._shares_slow else None
        self._shared = self._put(self.params), None if slow is None else self._put(slow)
        if not self._refines:  # else the shapes are those that refining gives
            self.learner.call(AnyLearner.warm_up, batch_shapes(self.job, plan, self.node))

    @property
    def published(self) -> Published:
        return Published(self.params, self.version)

    def greet(self, worker: Handle[Any], kind: Any) -> None:
        """Send a new worker, of that class, the newest parameters. A rollout that is asked for then is written with them; of
        other calls only the order among themselves is certain."""
        if kind in TOLD_OF_TARGETS:
            worker.call(*self._told(kind))
        else:
            worker.now(*self._told(kind))

    def _told(self, kind: Any) -> tuple[Any, ...]:
        """Return the call that tells a worker of that class of the newest parameters."""
        if kind in TOLD_OF_TARGETS:
            return kind.publish, *self._shared, self.version
        return AnyCollector.publish, self._shared[0], self.version

    def publish(self, update: Update, meters: Meters) -> None:
        """Broadcast the newest parameters; a collector reads them at the start of its next rollout."""
        self._hold(update)
        for edge, fleet, kind in self._followers:
            meters.moved(edge.name, fleet.publish(*self._told(kind)))

    def publish_beside(self, absorbed: Absorbed, meters: Meters) -> None:
        """Tell those who work beside the learner of a step of theirs; collectors hear of it with the next update."""
        if absorbed.version < self.version:  # an update that came after it was told first
            return
        self._hold(absorbed)
        for edge, fleet, kind in self._followers:
            if kind is AuxiliaryWorker:
                meters.moved(edge.name, fleet.publish(*self._told(kind)))

    def _hold(self, newest: Update | Absorbed) -> None:
        self.params, self.version = newest.params, newest.version
        self._shared = self._put(newest.params), None if newest.slow is None else self._put(newest.slow)


def seed_of(job: Job, policy: str) -> int:
    """Derive the seed of a policy's learner and workers: the job's own for the main one, others beside it."""
    return job.seed + list(job.agents).index(policy)


# ------------------------------------------------------------------------------------------------------- fleets


def spawn_fleet(
    job: Job, node: Node, snapshot: PyTree | None, greet: Callable[[Handle[Any]], None] = lambda worker: None, *,
    make_pool: Callable[[], EnvPool] | None = None, **options: Any,
) -> Fleet[Any]:  # fmt: skip
    """Spawn the workers of a node, those that step environments with a pool each. They start at once.

    A life that is in the snapshot resumes from it; a replacement begins anew, with streams of its own. options: for the
    worker's constructor."""
    worker, agent, most = node.worker, job.agents[node.agent], node.most
    assert worker is not None, node
    saved: Sequence[PyTree | None] = snapshot["workers"].get(node.name, [None] * most) if snapshot else [None] * most
    if len(saved) != most:
        flag = "--collectors " if node.role == "collector" else ""
        of_each = "" if flag else f" of each {node.role}"
        raise ValueError(f"the checkpoint was made with {flag}{len(saved)}{of_each}, not {most}: use that number")
    lives = list(map(int, snapshot["lives"][node.name])) if snapshot else [0] * most
    steps, seed = worker not in TOLD_OF_TARGETS, seed_of(job, node.agent)
    make_pool = make_pool or functools.partial(job.make_pool, node.envs, node.groups)

    def start(life: Life) -> Handle[Any]:
        own: dict[str, Any] = {"index": life.place, "seed": seed, "incarnation": life.number * LIFE}
        if steps:
            own |= {"num_workers": most, "env_restarts": job.env_restarts}
            own["snapshot"] = saved[life.place] if life.number == lives[life.place] else None
        return job.runtime.spawn(
            worker, agent, *((make_pool,) if steps else ()), name=f"{node.name}-{life.place}", role=node.role, **own, **options
        )

    patience = job.runtime.patience if node.hosted else None  # what lives with the driver may wait for others
    good_calls = GOOD_STEPS / agent.needs.rollout_length if node.role in ("collector", "inference") else 1.0
    terms = Terms(
        least=node.span[0], most=most, in_flight=node.in_flight, call_deadline=patience, start_deadline=patience,
        good_calls=good_calls,
    )  # fmt: skip
    fleet = Fleet(job.runtime, node.role, Roster(terms, lives), start, greet)
    fleet.tend()
    return fleet


def one_device(job: Job, role: str) -> None:
    """Refuse several devices where every worker computes on its own."""
    if job.devices > 1:
        raise ValueError(f"--devices {job.devices}: each {role} computes on one device; use --devices 1, or Sync")


def fleet_counts(fleet: Fleet, lost: str = "calls_lost") -> dict[str, int]:
    """Count the workers, and what was lost since the start."""
    roster, role = fleet.roster, "collector" if fleet.role == "inference" else fleet.role
    return {f"{role}s": roster.count("working", "leaving"), f"{role}s_lost": roster.lost_workers, lost: roster.lost_calls}


# -------------------------------------------------------------------------------------------------------- tables


def open_table(job: Job, plan: Plan, node: Node) -> Table:
    """Open a table: a queue, a replay, one in shards where the runtime has them, a dataset, or refined batches."""
    agent, needs = job.agents[node.agent], asked_of(job.agents[node.agent].needs, node)
    prefetch = sum(edge.ahead for edge in plan.out_of(node.name)) - 1  # batches that are out at once, but one
    writers = next(plan.into(node.name, "queue"), None) or next(plan.into(node.name, "table"), None)
    if writers is not None and plan.node(writers.source).worker is Refiner:
        return Refined(slots=node.slots, uses=node.uses)
    if writers is None:
        if job.shown is None:
            raise ValueError(f"nobody writes to {node.name}, and there is no file to read it from: give demonstrations")
        return Dataset(rollout_specs(agent, job.spec, 1), needs, job.shown, slots=1 + prefetch, seed=job.seed)
    shown = job.shown if needs.table is not None and needs.table.demo_ratio else None  # else it has a table of its own
    specs, count = rollout_specs(agent, job.spec, node.envs), node.writers
    runtime, apart = job.runtime, node.hosted and job.runtime.apart("shard") and job.runtime.apart("collector")
    if needs.table is not None and shown is None and apart:
        slots = 1 + prefetch + node.ahead
        return Shards(
            runtime, needs, specs, collectors=count, writers=count * writers.ahead, slots=slots, seed=job.seed
        )  # fmt: skip
    return table_for(
        needs, specs, collectors=count, in_flight=writers.ahead, parts=node.parts, slots=node.slots, prefetch=prefetch,
        seed=job.seed, stored=stays_put(job, plan.node(writers.source)), shown=shown,
    )  # fmt: skip


def asked_of(needs: Needs, node: Node) -> Needs:
    """Return what an agent needs of a table, where a plan has several for its batches: as much of each as the node says."""
    if not node.batch:
        return needs
    return needs._replace(table=needs.table._replace(batch_size=node.batch, ratio=node.ratio, demo_ratio=0.0))


def stays_put(job: Job, writer: Node) -> bool:
    """Return whether rollouts stay where they were made, because the learners fetch them from there."""
    return job.learners is not None and job.runtime.stores and writer.worker is Collector


def batch_shapes(job: Job, plan: Plan, learner: Node) -> Rollout:
    """Derive the shapes of the rollouts that a learner is given; refuse what cannot be shared evenly."""
    agent, node = job.agents[learner.agent], plan.node(next(plan.into(learner.name)).source)
    shapes = batch_specs(agent.needs, rollout_specs(agent, job.spec, node.envs or 1), node.parts)
    if problem := uneven(shapes.reward.shape[1], job.learners, job.devices):
        raise ValueError(problem)
    return shapes


def uneven(columns: int, learners: int | None, devices: int) -> str | None:
    """Explain why a batch cannot be split evenly over learners and devices; None: it can."""
    asked = [("learners", learners or 1), ("devices", devices)]
    if columns % ((learners or 1) * devices) == 0:
        return None
    by = " ".join(f"--{name} {count}" for name, count in asked if count > 1)
    return f"a batch of {columns} columns cannot be shared by {by}: make it a multiple"


