"""ActorLearner with central inference: environments here and there, one policy beside the learner (SEED RL, Espeholt et al.
2020; on one machine Sample Factory, Petrenko et al. 2020).

    host × C ──observation of a group──▶ inference ──rollout [T, B/C/G] of a group, K·C·G in flight──▶ queue ──batch──▶ learner
       ▲────────────actions───────────────┘   ▲                                     (full: inference waits)   │
                                              └──────────parameters (newest wins; read at each decision)──────┘

A host has G groups of environments: one steps while another is decided on. Nothing but observations and actions travels to
them; memory, partial rollouts and the first states of rollouts live beside the policy. Whichever groups have answered are
decided on together, up to --inference-batch environments, and nobody waits longer than --inference-wait-ms for the others.

On `ray` a host is an actor. On `local` all groups are those of one pool, whose environments may live in worker processes.
Parameters may change inside a rollout: one during which more than --inference-lag updates came is discarded, unless it
goes to a replay table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rookery.data import arrays
from rookery.runtime.interface import Handle
from rookery.runtime.roster import Life, span
from rookery.spaces import zeros
from rookery.topologies.job import Crew, Edge, Graph, Job, envs_each, loop_edges, replay_facts
from rookery.types import Agent, EnvPool, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.env_host import EnvHost
from rookery.workers.acting.hosted_pool import HostedPool
from rookery.workers.acting.inference import AnyCollector, Inference


class RolloutShape(NamedTuple):
    """How an ActorLearner divides its environments into rollouts and batches, with local or with central inference."""

    collectors: tuple[int, int]  # workers that write them, at least and at most
    columns: int  # of one rollout
    writers: int  # rollouts that hold all environments once
    parts: int  # rollouts per batch
    in_flight: int  # rollouts that each worker is asked for ahead of time


def rollout_shape(topology: Any) -> RolloutShape:
    """Derive it. A batch has the same columns either way; with central inference each group has a rollout of its own."""
    least, most = span(topology.collectors)
    each, groups = envs_each(topology.num_envs, most, topology.groups), topology.groups
    if topology.inference == "local":
        return RolloutShape((least, most), each, most, topology.rollouts_per_batch, topology.in_flight)
    size, batch = each // groups, topology.inference_batch
    if batch % size or batch > topology.num_envs:
        near = min(max(1, batch // size) * size, topology.num_envs)
        raise ValueError(
            f"--inference-batch {batch} is no multiple of the {size} environments of a group, up to --num-envs "
            f"{topology.num_envs}: try --inference-batch {near}"
        )
    return RolloutShape((1, 1), size, most * groups, topology.rollouts_per_batch * groups, topology.in_flight * most * groups)


def crew(topology: Any, job: Job, snapshot: PyTree | None) -> Crew:
    """Spawn learner and collectors; with central inference, one Inference in place of all collectors."""
    shape = rollout_shape(topology)
    worker: Callable[..., AnyCollector] = Collector
    make_pool: Callable[[], EnvPool] = functools.partial(job.make_pool, shape.columns, topology.groups)
    if topology.inference == "central":
        wait = None if topology.inference_wait_ms is None else topology.inference_wait_ms / 1000
        lag = topology.inference_lag if job.agent.needs.table is None else None  # what is replayed is old anyway
        options = {"batch": topology.inference_batch, "wait_seconds": wait, "max_lag": lag}
        worker, make_pool = functools.partial(Inference, **options), functools.partial(_pool, topology, job)
    return Crew(
        job, collectors=shape.collectors, envs_per_collector=shape.columns, make_pool=make_pool, parts=shape.parts,
        in_flight=shape.in_flight, snapshot=snapshot, worker=worker,
    )  # fmt: skip


def _pool(topology: Any, job: Job) -> EnvPool:
    """Make the pool of all environments: on this machine, or on the hosts of a cluster."""
    hosts, groups = span(topology.collectors)[1], topology.groups
    if job.runtime.name == "local":
        return job.make_pool(topology.num_envs, hosts * groups)
    make_pool = functools.partial(job.make_pool, topology.num_envs // hosts, groups)

    def start(life: Life) -> Handle[EnvHost]:
        return job.runtime.spawn(
            EnvHost, make_pool, env_restarts=job.env_restarts, name=f"host-{life.place}", role="host"
        )  # fmt: skip

    envs = topology.num_envs // hosts
    return HostedPool(job.runtime, start, job.spec, hosts=hosts, envs_per_host=envs, groups=groups)


def graph(topology: Any, agent: Agent, spec: Spec) -> Graph:
    shape, hosts = rollout_shape(topology), span(topology.collectors)[1]
    edges = loop_edges(agent, spec, envs_per_collector=shape.columns, parts=shape.parts, when_full="inference waits")
    rename = {"collector": "inference"}
    inner = [e._replace(source=rename.get(e.source, e.source), target=rename.get(e.target, e.target)) for e in edges]
    seen = arrays.nbytes(zeros(spec.observation, (shape.columns,))) + 7 * shape.columns  # reward and three flags
    done = arrays.nbytes(zeros(spec.action, (shape.columns,)))
    outer = [
        Edge("observations", "host", "inference", seen, "the host waits"),
        Edge("actions", "inference", "host", done, "one per answer"),
    ]
    steps = shape.columns * shape.parts * agent.needs.rollout_length
    batch, wait = topology.inference_batch or shape.columns, topology.inference_wait_ms
    return Graph(
        nodes={"environment": topology.num_envs, "host": hosts, "inference": 1, "learner": 1},
        edges=(*outer, *inner),
        facts={
            "steps per update": f"{steps:,}",
            "policy lag": f"at most {topology.max_lag()} updates",
            "decided on together": f"{batch} environments" + ("" if wait is None else f", fewer after {wait:g} ms"),
        }
        | replay_facts(agent, spec, envs_per_collector=shape.columns, num_envs=topology.num_envs),
    )
