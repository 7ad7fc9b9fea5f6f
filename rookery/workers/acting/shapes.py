"""The shapes of rollouts, derived from the agent and the spaces: as they are played, and as they are stored."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rookery import ops, spaces
from rookery.data import arrays
from rookery.trees import ArraySpec
from rookery.types import Agent, PyTree, Rollout, Spec


def rollout_specs(agent: Agent, spec: Spec, num_envs: int) -> Rollout:
    """Derive the shapes and dtypes of a rollout of `num_envs` columns, as it leaves its collector: after `process`."""
    played = played_specs(agent, spec, num_envs)
    if agent.process is None:
        return played
    zeros = lambda tree: jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
    rollout = arrays.allocate(played)
    processed, _ = agent.process(zeros(jax.eval_shape(agent.init, ops.random.key(0)).params), rollout)
    if processed is rollout:
        return played
    return jax.tree.map(lambda x: ArraySpec(np.shape(x), np.asarray(x).dtype), processed)


def process(agent: Agent, params: PyTree, rollout: Rollout, out: Rollout | None) -> tuple[Rollout, np.ndarray | None]:
    """Run the agent's `process`, if it has one, on a rollout as it was played. -> what is stored, and priorities [T, B].

    out: where it is written; it may be the rollout itself, where processing leaves its structure alone."""
    priorities: Any = None
    processed = rollout
    if agent.process is not None:
        processed, priorities = agent.process(params, rollout)
    if out is None:
        return processed, priorities
    if processed is not out:
        jax.tree.map(np.copyto, out, jax.block_until_ready(processed))
    return out, priorities


def played_specs(agent: Agent, spec: Spec, num_envs: int) -> Rollout:
    """Derive the shapes and dtypes of a rollout of `num_envs` columns, as a collector plays it."""
    T, B, needs = agent.needs.rollout_length, num_envs, agent.needs
    seen = spaces.with_previous(spec) if needs.previous else spec
    observation = spaces.zeros(seen.observation, (B,))
    params = jax.eval_shape(agent.init, ops.random.key(0)).params
    memory = jax.eval_shape(lambda: agent.memory(B))
    values = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)  # pages that nobody reads are never there
    explore = agent.explore(values, np.arange(B), B, 0)
    decision = jax.eval_shape(agent.act, params, observation, memory, ops.random.key(0), explore)
    rows = lambda tree, length: jax.tree.map(lambda x: ArraySpec((length, *x.shape), np.dtype(x.dtype)), tree)
    scalar = lambda dtype: ArraySpec((T, B), np.dtype(dtype))
    extras = rows(decision.extras, T)
    if needs.return_discount is not None:
        extras = extras | {"discounted_return": scalar(np.float32)}
    return Rollout(
        observation=rows(observation, T + 1),
        action=rows(decision.action, T),
        reward=scalar(np.float32),
        discount=scalar(np.float32),
        valid=scalar(np.float32),
        extras=extras,
        memory=jax.tree.map(lambda x: ArraySpec(x.shape, np.dtype(x.dtype)), memory),
        version=scalar(np.int32),
        stream=ArraySpec((B,), np.dtype(np.int64)),
        step=ArraySpec((B,), np.dtype(np.int64)),
        weight=rows(decision.weight, T),
    )
