"""Gymnasium spaces as trees of arrays.

Inside Rookery every observation and action is *canonical*: a dict, a tuple or an array of a small set of types.

| space | canonical array (one item) |
|---|---|
| Box float16/32/64 | float32, same shape |
| Box of integers or bool | same type, except 64 bits -> 32 bits (saturating); uint8 stays uint8 |
| Discrete(n, start) | int32 scalar in [0, n) |
| MultiDiscrete(nvec, start) | int32, same shape, each entry in [0, nvec) |
| MultiBinary | int8 of 0 and 1 |
| Dict, Tuple | dict with the same keys, tuple |

`canonical(space)` is the space of the canonical values; it is what `Spec` holds. Nothing here imports jax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery.trees import ArraySpec, tree_map
from rookery.types import PyTree, Spec

_NARROW = {"float64": "float32", "float16": "float32", "longdouble": "float32", "int64": "int32", "uint64": "uint32"}

_REMEDY = {
    gs.Text: "encode the text as a MultiDiscrete or a Box (gymnasium.wrappers.TransformObservation)",
    gs.Graph: "pad nodes and edges to a fixed size: a Dict of Box leaves and a MultiBinary mask",
    gs.Sequence: "pad to a fixed length: a Dict of a Box and a MultiBinary mask",
    gs.OneOf: "use a Dict with a Discrete choice and every alternative as a leaf of its own",
}


class UnsupportedSpace(TypeError):
    """A leaf of a space that cannot become an array of fixed shape."""


# ------------------------------------------------------------------------------------------------- the tree walk


def map_space(function: Callable[[Space], Any], space: Space) -> PyTree:
    """Map a space to the tree with `function(leaf space)` at the leaves."""
    if isinstance(space, gs.Dict):
        return {key: map_space(function, sub) for key, sub in space.items()}
    if isinstance(space, gs.Tuple):
        return tuple(map_space(function, sub) for sub in space.spaces)
    return function(space)


def leaves(space: Space, keys: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Space]]:
    """Yield (path, keys to reach it, leaf space), depth first, in the order in which the space holds them."""
    if isinstance(space, gs.Dict):
        for key, sub in space.items():
            yield from leaves(sub, (*keys, key))
    elif isinstance(space, gs.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from leaves(sub, (*keys, i))
    else:
        yield ".".join(map(str, keys)), keys, space


def take(tree: PyTree, index: Any) -> PyTree:
    """Take `leaf[index]` of every leaf."""
    if isinstance(tree, np.ndarray):
        return tree[index]
    return tree_map(lambda leaf: leaf[index], tree)


# ---------------------------------------------------------------------------------------------------- spaces


def check(space: Space, role: str = "observation") -> None:
    """Refuse what cannot become arrays, naming the leaf and what to do. `role`: "observation" or "action"."""
    for path, _, leaf in leaves(space):
        place = f"{role} leaf {path!r}" if path else f"the {role} space"
        if isinstance(leaf, gs.Box):
            if leaf.dtype is None or leaf.dtype.kind not in "fiub":
                raise UnsupportedSpace(f"{place} is a Box of {leaf.dtype}: only real numbers and bool work")
            if role == "action" and 0 in leaf.shape:
                raise UnsupportedSpace(f"{place} is {leaf}, which holds no number to choose: leave it out")
        elif not isinstance(leaf, (gs.Discrete, gs.MultiDiscrete, gs.MultiBinary)):
            remedy = next((text for kind, text in _REMEDY.items() if isinstance(leaf, kind)), None)
            raise UnsupportedSpace(
                f"{place} is a {type(leaf).__name__} space, which has no fixed array shape: "
                f"{remedy or 'wrap the environment so that it is built of Box, Discrete, MultiDiscrete, MultiBinary'}"
            )


def canonical(space: Space) -> Space:
    """Return the space of the canonical values of `space` (see the table above)."""
    check(space)
    if isinstance(space, gs.Dict):
        return gs.Dict({key: canonical(sub) for key, sub in space.items()})
    if isinstance(space, gs.Tuple):
        return gs.Tuple([canonical(sub) for sub in space.spaces])
    dtype = _array_spec(space).dtype
    if isinstance(space, gs.Discrete):
        return gs.Discrete(int(space.n), dtype=dtype.type)
    if isinstance(space, gs.MultiDiscrete):
        return gs.MultiDiscrete(space.nvec, dtype=dtype.type)
    if isinstance(space, gs.Box) and space.dtype != dtype:
        # Integers saturate; floats beyond the range of float32 become infinite, which is what their bound means.
        with np.errstate(over="ignore"):
            low, high = (np.asarray(saturate(space, bound)).astype(dtype) for bound in (space.low, space.high))
        return gs.Box(low, high, shape=space.shape, dtype=dtype.type)
    return space


def array_specs(space: Space) -> PyTree:
    """Return the tree of `ArraySpec` of one item (no leading axes)."""
    check(space)
    return map_space(_array_spec, space)


def zeros(space: Space, leading_shape: tuple[int, ...] = ()) -> PyTree:
    """Make a tree of zeros, `leading_shape + leaf shape`, of the canonical types."""

    check(space)

    def leaf_zeros(leaf: Space) -> np.ndarray:
        spec = _array_spec(leaf)
        return np.zeros((*leading_shape, *spec.shape), spec.dtype)

    return map_space(leaf_zeros, space)


def spec_of(observation: Space, action: Space, id: str) -> Spec:
    """Make the Spec of an environment with these spaces of its own."""
    check(observation, "observation")
    check(action, "action")
    return Spec(canonical(observation), canonical(action), id, raw=(observation, action))


def with_previous(spec: Spec) -> Spec:
    """Extend the spec for agents that observe their previous action and reward.

    observation becomes Dict(observation=..., previous_action=canonical action, previous_reward=float32 scalar);
    both are zero at the first step of an episode.
    """
    reward = gs.Box(-np.inf, np.inf, (), np.float32)
    observation = {"observation": spec.observation, "previous_action": spec.action, "previous_reward": reward}
    return spec._replace(observation=gs.Dict(observation))


def map_previous_reward(function: Callable[[Any], Any], observation: PyTree) -> PyTree:
    """Apply `function` to the previous reward of an observation that `with_previous` describes, whatever its leading axes."""
    return observation | {"previous_reward": function(observation["previous_reward"])}


def _array_spec(leaf: Space) -> ArraySpec:
    if isinstance(leaf, gs.Discrete):
        return ArraySpec((), np.dtype(np.int32))
    if isinstance(leaf, gs.MultiDiscrete):
        return ArraySpec(tuple(leaf.nvec.shape), np.dtype(np.int32))
    if isinstance(leaf, gs.MultiBinary):
        return ArraySpec(tuple(leaf.shape), np.dtype(np.int8))
    if isinstance(leaf, gs.Box) and leaf.dtype is not None:
        return ArraySpec(tuple(leaf.shape), np.dtype(_NARROW.get(leaf.dtype.name, leaf.dtype.name)))
    check(leaf, "leaf")
    raise AssertionError("check() refuses every other space")


def saturate(space: Space, value: Any) -> Any:
    """Clip 64-bit integers of a Box to the 32 bits that they are stored in; return anything else as it is."""
    narrow = _array_spec(space).dtype
    if not isinstance(space, gs.Box) or narrow.kind not in "iu" or space.dtype == narrow:
        return value
    return np.clip(value, np.iinfo(narrow).min, np.iinfo(narrow).max)


# ---------------------------------------------------------------------------------------------------- values


def observation_decoder(space: Space) -> Callable[[PyTree], PyTree]:
    """Make the function from an environment's observations to canonical ones, for a batch or one item.

    Discrete values count from 0, and arrays are contiguous. Built once per space: asking a gymnasium space for its kind
    costs more than converting 64 observations.
    """
    if isinstance(space, gs.Dict):
        parts = {key: observation_decoder(sub) for key, sub in space.items()}
        return lambda value: {key: decode(value[key]) for key, decode in parts.items()}
    if isinstance(space, gs.Tuple):
        decoders = [observation_decoder(sub) for sub in space.spaces]
        return lambda value: tuple(decode(item) for decode, item in zip(decoders, value))
    dtype, start = _array_spec(space).dtype, _start(space)
    if isinstance(space, gs.Box) and space.dtype is not None and space.dtype != dtype and dtype.kind in "iu":
        return lambda value: np.asarray(saturate(space, value), dtype, order="C")
    if start is None:
        return lambda value: np.asarray(value, dtype, order="C")
    return lambda value: (np.asarray(value) - start).astype(dtype)


def canonical_observation(space: Space, value: PyTree) -> PyTree:
    """Apply `observation_decoder(space)`, for where speed does not matter."""
    return observation_decoder(space)(value)


def action_encoder(space: Space, num_envs: int | None = None, path: str = "action") -> Callable[[PyTree], PyTree]:
    """Make the function from canonical actions to an environment's: add `start`, clip a Box to its bounds, convert types.

    The action [B, ...] is canonical and `space` is the environment's own. With `num_envs` the shape [B, ...] is
    checked; without it any leading axes are taken. The function raises ValueError, naming the leaf, for a wrong
    shape, a fraction where a count is due, a count out of range, or a number that is not finite. It may return
    the array that it was given.
    """
    if isinstance(space, gs.Dict):
        parts = {key: action_encoder(sub, num_envs, f"{path}.{key}") for key, sub in space.items()}
        return lambda action: {key: encode(action[key]) for key, encode in parts.items()}
    if isinstance(space, gs.Tuple):
        encoders = [action_encoder(sub, num_envs, f"{path}.{i}") for i, sub in enumerate(space.spaces)]
        return lambda action: tuple(encode(action[i]) for i, encode in enumerate(encoders))
    shape = None if num_envs is None else (num_envs, *_array_spec(space).shape)
    encode = _box_encoder(space, path) if isinstance(space, gs.Box) else _count_encoder(space, path)

    def checked(action: PyTree) -> np.ndarray:
        array = np.asarray(action)
        if shape is not None and array.shape != shape:
            raise ValueError(f"{path} has shape {array.shape}, expected {shape}")
        return encode(array)

    return checked


def canonical_action(space: Space, action: PyTree) -> PyTree:
    """Apply `action_encoder(space)`, for where speed does not matter."""
    return action_encoder(space)(action)


def _start(space: Space) -> Any:
    """Return the `start` of a discrete space: None where nothing is to be added."""
    start = space.start if isinstance(space, (gs.Discrete, gs.MultiDiscrete)) else 0
    return start if np.any(start) else None


_UNSIGNED = {np.dtype(f"i{size}"): np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def _count_encoder(space: Space, path: str) -> Callable[[np.ndarray], np.ndarray]:
    limit = space.n if isinstance(space, gs.Discrete) else space.nvec if isinstance(space, gs.MultiDiscrete) else 2
    scalar, start, dtype = isinstance(limit, (int, np.integer)), _start(space), space.dtype

    def encode(array: np.ndarray) -> np.ndarray:
        unsigned = _UNSIGNED.get(array.dtype)
        if unsigned is None and array.dtype.kind not in "ub":
            raise ValueError(f"{path} has type {array.dtype}, but {space} takes integers that count from 0")
        if scalar and unsigned is not None and array.size:
            # One reduction: a negative number read as unsigned is huge.
            fits = array.view(unsigned).max() < limit
        else:
            fits = (array >= 0).all() and (array < limit).all()
        if not fits:
            raise ValueError(f"{path} is out of range: {space} takes integers that count from 0, got {array}")
        array = array if array.dtype == dtype else array.astype(dtype)
        return array if start is None else array + start

    return encode


def _box_encoder(space: gs.Box, path: str) -> Callable[[np.ndarray], np.ndarray]:
    low, high, dtype = space.low, space.high, space.dtype
    whole = dtype is not None and dtype.kind in "iu"

    def encode(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{path} is not finite: {array}")
        array = np.rint(array) if whole and array.dtype.kind == "f" else array
        return np.clip(array, low, high).astype(dtype, copy=False)

    return encode
