"""Random actions that are legal: those that the mask among the observations allows.

The mask is the leaf `action_mask` of an observation, at its top or below its key `observation`, where the networks look for it
too (networks/encoders.py). It has an entry for each choice of the action; where there are several (MultiDiscrete, a Dict or a
Tuple of spaces), those of all components stand one after the other, in one array or in a dict or tuple of arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery.trees import tree_leaves
from rookery.types import PyTree


def mask_of(observation: PyTree, *, batched: bool = False) -> np.ndarray | None:
    """Return the mask of legal actions in an observation: [A] of bool, of a batch [B, A]; None where there is none."""
    for _ in range(2):
        if not isinstance(observation, dict):
            return None
        if "action_mask" in observation:
            parts = [np.asarray(part).astype(bool) for part in tree_leaves(observation["action_mask"])]
            return np.concatenate([part.reshape(len(part), -1) if batched else part.ravel() for part in parts], axis=-1)
        observation = observation.get("observation")
    return None


def is_masked(space: Space) -> bool:
    """Tell whether observations of a space have a mask."""
    for _ in range(2):
        if not isinstance(space, gs.Dict):
            return False
        if "action_mask" in space.spaces:
            return True
        space = space.spaces.get("observation", gs.Discrete(1))
    return False


def sample(space: Space, observation: PyTree) -> Any:
    """Draw an action of an environment's own space, by the generator of the space, that this one observation allows."""
    mask = mask_of(observation)
    sizes = choices(space)
    if mask is None or mask.shape != (sum(sizes),):  # a mask of another size is refused where a network is made for it
        return space.sample()
    return space.sample(mask=_as_space(space, np.split(mask.astype(np.int8), np.cumsum(sizes)[:-1])))


def draw(space: Space, mask: np.ndarray, rng: np.random.Generator) -> PyTree:
    """Draw canonical actions [B, ...] of Discrete or MultiDiscrete, uniformly among those that a mask [B, A] allows."""
    scores = np.where(mask, rng.random(mask.shape), -1)
    if isinstance(space, gs.Discrete):
        return scores.argmax(axis=1)
    if not isinstance(space, gs.MultiDiscrete):
        raise TypeError(f"actions of {space} cannot be drawn by a mask: it takes a Discrete or MultiDiscrete")
    parts = np.split(scores, np.cumsum(choices(space))[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(len(mask), *space.shape)


def choices(space: Space) -> list[int]:
    """List how many entries of a mask each component has, in the order of the mask; none for a Box."""
    if isinstance(space, gs.Discrete):
        return [int(space.n)]
    if isinstance(space, gs.MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    if isinstance(space, gs.MultiBinary):
        return [int(np.prod(space.shape))]
    return [size for part in _parts(space) for size in choices(part)]


def _parts(space: Space) -> list[Space]:
    """List the subspaces in the order in which jax lists the leaves of an action."""
    if isinstance(space, gs.Dict):
        return [space[key] for key in sorted(space.spaces)]
    return list(space.spaces) if isinstance(space, gs.Tuple) else []


def _as_space(space: Space, parts: list[np.ndarray]) -> Any:
    """Arrange the masks of the components as `Space.sample(mask=...)` takes them; those that are used leave the list."""
    if isinstance(space, gs.Discrete):
        return parts.pop(0)
    if isinstance(space, gs.MultiDiscrete):
        return _nested([parts.pop(0) for _ in range(int(space.nvec.size))], space.nvec.shape)
    if isinstance(space, gs.MultiBinary):
        return np.where(parts.pop(0), 2, 0).astype(np.int8).reshape(space.shape)  # 2: either, 0: never set
    if isinstance(space, gs.Dict):
        found = {key: _as_space(space[key], parts) for key in sorted(space.spaces)}
        return {key: found[key] for key in space.spaces}
    return tuple(_as_space(part, parts) for part in space.spaces) if isinstance(space, gs.Tuple) else None


def _nested(masks: list[np.ndarray], shape: tuple[int, ...]) -> tuple[Any, ...]:
    if len(shape) <= 1:
        return tuple(masks)
    each = len(masks) // shape[0]
    return tuple(_nested(masks[i * each : (i + 1) * each], shape[1:]) for i in range(shape[0]))
