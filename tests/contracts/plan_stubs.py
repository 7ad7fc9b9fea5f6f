"""Topologies of the issues to come, each a plan and the ordinary loop: QT-Opt, reanalyze, a league, PBT over IMPALA, BC.

They are as short as a plan allows; what they prove is that the real engine (Launched, Pipeline, Collector, Replay, Learner,
Fleet) drives them: nothing here steps an environment, stores a row or makes an update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.runtime.local import LocalRuntime
from rookery.topologies.actor_learner import ActorLearner, Pipeline
from rookery.topologies.compatibility import fixed_rollouts, steps_per_batch
from rookery.topologies.job import Job, Progress, Published
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.wiring import loop, named, parameter_bytes, slow_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner
from rookery.workers.learning.refiner import Refiner


def piped(topology: Any, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
    """Launch the plan of a topology and drive it."""
    plan = topology.plan(job.agents, job.spec)
    try:
        yield from Pipeline(Launched(job, plan, snapshot), Meters.of(plan, snapshot)).run()
    finally:
        job.runtime.close()


@dataclass(frozen=True, kw_only=True)
class Refining:
    """QT-Opt's Bellman updaters, MuZero's reanalyze: collector → table → refiner × R → queue, each used k times → learner."""

    overlaps: ClassVar[bool] = True
    num_envs: int = 4
    collectors: int = 1
    refiners: int = 2
    slots: int = 4  # refined batches on their way or waiting
    uses: int = 1

    refuses, steps_per_update = fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        return 0

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent = agents[MAIN]
        each = self.num_envs // self.collectors
        collectors = Node(name="collector", most=self.collectors, hosted=True, worker=Collector, envs=each)
        (table, learner), edges = loop(
            agent, spec, collectors, columns=each, writers=self.collectors, ahead=1, parts=1, slots=1, prefetch=0,
            shard_ahead=0, when_full="collectors wait",
        )  # fmt: skip
        rollouts, batches, parameters, *priorities = edges
        table = dataclasses.replace(table, role="table", hosted=False)  # one, not in shards: keys go back to it
        refiners = Node(name="refiner", most=self.refiners, hosted=True, worker=Refiner)
        refined = Node(name="refined", role="table", slots=self.slots, uses=self.uses)
        nbytes, published = batches.nbytes, parameter_bytes(agent) + slow_bytes(agent)
        return Plan(
            nodes=(Node(name="environment", most=self.num_envs), collectors, table, refiners, refined, learner),
            edges=(
                rollouts,
                parameters,
                *priorities,
                Edge("drawn", "table", "refiner", "request", nbytes, "one for each idle refiner", self.refiners),
                Edge("refined", "refiner", "refined", "queue", nbytes, "refiners wait", self.slots),
                Edge("batches", "refined", "learner", "queue", nbytes, "stay queued"),
                Edge("targets", "learner", "refiner", "newest", published, "newest wins"),
            ),
            facts={},
        )

    drive = piped


@dataclass(frozen=True, kw_only=True)
class League:
    """Three learners, each with its own collectors, queue and version; all in one job."""

    overlaps: ClassVar[bool] = True
    policies: ClassVar[tuple[str, ...]] = (MAIN, "exploiter", "league-exploiter")
    num_envs: int = 4  # of each
    collectors: int = 1

    refuses, steps_per_update = fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        return 4

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        nodes: list[Node] = []
        edges: list[Edge] = []
        for policy in self.policies:
            home = Node(
                name=named("collector", policy), role="collector", agent=policy, hosted=True, worker=Collector,
                envs=self.num_envs, in_flight=2,
            )  # fmt: skip
            its_nodes, its_edges = loop(
                agents[policy], spec, home, columns=self.num_envs, writers=1, ahead=2, parts=1, slots=4, prefetch=1,
                shard_ahead=0, when_full="its collectors wait",
            )  # fmt: skip
            nodes += [home, *its_nodes]
            edges += its_edges
        return Plan((Node(name="environment", most=3 * self.num_envs), *nodes), tuple(edges), {})

    drive = piped


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Behavioural cloning, offline RL: dataset → learner. Nobody collects; a run ends by updates.

    With refiners: dataset → refiner × R → queue → learner, one batch at a time (QT-Opt's log replay in lock-step)."""

    overlaps: ClassVar[bool] = False
    num_envs: int = 1
    refiners: int = 0

    refuses = fixed_rollouts

    def steps_per_update(self, algorithm: Any) -> float:
        return 1.0

    def max_lag(self) -> int:
        return 0

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, learner = agents[MAIN], Node(name="learner", worker=Learner)
        dataset = Node(name="dataset", role="table")
        nbytes = arrays.nbytes(batch_specs(agent.needs, rollout_specs(agent, spec, 1), 1))
        if not self.refiners:
            return Plan((dataset, learner), (Edge("batches", "dataset", "learner", "table", nbytes, "stay queued"),), {})
        published = parameter_bytes(agent) + slow_bytes(agent)
        return Plan(
            nodes=(
                dataset,
                Node(name="refiner", most=self.refiners, hosted=True, worker=Refiner),
                Node(name="refined", role="table"),
                learner,
            ),
            edges=(
                Edge("drawn", "dataset", "refiner", "request", nbytes, "one for each idle refiner"),
                Edge("refined", "refiner", "refined", "queue", nbytes, "refiners wait"),
                Edge("batches", "refined", "learner", "queue", nbytes, "stay queued"),
                Edge("targets", "learner", "refiner", "newest", published, "newest wins"),
                Edge("priorities", "learner", "dataset", "request", nbytes, "by key"),
            ),
            facts={},
        )

    drive = piped


