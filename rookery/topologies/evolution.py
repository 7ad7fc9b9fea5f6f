"""Evolution: a population of perturbed policies plays whole episodes, and everybody makes the same update (Salimans 2017).

                   parameters (once, when a worker starts)
         ┌────────────────────────────────────────────────────────────┐
         ▼                                                            │
    worker × W ───score: returns of a share of the population──▶ learner
         ▲                                                            │
         └───────generation: all returns of all members───────────────┘

A perturbation is named by (seed, generation, member), so that only numbers of members and their returns (and, where
observations are normalised, their moments per member) travel: every worker rebuilds all perturbations and updates its own
copy of the parameters. A share is evaluated as one batch, an environment and a policy per member. Everyone waits for the
slowest share. A share whose worker is lost is evaluated by another: a share's score does not depend on who plays it, so
neither the loss of a worker nor their number changes the run by a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax

from rookery import ops
from rookery.data import arrays
from rookery.ranges import MANY, Count, Range, Workers
from rookery.topologies.evolution_fleet import EvolutionFleet, generation_specs
from rookery.topologies.job import TICK_SECONDS, Job, Progress
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.wiring import parameter_bytes
from rookery.types import Agent, Batch, PyTree, Spec
from rookery.workers.acting.evolution_worker import EvolutionWorker, Score, Shares, kept_specs
from rookery.workers.learning.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Perturbed policies play whole episodes; only seeds and returns travel."""

    overlaps: ClassVar[bool] = False
    population: Annotated[int, Range(2, MANY)] = 64
    """Members of a generation, in antithetic pairs (the two signs of a perturbation)."""
    num_envs: Count = 32
    """Environments in all. Fewer than members: shares take turns; both signs of a pair start from the same state."""
    workers: Workers = 1
    """Workers that evaluate shares of the population."""
    backups: bool = False
    """Let idle workers evaluate the shares of slow ones as well; the first answer counts."""

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        if agent.perturb is None:
            return (
                "it learns from the steps of rollouts, and all that is known here are the returns of whole episodes: use Sync"
            )
        if spec.pool is not None and (spec.pool.reward_clip is not None or spec.pool.reward_scale != 1):
            return "episodes are compared by their returns as they were played: drop reward_clip and reward_scale"
        return None

    def steps_per_update(self, algorithm: Any) -> float:
        """Bound the steps of a generation: episodes may end before their limit."""
        return self.population * getattr(algorithm, "max_episode_steps", 1)  # one that has none is refused later

    def max_lag(self) -> int:
        return 0

    def shares(self) -> Shares:
        """Divide the population into shares; refuse counts that do not divide evenly."""
        if self.population % 2:
            raise ValueError(f"--population {self.population}: members come in pairs; try --population {self.population + 1}")
        if self.num_envs % self.workers:
            near = max(1, self.num_envs // self.workers) * self.workers
            raise ValueError(f"--num-envs {self.num_envs} cannot be shared by --workers {self.workers}: try --num-envs {near}")
        size = self.num_envs // self.workers
        if self.population % size:
            near = next(n for n in range(min(size, self.population), 0, -1) if self.population % n == 0)
            raise ValueError(
                f"--population {self.population} cannot be cut into shares of {size} environments (--num-envs / --workers): "
                f"try --num-envs {near * self.workers}"
            )
        return Shares(self.population // size, size)

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, shares = agents[MAIN], self.shares()
        each = 4 + 4 + 1  # of a member: return, length, whether its episode ended
        told = arrays.nbytes(kept_specs(agent, self.population))
        batch = Batch(arrays.allocate(generation_specs(agent, self.population)), (), ())
        key = ops.random.key(0)
        jax.eval_shape(agent.learn, jax.eval_shape(agent.init, key), batch, key)  # refuses what does not fit the population
        limit = agent.needs.rollout_length
        scores, generations = 24 + each * shares.size + told // shares.number, 8 + (each - 1) * self.population + told
        return Plan(
            nodes=(
                Node(name="environment", most=self.num_envs),
                Node(name="worker", most=self.workers, hosted=True, worker=EvolutionWorker, envs=shares.size),
                Node(name="learner", worker=Learner),
            ),
            edges=(
                Edge("scores", "worker", "learner", "request", scores, "nobody waits"),
                Edge("generations", "learner", "worker", "queue", generations, "in their order"),
                Edge("parameters", "learner", "worker", "newest", parameter_bytes(agent), "once, at the start of each worker"),
            ),
            facts={
                "steps per update": f"at most {self.population * limit:,} ({self.population:,} episodes)",
                "shares": f"{shares.number} of {shares.size} members",
                "policy lag": "0",
            },
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        plan = self.plan(job.agents, job.spec)
        meters = Meters.of(plan, snapshot)
        try:
            fleet = EvolutionFleet(job, meters, self.shares(), plan.node("worker"), backups=self.backups, snapshot=snapshot)
            while True:
                scores: dict[int, Score] = {}
                while len(scores) < fleet.shares.number:
                    fleet.ask(scores)
                    if not fleet.answers(scores, TICK_SECONDS):
                        yield meters.progress(fleet, snapshot=fleet.snapshot)
                generation = fleet.count(scores)
                learned = fleet.learner.call(Learner.learn, generation.batch())
                fleet.tell(generation)
                while not job.runtime.wait([learned], TICK_SECONDS)[0]:
                    yield meters.progress(fleet, snapshot=None)
                fleet.learned(learned.result())
                fleet.ask({})  # before the yield: whoever advances this may take its time
                yield meters.progress(fleet, snapshot=fleet.snapshot)
        finally:
            job.runtime.close()
