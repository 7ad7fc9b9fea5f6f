"""Preallocated rollouts: aligned memory that jax reads without a copy, and column views that collectors write into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rookery.types import PyTree, Rollout

ALIGNMENT = 64  # bytes; XLA on CPU borrows host arrays that are aligned like this and copies all others
BATCH_MAJOR = ("memory", "stream", "step")  # fields of Rollout whose first axis is B; all others are [T, B, ...]


class ArraySpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def tree_map(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """jax.tree.map for dicts, lists, tuples and NamedTuples, without jax. An ArraySpec is a leaf; None has no leaves."""
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in rest)) for key in tree}
    if isinstance(tree, (list, tuple)) and not isinstance(tree, ArraySpec):
        items = [tree_map(function, *parts) for parts in zip(tree, *rest, strict=True)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return None if tree is None else function(tree, *rest)


def tree_leaves(tree: PyTree) -> list[Any]:
    """Leaves in jax's order: dictionaries by sorted key."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    if isinstance(tree, (list, tuple)) and not isinstance(tree, ArraySpec):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    return [] if tree is None else [tree]


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def allocate(specs: Rollout) -> Rollout:
    """A rollout of zeros in aligned memory."""
    return tree_map(lambda spec: aligned_zeros(spec.shape, spec.dtype), specs)


def widen(specs: Rollout, columns: int) -> Rollout:
    """The same rollout with `columns` environments."""

    def fields(name: str, part: PyTree) -> PyTree:
        axis = 0 if name in BATCH_MAJOR else 1
        return tree_map(lambda s: ArraySpec((*s.shape[:axis], columns, *s.shape[axis + 1 :]), s.dtype), part)

    return Rollout(*(fields(name, part) for name, part in specs._asdict().items()))


def columns(rollout: Rollout, part: slice) -> Rollout:
    """A view of some environments of a rollout: writing into it writes into the whole."""
    return Rollout(
        *(
            tree_map(lambda x, name=name: x[part] if name in BATCH_MAJOR else x[:, part], field)
            for name, field in rollout._asdict().items()
        )
    )


def nbytes(tree: PyTree) -> int:
    """Bytes of arrays or of their specs."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize for leaf in tree_leaves(tree))
