"""The shape of what a collector writes, derived from the agent and the spaces without computing anything."""

from __future__ import annotations

import jax
import numpy as np

from rookery import ops, spaces
from rookery.trees import ArraySpec
from rookery.types import Agent, Rollout, Spec


def rollout_specs(agent: Agent, spec: Spec, num_envs: int) -> Rollout:
    """Derive the shapes and dtypes of a rollout of `num_envs` columns."""
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
    )