class Trial:
    """A worker that drives a job of its own: a member of a population over runs that are themselves distributed."""

    def __init__(self, agent: Agent, *, topology: Any, spec: Spec, make_pool: Any, seed: int) -> None:
        self._topology, self._made = topology, (agent, spec, make_pool)
        self._seed = seed
        self._driver: Iterator[Progress] = iter(())
        self.adopt(None)

    def adopt(self, snapshot: PyTree | None) -> None:
        """Go on from the state of another member: weights, optimizer, environments."""
        self.close()
        agent, spec, make_pool = self._made
        self._driver = self._topology.drive(Job(agent, spec, make_pool, LocalRuntime(), self._seed), snapshot)
        self._progress = next(self._driver)

    def snapshot(self) -> PyTree:
        assert self._progress.snapshot is not None
        return self._progress.snapshot()

    def advance(self, updates: int, values: Mapping[str, float]) -> tuple[Published, float]:
        """Train for so many updates with these hyper-parameters. -> the policy, and its score."""
        assert self._progress.tune is not None
        self._progress.tune(values)
        until, score = self._progress.updates + updates, 0.0
        while self._progress.updates < until:
            self._progress = next(self._driver)
            score += sum(episode.total_reward for episode in self._progress.finished)
        return self._progress.policies[MAIN], score

    def close(self) -> None:
        if isinstance(self._driver, Generator):
            self._driver.close()


@dataclass(frozen=True, kw_only=True)
class Population:
    """PBT over any topology: members are workers that drive jobs of their own; rates are perturbed without a compilation."""

    overlaps: ClassVar[bool] = True
    num_envs: int = 8
    members: int = 2
    updates: int = 3
    inner: Any = field(default_factory=lambda: ActorLearner(num_envs=4, groups=1))

    refuses, steps_per_update = fixed_rollouts, steps_per_batch

    def max_lag(self) -> int:
        return 0

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        nbytes = parameter_bytes(agents[MAIN])
        return Plan(
            nodes=(Node(name="trial", most=self.members, worker=Trial), Node(name="driver")),
            edges=(
                Edge("scores", "trial", "driver", "request", nbytes, "the driver waits"),
                Edge("schedules", "driver", "trial", "request", 8, "one for each score"),
            ),
            facts={},
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        plan = self.plan(job.agents, job.spec)
        meters, driven = Meters.of(plan), _Members(self, job)
        try:
            while True:
                asked = [
                    trial.call(Trial.advance, self.updates, {"learning_rate": rate})
                    for trial, rate in zip(driven.trials, driven.rates)
                ]
                answers = [future.result() for future in asked]
                meters.moved("scores", len(answers))
                meters.moved("schedules", len(answers))
                best, worst = int(np.argmax(scores := [score for _, score in answers])), int(np.argmin(scores))
                driven.policies = {MAIN: answers[best][0]}
                if best != worst:  # exploit
                    saved = driven.trials[best].call(Trial.snapshot).result()
                    driven.trials[worst].call(Trial.adopt, saved).result()
                driven.rates = [driven.rates[best] * factor for factor in np.linspace(0.8, 1.2, self.members)]
                meters.updates += self.updates
                yield meters.progress(driven, snapshot=None)
        finally:
            job.runtime.close()


class _Members:
    def __init__(self, topology: Population, job: Job) -> None:
        self.trials = [
            job.runtime.spawn(
                Trial, job.agent, topology=topology.inner, spec=job.spec, make_pool=job.make_pool, seed=job.seed + index,
                name=f"trial-{index}", role="trial",
            )
            for index in range(topology.members)
        ]  # fmt: skip
        self.rates = [1e-3 * (1 + index) for index in range(topology.members)]
        self.policies: dict[str, Published] = {}

    def workers(self) -> dict[str, int]:
        return {"trials": len(self.trials)}

    def inspect(self) -> dict[str, float]:
        return {}

    def tune(self, values: Mapping[str, float]) -> None: ...
