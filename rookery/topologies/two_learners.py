"""TwoLearners: a loss beside the main one has a learner of its own, at its own rate, on the same table (asynchronous CURL).

              parameters (newest wins; read at the start of a rollout)
        ┌────────────────────────────────────────────────────────────────┐
        ▼                                                                │
    collector × C ──rollout [T, B/C]──▶ table ──batch──▶ learner ────────┴─────┐
                                          │                 ▲                  │ encoder and momentum encoder
                                          │                 │ gradient, applied│ (newest wins)
                                          │                 │ on arrival       │
                                          └──batch──▶ auxiliary learner × W ◀──┘
                                              (not counted by the table's ratio)

Nobody waits for the other. The learner makes the agent's own updates, an auxiliary learner gradients of the other loss, at the
parameters that it was told of last. The learner steps the shared encoder by them when they come, as A3C's server does, with an
optimizer that is theirs alone: there is one encoder, and nothing is averaged. How many updates were made meanwhile is the
staleness. Auxiliary learners are a fleet: one that is lost takes its gradient with it, and training goes on without until it is
replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax

from rookery.data import arrays
from rookery.data.replay import batch_specs
from rookery.ranges import Count, Natural, Range, Workers
from rookery.topologies.actor_learner import Pipeline
from rookery.topologies.beside import SecondLearner
from rookery.topologies.compatibility import fixed_rollouts, steps_per_batch
from rookery.topologies.job import Job, Progress
from rookery.topologies.launch import Launched, one_device
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.staleness import Staleness
from rookery.topologies.wiring import envs_each, loop, parameter_bytes, replay_facts, slow_bytes
from rookery.types import Agent, Batch, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.auxiliary_worker import AuxiliaryWorker


@dataclass(frozen=True, kw_only=True)
class TwoLearners:
    """A second learner computes an auxiliary loss beside the first."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 8
    """Environments in all."""
    collectors: Workers = 1
    groups: Workers = 1
    """Groups of environments per collector: one steps while the policy acts for another."""
    in_flight: Annotated[int, Range(1, 256)] = 1
    """Rollouts requested ahead from each collector, so that it never waits for the driver."""
    prefetch: Annotated[int, Range(0, 256)] = 1
    """Batches queued at the learner while it computes."""
    auxiliary_workers: Workers = 1
    """Workers that compute gradients of the auxiliary loss."""
    auxiliary_ratio: Annotated[float, Range(0, 1000)] | None = 1.0
    """Gradients of the auxiliary loss for each update, at most; None: as many as the workers make."""
    max_staleness: Natural | None = None
    """Discard (and count) gradients older than this many updates; None: none."""

    steps_per_update = steps_per_batch

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        if (reason := fixed_rollouts(self, agent, spec)) is not None:
            return reason
        if agent.auxiliary is None:
            return (
                "it has no loss beside its own for a second learner to compute: use Sync; or SAC or DQN, from images, with "
                "--views.kind shift and --contrastive-every 1"
            )
        return None

    def max_lag(self) -> int:
        return self.collectors * self.in_flight + self.prefetch + 1

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, each = agents[MAIN], envs_each(self.num_envs, self.collectors, self.groups)
        collectors = Node(
            name="collector", most=self.collectors, hosted=True, worker=Collector, envs=each, groups=self.groups,
            in_flight=self.in_flight,
        )  # fmt: skip
        (table, learner), edges = loop(
            agent, spec, collectors, columns=each, writers=self.collectors, ahead=self.in_flight, parts=1, slots=1,
            prefetch=self.prefetch, shard_ahead=0, when_full="collectors wait",
        )  # fmt: skip
        table = dataclasses.replace(table, role="table", hosted=False, most=1)  # one, in the driver: it has two readers
        beside = "auxiliary_learner"
        workers = Node(name=beside, most=self.auxiliary_workers, hosted=True, worker=AuxiliaryWorker)
        batch = next(edge.nbytes for edge in edges if edge.name == "batches")
        published = parameter_bytes(agent) + slow_bytes(agent)
        of_its_own = "as many as come" if self.auxiliary_ratio is None else f"at most {self.auxiliary_ratio:g} for each update"
        bound = "not bounded" if self.max_staleness is None else f"at most {self.max_staleness} updates"
        return Plan(
            nodes=(Node(name="environment", most=self.num_envs), collectors, table, learner, workers),
            edges=(
                *edges,
                Edge("drawn", "table", beside, "request", batch, "one for each idle worker", self.auxiliary_workers),
                Edge("gradients", beside, "learner", "request", gradient_bytes(agent, spec, each), "applied on arrival"),
                Edge("encoder", "learner", beside, "newest", published, "newest wins"),
            ),
            facts=replay_facts(agent, spec, envs_per_collector=each, num_envs=self.num_envs)
            | {"gradients beside": of_its_own, "staleness": bound},
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            agent = job.agent
            assert agent.auxiliary is not None, "refused"
            one_device(job, "learner")
            plan = self.plan(job.agents, job.spec)
            job = dataclasses.replace(job, agent=agent._replace(learn=agent.auxiliary.alone))
            launched = Launched(job, plan, snapshot)
            staleness = Staleness(self.max_staleness, snapshot["beside"]["auxiliary_learner"] if snapshot else None)
            beside = SecondLearner(plan, launched, "auxiliary_learner", ratio=self.auxiliary_ratio, staleness=staleness)
            yield from Pipeline(launched, Meters.of(plan, snapshot), beside=[beside]).run()
        finally:
            job.runtime.close()


def gradient_bytes(agent: Agent, spec: Spec, columns: int) -> int:
    """Size up a gradient of the auxiliary loss."""
    assert agent.auxiliary is not None
    shapes = batch_specs(agent.needs, rollout_specs(agent, spec, columns), 1)
    rollout: Any = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), shapes._replace(stream=(), step=()))
    weight = jax.ShapeDtypeStruct((shapes.reward.shape[1],), "float32")
    state = jax.eval_shape(agent.init, jax.random.key(0))
    found = jax.eval_shape(agent.auxiliary.gradients, state.params, state.slow, Batch(rollout, weight, ()), jax.random.key(0))
    return arrays.nbytes(jax.tree.leaves(found.tree))
