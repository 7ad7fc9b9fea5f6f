"""Observations as an environment gives them, one or a batch, read for a policy; what does not fit is refused by leaf, with what
was expected and what was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery import spaces
from rookery.trees import tree_map
from rookery.types import PyTree


class Reading(NamedTuple):
    """What was read."""

    observation: PyTree  # canonical, [B, ...]
    size: int  # B
    batched: bool  # there was a leading axis


def read(space: Space, observation: PyTree) -> Reading:
    """Read an observation of an environment's own space, or a batch of them (a leading axis on every leaf)."""
    sizes = {name: _size(name, leaf, value) for name, leaf, value in _pairs(space, observation, ())}
    found = set(sizes.values())
    if len(found) > 1:
        told = ", ".join(f"{name}: {'one' if size is None else f'a batch of {size}'}" for name, size in sizes.items())
        raise ValueError(f"the leaves of an observation belong to one observation, or to one batch; here they are {told}")
    size = found.pop() if found else None
    canonical = spaces.canonical_observation(space, observation)
    if size is None:
        return Reading(tree_map(lambda x: np.asarray(x)[None], canonical), 1, False)
    return Reading(canonical, size, True)


def _pairs(space: Space, value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[str, Space, Any]]:
    """Yield (name, space, value) of each leaf."""
    name = "observation" + "".join(f"[{key!r}]" for key in keys)
    if isinstance(space, gs.Dict):
        missing = [key for key in space.spaces if not isinstance(value, dict) or key not in value]
        if missing:
            expected = f"expected a dict with {', '.join(map(repr, space.spaces))}"
            raise ValueError(f"{name} has no leaf {missing[0]!r}: {expected}, got {_short(value)}")
        for key, sub in space.items():
            yield from _pairs(sub, value[key], (*keys, key))
    elif isinstance(space, gs.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            had = f"{len(value)} parts" if isinstance(value, (tuple, list)) else _short(value)
            raise ValueError(f"{name} is a tuple of {len(space.spaces)}, got {had}")
        for i, sub in enumerate(space.spaces):
            yield from _pairs(sub, value[i], (*keys, i))
    else:
        yield name, space, value


def _size(name: str, space: Space, value: Any) -> int | None:
    """Check a leaf; return its leading axis, None where it is one observation."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: {_expected(space)}, got rows of different lengths") from error
    shape = tuple(space.shape or ())
    if shape not in (array.shape, array.shape[1:]):
        raise ValueError(f"{name}: {_expected(space)}, got {_short(value)}")
    spec = spaces.array_specs(space)
    if array.dtype.kind not in "fiub" or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        remedy = " Convert it (astype)" if array.dtype.kind in "fiub" else " Give it numbers"
        raise ValueError(f"{name}: {_expected(space)}, got {_short(value)}.{remedy}, as its environment does")
    limit = space.n if isinstance(space, gs.Discrete) else space.nvec if isinstance(space, gs.MultiDiscrete) else None
    if limit is not None:
        counted = array - space.start  # type: ignore[attr-defined]
        if (counted < 0).any() or (counted >= limit).any():
            raise ValueError(f"{name}: {_expected(space)}, got {array}, which is outside of it")
    return None if array.shape == shape else len(array)


def _expected(space: Space) -> str:
    shape = tuple(space.shape or ())
    inner = "".join(f", {n}" for n in shape)
    return f"expected {np.dtype(space.dtype).name} of shape {shape}, or (B{inner or ','}) of a batch: {_cut(str(space))}"


def _short(value: Any) -> str:
    if isinstance(value, (str, bytes)) or value is None:
        return _cut(repr(value))
    if isinstance(value, dict):
        return f"a dict with {_cut(', '.join(map(repr, value)))}"
    try:
        array = np.asarray(value)
    except ValueError:
        return f"a {type(value).__name__}"
    return f"{array.dtype} of shape {array.shape}" if array.dtype.kind in "fiub" else f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
