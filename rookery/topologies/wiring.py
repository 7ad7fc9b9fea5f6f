"""Pieces that several plans share: the loop of collectors, table and learner, and the sizes of what travels."""

from __future__ import annotations

import jax

from rookery.data import arrays
from rookery.data.replay import batch_specs, check_memory
from rookery.topologies.plan import MAIN, Edge, Node
from rookery.types import Agent, Spec
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner


def named(noun: str, policy: str) -> str:
    """Name a node or edge of a policy: "queue" of the main one, "queue/exploiter" of another."""
    return noun if policy == MAIN else f"{noun}/{policy}"


def loop(
    agent: Agent, spec: Spec, writer: Node, *, columns: int, writers: int, ahead: int, parts: int, slots: int, prefetch: int,
    shard_ahead: int, when_full: str,
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:  # fmt: skip
    """Wire a node that writes rollouts to a table and a learner, and the learner's parameters back to it.

    columns, writers: of a rollout, and rollouts that hold all environments once; ahead: rollouts in flight of each writer;
    parts, slots: rollouts per batch and batches of a queue; prefetch: batches that wait at the learner."""
    policy, specs, table = writer.agent, rollout_specs(agent, spec, columns), agent.needs.table
    kind = "queue" if table is None else "table"
    middle, learner = named(kind, policy), named("learner", policy)
    hosted = table is not None and writer.role == "collector"  # replay shards are actors where collectors are
    nodes = (
        Node(
            name=middle, role="shard" if hosted else "table", agent=policy, hosted=hosted, envs=columns, writers=writers,
            parts=parts, slots=slots, ahead=shard_ahead, most=table.config.shards if table is not None and hosted else 1,
        ),
        Node(name=learner, role="learner", agent=policy, worker=Learner),
    )  # fmt: skip
    nbytes = arrays.nbytes(specs), arrays.nbytes(batch_specs(agent.needs, specs, parts)), parameter_bytes(agent)
    edges = [
        Edge(named("rollouts", policy), writer.name, middle, kind, nbytes[0], when_full, ahead),  # type: ignore[arg-type]
        Edge(named("batches", policy), middle, learner, "queue", nbytes[1], "stay queued", 1 + prefetch),
        Edge(named("parameters", policy), learner, writer.name, "newest", nbytes[2], "newest wins"),
    ]
    if table is not None and table.config.selector == "prioritized":
        name, full = named("priorities", policy), "those of evicted items are ignored"
        edges.append(Edge(name, learner, middle, "request", 4 * table.batch_size, full))
    return nodes, tuple(edges)


def replay_facts(agent: Agent, spec: Spec, *, envs_per_collector: int, num_envs: int) -> dict[str, str]:
    """Summarise the replay table for the start of a run; refuse one that does not fit into memory."""
    if (table := agent.needs.table) is None:
        return {}
    nbytes = check_memory(agent.needs, rollout_specs(agent, spec, envs_per_collector), num_envs=num_envs)
    ratio, batch, steps = table.samples_per_insert, table.batch_size * (1.0 - table.demo_ratio), 1
    if table.sequence_length:
        steps = agent.needs.rollout_length  # a sequence starts with every rollout
    kept = f"{table.config.capacity:,} steps in {nbytes / 1e6:,.0f} MB, {table.config.selector}"
    shown = {"demonstrations": f"{table.demo_ratio:.2%} of a batch"} if table.demo_ratio else {}
    return {
        "replay": kept,
        "steps per update": f"{batch * steps / ratio:,.1f}",
        "samples per insert": f"{ratio:g}",
        "policy lag": "as old as the replay",
    } | shown


def parameter_bytes(agent: Agent) -> int:
    """Size up what is published: the parameters."""
    return arrays.nbytes(jax.tree.leaves(jax.eval_shape(agent.init, jax.random.key(0)).params))


def envs_each(num_envs: int, collectors: int, groups: int, *, whose: str = "collectors") -> int:
    """Divide the environments over the collectors; refuse counts that do not divide evenly."""
    if num_envs % (collectors * groups):
        raise ValueError(
            f"--num-envs {num_envs} cannot be shared by {collectors} {whose} of {groups} groups: "
            f"try --num-envs {max(1, num_envs // (collectors * groups)) * collectors * groups}"
        )
    return num_envs // collectors


def slow_bytes(agent: Agent) -> int:
    """Size up what is broadcast beside the parameters: a target network."""
    return arrays.nbytes(jax.tree.leaves(jax.eval_shape(agent.init, jax.random.key(0)).slow))
