"""Continuous actions in units of their bounds: policy and critic speak of [-1, 1], the environment of its own numbers.

A policy that covers [-1, 1] covers Box(0, 500) as it does Box(-2, 2), so noise, entropies and what critics read have one unit,
and no action is cut by the pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gs
from jax import Array

from rookery import spaces
from rookery.ops.distributions import are_ranges
from rookery.types import PyTree

REMEDY = (
    "declare some in the environment, or around it by gymnasium.wrappers.TransformAction(env, lambda action: action, "
    "Box(-1, 1, {shape})). ppo, a2c and impala take it as it is"
)


class ActionUnits(NamedTuple):
    size: int  # numbers of an action, over all leaves
    to_unit: Callable[[PyTree], Array]  # [B, *shape] -> [B, size] in [-1, 1]
    from_unit: Callable[[Array], PyTree]  # [B, size] in [-1, 1] -> [B, *shape]


def action_units(space: gs.Space) -> ActionUnits:
    """Build the units of a Box with bounds, or of a Dict or Tuple of such. ValueError names a leaf that has none."""
    for path, _, leaf in spaces.leaves(space):
        _check_bounded(path, leaf)
    tree = spaces.map_space(lambda leaf: leaf, space)
    found, structure = jax.tree.flatten(tree, is_leaf=lambda node: isinstance(node, gs.Space))
    boxes: list[gs.Box] = list(found)
    sizes = [math.prod(box.shape) for box in boxes]
    ends = np.cumsum(sizes)
    bounds = [np.concatenate([np.ravel(getattr(box, end)).astype(np.float64) for box in boxes]) for end in ("low", "high")]
    centre, half = ((bounds[1] + bounds[0]) / 2).astype(np.float32), ((bounds[1] - bounds[0]) / 2).astype(np.float32)

    def to_unit(action: PyTree) -> Array:
        flat = [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(action)]
        whole = flat[0] if len(flat) == 1 else jnp.concatenate(flat, -1)
        return jnp.clip((whole - centre[None]) / half[None], -1.0, 1.0)

    def from_unit(unit: Array) -> PyTree:
        whole = centre[None] + half[None] * unit
        parts = [
            whole[:, end - size : end].reshape(-1, *box.shape).astype(box.dtype) for box, size, end in zip(boxes, sizes, ends)
        ]
        return jax.tree.unflatten(structure, parts)

    return ActionUnits(int(ends[-1]), to_unit, from_unit)


def _check_bounded(path: str, space: gs.Space) -> None:
    place = f"action leaf {path!r}" if path else "the action space"
    if isinstance(space, gs.Box) and not np.issubdtype(space.dtype, np.floating):
        raise ValueError(
            f"{place} is {space}, whose numbers are whole: declare a Box of floats and round them in the environment, or "
            "MultiDiscrete, which ppo, a2c and impala take"
        )
    if not isinstance(space, gs.Box):
        raise ValueError(
            f"{place} is {space}: a critic of continuous actions takes Boxes of floats, and nothing beside them. "
            "ppo, a2c and impala take mixtures of numbers and choices; sac and dqn one choice (Discrete)"
        )
    if (space.low == space.high).any():
        raise ValueError(f"{place} is {space}, some numbers of which can only have one value: leave them out of the action")
    if not are_ranges(space).all():
        remedy = REMEDY.format(shape=space.shape)
        raise ValueError(f"{place} is {space}, without bounds that a policy could be scaled to: {remedy}")
