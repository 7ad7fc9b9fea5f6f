"""Acting, as collectors, evaluators and loaded policies all do it: one jitted call per step, and what it is shown."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithms import hyper
from rookery.algorithms.sharing import program_of
from rookery.types import Agent, Array, Decision, Needs, PyTree


def compiled_step(agent: Agent) -> Callable[..., tuple[PyTree, Decision]]:
    """Compile a step of acting, once per process and agent, so that many collectors share it.

    (params, observation, memory, first, explore, key, counter) -> memory before the observation, Decision. Memory is reset
    where `first`.
    """
    return _compiled_step(program_of(agent))


@functools.lru_cache(maxsize=16)
def _compiled_step(agent: Agent) -> Callable[..., tuple[PyTree, Decision]]:
    def step(
        params: PyTree, observation: PyTree, memory: PyTree, first: Array, explore: PyTree, key: Any, counter: Array
    ) -> tuple[PyTree, Decision]:
        memory = fresh_where_first(agent, memory, first)
        return memory, agent.act(params, observation, memory, jax.random.fold_in(key, counter), explore)

    return jax.jit(step)


def fresh_where_first(agent: Agent, memory: PyTree, first: Array) -> PyTree:
    """Reset the recurrent state where an episode begins."""
    fresh = agent.memory(first.shape[0])
    return jax.tree.map(lambda new, old: jnp.where(column(first, old), new, old), fresh, memory)


def with_previous(observation: PyTree, action: PyTree, reward: np.ndarray, first: np.ndarray) -> PyTree:
    """Add the previous action and reward to the observation; where an episode begins there are none."""
    seen = ~first
    return {
        "observation": observation,
        "previous_action": jax.tree.map(lambda x: (x * column(seen, x)).astype(x.dtype), action),
        "previous_reward": reward * seen,
    }


def discount(params: PyTree, needs: Needs) -> Any:
    """Return gamma: the leaf of the parameters where there is one, else as the algorithm was built."""
    return hyper.leaf(params, "discount", needs.discount)


def return_discount(params: PyTree, needs: Needs) -> Any:
    """Return what `needs.return_discount` is now: where it was gamma it still is."""
    if needs.return_discount is None or needs.return_discount != needs.discount:
        return needs.return_discount
    return discount(params, needs)


def column(flags: Array, like: Array) -> Array:
    """Reshape [B] to [B, 1, ...], to broadcast against `like` [B, ...]."""
    return flags.reshape(flags.shape + (1,) * (like.ndim - 1))
