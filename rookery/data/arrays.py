"""Preallocated rollouts: aligned memory that jax reads without a copy, and column views that collectors write into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rookery.trees import ArraySpec, tree_leaves, tree_map
from rookery.types import BATCH_MAJOR, PyTree, Rollout

ALIGNMENT = 64  # bytes; XLA on CPU borrows host arrays that are aligned like this and copies all others


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def allocate(specs: Rollout) -> Rollout:
    """Allocate a rollout of zeros in aligned memory."""
    return tree_map(lambda spec: aligned_zeros(spec.shape, spec.dtype), specs)


def widen(specs: Rollout, columns: int) -> Rollout:
    """Return the specs of the same rollout with `columns` environments."""

    def fields(name: str, part: PyTree) -> PyTree:
        axis = 0 if name in BATCH_MAJOR else 1
        return tree_map(lambda s: ArraySpec((*s.shape[:axis], columns, *s.shape[axis + 1 :]), s.dtype), part)

    return Rollout(*(fields(name, part) for name, part in specs._asdict().items()))


def columns(rollout: Rollout, part: slice) -> Rollout:
    """Return a view of some environments of a rollout: writing into it writes into the whole."""
    return Rollout(
        *(
            tree_map(lambda x, name=name: x[part] if name in BATCH_MAJOR else x[:, part], field)
            for name, field in rollout._asdict().items()
        )
    )


def spread_evenly(counts: Sequence[int]) -> np.ndarray:
    """Order the columns of several batches, one behind the other, so that those of each are spread over the whole: any piece
    of it has the same shares. -> [sum of counts] indices"""
    return np.argsort(np.concatenate([(np.arange(count) + 0.5) / count for count in counts]), kind="stable")


def nbytes(tree: PyTree) -> int:
    """Count the bytes of arrays or of their specs."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize for leaf in tree_leaves(tree))
