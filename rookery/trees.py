"""Trees of arrays (dict, list, tuple, NamedTuple) without jax, for the processes that must not import it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rookery.types import PyTree


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one leaf (a dataclass, not a tuple: trees may contain tuples)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def tree_map(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Map a function over the leaves, as jax.tree.map does; None has no leaves."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [tree_map(function, value, *(other[i] for other in rest)) for i, value in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return None if tree is None else function(tree, *rest)


def tree_leaves(tree: PyTree) -> list[Any]:
    """List the leaves in jax's order: dictionaries by sorted key."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    return [] if tree is None else [tree]
