"""The contract of an environment written in JAX: two pure functions of one environment, and its spaces.

`reset` and `step` know nothing of batches, of resets between episodes or of the host: `jax.vmap` makes many of one, and
`jax.lax.scan` a rollout. `jax/pool.py` steps them for the host; a topology may compile them into its own program. Whoever
steps resets: at the step after the end of an episode, as `TimeStep` says.

    env = jax_sources.build("jax:CartPole-v1")
    state, observation = env.reset(key)
    state, step = env.step(state, action, key)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gs

from rookery import ops, spaces
from rookery.types import Array, PyTree, Spec


class JaxStep(NamedTuple):
    """What one environment answered; after the end of an episode it means nothing."""

    observation: PyTree  # canonical
    reward: Array  # float32 scalar
    terminated: Array  # bool scalar
    truncated: Array  # bool scalar


class JaxEnv(NamedTuple):
    """One environment. Both functions keep the shapes and types of the state, so that it can be the carry of a scan."""

    spec: Spec  # canonical spaces
    reset: Callable[[Array], tuple[PyTree, PyTree]]  # (key) -> state, first observation
    step: Callable[[PyTree, PyTree, Array], tuple[PyTree, JaxStep]]
    #   (state, action, key); the action is canonical: it counts from 0, and `step` clips a Box to its bounds


def like(tree: PyTree, shapes: PyTree) -> PyTree:
    """Cast `tree` to the types of `shapes`, strongly typed: a step then gives exactly what a reset gave."""
    return jax.tree.map(lambda x, s: x if is_key(s) else jax.lax.convert_element_type(x, s.dtype), tree, shapes)


def canonical_env(
    observation: gs.Space,
    action: gs.Space,
    id: str,
    *,
    reset: Callable[[Array], tuple[PyTree, PyTree]],
    step: Callable[[PyTree, PyTree, Array], tuple[PyTree, JaxStep]],
) -> JaxEnv:
    """Make a JaxEnv of functions that may be careless about types; a shape that differs from the space is refused.

    The spaces are the environment's own; the observation is made canonical, and what `step` is given counts from
    `start` and is clipped, as it would be by a pool.
    """
    spec = spaces.spec_of(observation, action, id)
    seen = spaces.array_specs(observation)
    to_env = action_encoder(action)
    state_shapes, shown = jax.eval_shape(reset, ops.random.key(0))
    _check_shapes(id, seen, shown)

    def canonical_reset(key: Array) -> tuple[PyTree, PyTree]:
        state, first = reset(key)
        return like(state, state_shapes), _canonical(observation, first)

    def canonical_step(state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, JaxStep]:
        state, (after, reward, terminated, truncated) = step(state, to_env(action), key)
        flags = (jnp.asarray(flag).astype(bool).reshape(()) for flag in (terminated, truncated))
        reward = jnp.asarray(reward).astype(jnp.float32).reshape(())
        return like(state, state_shapes), JaxStep(_canonical(observation, after), reward, *flags)

    return JaxEnv(spec, canonical_reset, canonical_step)


def action_encoder(space: gs.Space) -> Callable[[PyTree], PyTree]:
    """Return `spaces.action_encoder` for traced values: nothing can be refused here, only added and clipped."""
    if isinstance(space, gs.Dict):
        parts = {key: action_encoder(sub) for key, sub in space.items()}
        return lambda action: {key: encode(action[key]) for key, encode in parts.items()}
    if isinstance(space, gs.Tuple):
        encoders = [action_encoder(sub) for sub in space.spaces]
        return lambda action: tuple(encode(action[i]) for i, encode in enumerate(encoders))
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    if isinstance(space, gs.Box):
        low, high = space.low, space.high
        whole = dtype.kind in "iu"
        return lambda action: jnp.clip(jnp.rint(action) if whole else action, low, high).astype(dtype)
    start = space.start if isinstance(space, (gs.Discrete, gs.MultiDiscrete)) else 0
    return lambda action: (jnp.asarray(action) + start).astype(dtype)


def _canonical(space: gs.Space, value: PyTree) -> PyTree:
    if isinstance(space, gs.Dict):
        return {key: _canonical(sub, value[key]) for key, sub in space.items()}
    if isinstance(space, gs.Tuple):
        return tuple(_canonical(sub, item) for sub, item in zip(space.spaces, value))
    start = space.start if isinstance(space, (gs.Discrete, gs.MultiDiscrete)) else 0
    counted = jnp.asarray(value) - start if np.any(start) else value
    return jax.lax.convert_element_type(counted, spaces.array_specs(space).dtype)


def _check_shapes(id: str, promised: PyTree, shown: PyTree) -> None:
    def check(path: Any, spec: Any, leaf: Any) -> None:
        if tuple(leaf.shape) != spec.shape:
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "observation"
            raise ValueError(f"{id!r}: {name} has shape {tuple(leaf.shape)}, but its space promises {spec.shape}")

    jax.tree_util.tree_map_with_path(check, promised, shown)


def is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
