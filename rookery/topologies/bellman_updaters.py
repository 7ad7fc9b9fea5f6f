"""BellmanUpdaters: targets are computed beside the trainer and not in it (QT-Opt, Kalashnikov et al. 2018).

                     parameters (newest wins)
        ┌────────────────────────────────────────────────────────────────────────────────┐
        ▼                                                                                │
    collector × C ──rollouts──▶ replay ──┐                                               │
                               (limited) ├──▶ updater × R ──▶ labelled ──batch──▶ learner
      logged experience ──▶ logged ──────┘         ▲         (bounded; each `uses` times)│
      (a file, only read)  (a share of each batch) └─────────────────────────────────────┘
                                                     target networks (newest wins)

Each batch of an updater has an exact share of logged experience (`--demo-ratio`), spread evenly over it. An updater labels it
by the target networks that it was sent last, so that several versions of them are at work at once; how old they are, and
what that makes of the labels when they are learned from, are metrics (`refined/...`). When something is full: a full replay
makes collectors wait, a full table of labelled batches the updaters, an empty one the learner.

Collectors and updaters are fleets, and every number is an option of its own. An updater that is lost takes nothing with it:
what it was labelling stays in its tables, and is drawn again. The trainer is one learner or, with `--learners`, several that
share each batch and add their gradients up. That is synchronous: the paper's trainers push gradients of batches of their own
to a parameter server, asynchronously.

Differs from the paper: both tables live with the driver, and what is drawn passes through it; updaters are sent the newest
target networks after each update, not every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from rookery.data import arrays
from rookery.data.config import TableSpec
from rookery.data.replay import batch_specs
from rookery.ranges import Count, Range, Workers
from rookery.runtime.roster import span
from rookery.topologies.actor_learner import Pipeline
from rookery.topologies.compatibility import fixed_rollouts, steps_per_batch
from rookery.topologies.job import Job, Progress
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.wiring import envs_each, parameter_bytes, replay_facts, slow_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner
from rookery.workers.learning.refiner import Refiner

UNBOUNDED = 2**31 - 1  # updates: what is learned from is as old as the replay


class TableShares(NamedTuple):
    """What is drawn for a batch of the learner's."""

    collected: int  # columns
    logged: int
    ratio: float  # samples per insert of what is collected

    @property
    def total(self) -> int:
        return self.collected + self.logged


@dataclass(frozen=True, kw_only=True)
class BellmanUpdaters:
    """Collectors fill a replay, updaters label what is drawn from it and from logs, a learner fits the labels."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 8
    """Environments in all."""
    collectors: Workers | str = 1
    """Collectors (robots): a number, or a range such as 2..16: as many as the cluster has room for, growing and shrinking."""
    groups: Workers = 1
    """Groups of environments per collector: one steps while the policy acts for another."""
    in_flight: Annotated[int, Range(1, 256)] = 2
    """Rollouts requested ahead from each collector, so that it never waits for the driver."""
    updaters: Workers | str = 2
    """Bellman updaters, which label batches: a number or a range, as for collectors."""
    uses: Annotated[int, Range(1, 256)] = 1
    """Updates that each labelled batch is learned from."""
    prefetch: Annotated[int, Range(0, 256)] = 1
    """Batches queued at the learner while it computes."""

    steps_per_update = steps_per_batch

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        if agent.refine is None or agent.needs.table is None:
            found = fixed_rollouts(self, agent, spec)
            return found or "its update has no targets that others could compute beforehand, as those of QT-Opt: use Sync"
        return None

    def max_lag(self) -> int:
        return UNBOUNDED

    def slots(self) -> int:
        """Count the labelled batches at most: two of each updater, and those that the learner holds."""
        return 2 * span(self.updaters)[1] + self.prefetch + 1

    def shares(self, table: TableSpec) -> TableShares:
        """Divide a batch among the tables that it is drawn from."""
        logged = round(table.batch_size * table.demo_ratio)
        if (table.demo_ratio and not logged) or logged == table.batch_size:
            raise ValueError(f"--demo-ratio {table.demo_ratio:g} of {table.batch_size} columns: each table gives at least one")
        updates_per_insert = table.samples_per_insert / (table.batch_size * (1.0 - table.demo_ratio))
        collected = table.batch_size - logged
        return TableShares(collected, logged, updates_per_insert * collected / self.uses)

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, (least, most), updaters = agents[MAIN], span(self.collectors), span(self.updaters)
        each, shares = envs_each(self.num_envs, most, self.groups), self.shares(agent.needs.table)
        specs, parameters = rollout_specs(agent, spec, each), parameter_bytes(agent)
        nbytes = lambda columns: arrays.nbytes(batch_specs(_drawing(agent, columns, shares).needs, specs, 1))
        tables = {"replay": shares.collected} | ({"logged": shares.logged} if shares.logged else {})
        drawn = updaters[1] * 2  # batches that are being labelled, or wait for it
        prioritized = agent.needs.table.config.selector == "prioritized"
        nodes = [
            Node(name="environment", most=self.num_envs),
            Node(
                name="collector", least=least, most=most, hosted=True, worker=Collector, envs=each, groups=self.groups,
                in_flight=self.in_flight,
            ),
            Node(name="replay", role="table", envs=each, writers=most, batch=shares.collected, ratio=shares.ratio),
            *(Node(name=name, role="table", batch=columns) for name, columns in tables.items() if name == "logged"),
            Node(name="updater", least=updaters[0], most=updaters[1], hosted=True, worker=Refiner, in_flight=2),
            Node(name="labelled", role="table", slots=self.slots(), uses=self.uses),
            Node(name="learner", worker=Learner),
        ]  # fmt: skip
        edges = [
            Edge("rollouts", "collector", "replay", "table", arrays.nbytes(specs), "collectors wait", self.in_flight),
            *(
                Edge(f"from_{name}", name, "updater", "request", nbytes(columns), "updaters wait", drawn)
                for name, columns in tables.items()
            ),
            Edge("labels", "updater", "labelled", "queue", nbytes(shares.total), "updaters wait", self.slots()),
            Edge("batches", "labelled", "learner", "queue", nbytes(shares.total), "stay queued", 1 + self.prefetch),
            Edge("parameters", "learner", "collector", "newest", parameters, "newest wins"),
            Edge("targets", "learner", "updater", "newest", parameters + slow_bytes(agent), "newest wins"),
            *(
                Edge(f"priorities_{name}", "learner", name, "request", 4 * columns, "those of evicted items are ignored")
                for name, columns in tables.items()
                if prioritized
            ),
        ]
        facts = replay_facts(_drawing(agent, shares.collected, shares), spec, envs_per_collector=each, num_envs=self.num_envs)
        steps = shares.collected / (shares.ratio * self.uses)
        return Plan(
            nodes=tuple(nodes),
            edges=tuple(edges),
            facts=facts
            | {"steps per update": f"{steps:,.1f}"}
            | {"labels": f"used {self.uses} times each, within {self.slots() * self.uses} updates"}
            | ({"logged experience": f"{shares.logged} of {shares.total} columns of a batch"} if shares.logged else {}),
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            plan = self.plan(job.agents, job.spec)
            yield from Pipeline(Launched(job, plan, snapshot), Meters.of(plan, snapshot)).run()
        finally:
            job.runtime.close()


def _drawing(agent: Agent, columns: int, shares: TableShares) -> Any:
    """Return the agent as if its batches had so many columns, of which none is logged."""
    table = agent.needs.table._replace(batch_size=columns, ratio=shares.ratio, demo_ratio=0.0)
    return agent._replace(needs=agent.needs._replace(table=table))
