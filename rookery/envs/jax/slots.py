"""Many copies of one environment written in JAX, stepped as one: keys, and the reset at the step after an episode's end.

Pure functions of arrays. `jax/pool.py` calls them from the host, one compiled call per step; the Anakin topology makes them
part of its own program. Each environment has a key of its own, made of its seed and its count of steps: what it does
depends on no neighbour, and its state is all there is to save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.envs.jax.env import is_key
from rookery.envs.pools.pool import derive_seed
from rookery.types import Array, PyTree


class Slots(NamedTuple):
    """The environments of a group, on the device."""

    env: PyTree  # [B, ...] their states
    ended: Array  # [B] bool: the next answer is a first one
    seed: Array  # [B] uint32
    count: Array  # [B] uint32: steps and resets since the slot was seeded


class SlotAnswer(NamedTuple):
    """A TimeStep without its env_ids, on the device."""

    observation: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    first: Array


class Programs(NamedTuple):
    start: Callable[[Array], tuple[Slots, SlotAnswer]]  # (seed [B])
    advance: Callable[[Slots, PyTree], tuple[Slots, SlotAnswer]]  # (slots, action [B, ...])
    restart: Callable[[Slots, SlotAnswer, Array, Array], tuple[Slots, SlotAnswer]]  # (slots, answer, rows [B], seed [B])


@lru_cache(maxsize=32)  # two pools of the same environment, and the evaluator's, share what is compiled
def compiled(reset: Callable[..., Any], step: Callable[..., Any]) -> Programs:
    return Programs(*(jax.jit(function) for function in programs(reset, step)))


@lru_cache(maxsize=32)
def programs(reset: Callable[..., Any], step: Callable[..., Any]) -> Programs:
    """Build the programs of slots; `reset` and `step` are those of a JaxEnv."""

    def start(seed: Array) -> tuple[Slots, SlotAnswer]:
        count, false = jnp.zeros_like(seed), jnp.zeros(seed.shape, bool)
        state, observation = jax.vmap(reset)(_keys(seed, count))
        return Slots(state, false, seed, count), SlotAnswer(observation, jnp.zeros(seed.shape), false, false, ~false)

    def advance(slots: Slots, action: PyTree) -> tuple[Slots, SlotAnswer]:
        count = slots.count + 1
        keys = _keys(slots.seed, count)
        state, after = jax.vmap(step)(slots.env, action, keys)

        def reset_those_that_ended() -> tuple[PyTree, PyTree]:
            return jax.tree.map(lambda a, b: _where(slots.ended, a, b), jax.vmap(reset)(keys), (state, after.observation))

        # a branch that most steps do not take: a reset may cost as much as many steps
        state, observation = jax.lax.cond(slots.ended.any(), reset_those_that_ended, lambda: (state, after.observation))
        live = ~slots.ended
        terminated, truncated = after.terminated & live, after.truncated & live
        answer = SlotAnswer(observation, jnp.where(live, after.reward, 0.0), terminated, truncated, slots.ended)
        return Slots(state, terminated | truncated, slots.seed, count), answer

    def restart(slots: Slots, answer: SlotAnswer, rows: Array, seed: Array) -> tuple[Slots, SlotAnswer]:
        return jax.tree.map(lambda a, b: _where(rows, a, b), start(seed), (slots, answer))

    return Programs(start, advance, restart)


def slot_seeds(seed: int, env_ids: Sequence[int], incarnations: Sequence[int]) -> np.ndarray:
    """Return the seed, [B] uint32, of each environment, from (seed, env id, incarnation)."""
    return np.array([derive_seed(seed, env, incarnation) for env, incarnation in zip(env_ids, incarnations)], np.uint32)


def to_host(leaf: Array) -> np.ndarray:
    """Copy a leaf of any state, keys included, into a numpy array."""
    return np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def from_host(value: Array, like: Array) -> Array:
    """Convert what `to_host` made back; `like`: any leaf of that type."""
    copied = jnp.array(value)
    return jax.random.wrap_key_data(copied, impl=jax.random.key_impl(like)) if is_key(like) else copied


def _keys(seed: Array, count: Array) -> Array:
    return jax.vmap(lambda s, c: jax.random.fold_in(ops.random.key(s), c))(seed, count)


def _where(rows: Array, a: Array, b: Array) -> Array:
    """Return a where rows [B], else b; both [B, ...]."""
    return jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b)
