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
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rookery.data import arrays
from rookery.runtime.interface import Handle
from rookery.runtime.roster import Life, span
from rookery.spaces import zeros
from rookery.topologies.job import Job
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.wiring import envs_each, loop, replay_facts
from rookery.types import Agent, EnvPool, Spec
from rookery.workers.acting.env_host import EnvHost
from rookery.workers.acting.hosted_pool import HostedPool
from rookery.workers.acting.inference import Inference


class RolloutShape(NamedTuple):
    """How the environments of hosts are divided into rollouts and batches: each group has a rollout of its own."""

    columns: int  # of one rollout
    writers: int  # rollouts that hold all environments once
    parts: int  # rollouts per batch
    in_flight: int  # rollouts that inference is asked for ahead of time


def rollout_shape(topology: Any) -> RolloutShape:
    """Derive it. A batch has as many columns as one of ActorLearner with collectors."""
    least, hosts = span(topology.collectors)
    if least < hosts:
        raise ValueError(f"--collectors {least}..{hosts}: with central inference these are hosts, and their number is fixed")
    groups, batch = topology.groups, topology.inference_batch
    size = envs_each(topology.num_envs, hosts, groups) // groups
    if batch % size or batch > topology.num_envs:
        near = min(max(1, batch // size) * size, topology.num_envs)
        raise ValueError(
            f"--inference-batch {batch} is no multiple of the {size} environments of a group, up to --num-envs "
            f"{topology.num_envs}: try --inference-batch {near}"
        )
    return RolloutShape(size, hosts * groups, topology.rollouts_per_batch * groups, topology.in_flight * hosts * groups)


def plan(topology: Any, agents: Mapping[str, Agent], spec: Spec) -> Plan:
    """Put one Inference in place of all collectors, and hosts of environments around it."""
    agent, shape, hosts = agents[MAIN], rollout_shape(topology), span(topology.collectors)[1]
    wait = None if topology.inference_wait_ms is None else topology.inference_wait_ms / 1000
    lag = topology.inference_lag if agent.needs.table is None else None  # what is replayed is old anyway
    worker = functools.partial(Inference, batch=topology.inference_batch, wait_seconds=wait, max_lag=lag)
    inference = Node(name="inference", worker=worker, envs=shape.columns, groups=topology.groups, in_flight=shape.in_flight)
    nodes, edges = loop(
        agent, spec, inference, columns=shape.columns, writers=shape.writers, ahead=topology.in_flight, parts=shape.parts,
        slots=topology.slots(), prefetch=topology.prefetch, shard_ahead=2, when_full="inference waits",
    )  # fmt: skip
    seen = arrays.nbytes(zeros(spec.observation, (shape.columns,))) + 7 * shape.columns  # reward and three flags
    done = arrays.nbytes(zeros(spec.action, (shape.columns,)))
    steps, batch = shape.columns * shape.parts * agent.needs.rollout_length, topology.inference_batch or shape.columns
    return Plan(
        nodes=(
            Node(name="environment", most=topology.num_envs),
            Node(name="host", most=hosts, hosted=True, envs=topology.num_envs // hosts, groups=topology.groups),
            inference,
            *nodes,
        ),
        edges=(
            Edge("observations", "host", "inference", "request", seen, "the host waits"),
            Edge("actions", "inference", "host", "request", done, "one per answer"),
            *edges,
        ),
        facts={
            "steps per update": f"{steps:,}",
            "policy lag": f"at most {topology.max_lag()} updates",
            "decided on together": f"{batch} environments" + ("" if wait is None else f", fewer after {wait * 1000:g} ms"),
        }
        | replay_facts(agent, spec, envs_per_collector=shape.columns, num_envs=topology.num_envs),
    )


def pool(topology: Any, job: Job) -> Callable[[], EnvPool]:
    """Make the pool of all environments: on this machine, or on the hosts of a cluster."""
    hosts, groups = span(topology.collectors)[1], topology.groups
    if job.runtime.name == "local":
        return functools.partial(job.make_pool, topology.num_envs, hosts * groups)
    envs = topology.num_envs // hosts
    make_pool = functools.partial(job.make_pool, envs, groups)

    def start(life: Life) -> Handle[EnvHost]:
        return job.runtime.spawn(
            EnvHost, make_pool, env_restarts=job.env_restarts, name=f"host-{life.place}", role="host"
        )  # fmt: skip

    return lambda: HostedPool(job.runtime, start, job.spec, hosts=hosts, envs_per_host=envs, groups=groups)
