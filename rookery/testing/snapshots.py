"""What tests do with snapshots and rollouts: pass them through a checkpoint's eyes, spoil buffers, compare bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rookery.data import arrays
from rookery.topologies.job import Progress
from rookery.trees import tree_leaves
from rookery.types import PyTree, Rollout


def checkpointed(tree: Any) -> Any:
    """Make of a tree what a checkpoint makes of it: tuples come back as lists, numpy scalars as arrays."""
    if isinstance(tree, dict):
        return {key: checkpointed(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [checkpointed(value) for value in tree]
    return np.array(tree) if isinstance(tree, (np.ndarray, np.generic)) else tree


def digest(params: PyTree) -> str:
    """Hash parameters: those with the same digest are the same, bit for bit."""
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


def dirty_rollout(specs: Rollout) -> Rollout:
    """Allocate a rollout in memory that is not clean: whatever is not written shows."""
    rollout = arrays.allocate(specs)
    for leaf in tree_leaves(rollout):
        leaf[:] = 99
    return rollout


def assert_same_rollout(a: Rollout, b: Rollout) -> None:
    """Assert that two rollouts are the same, bit for bit, and name the leaf that differs."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.tobytes() == np.ascontiguousarray(y).tobytes(), jax.tree_util.keystr(path)


def drive_until(driver: Iterator[Progress], updates: int, *, steps: int = 5_000) -> Progress:
    """Drive a topology until it has made so many updates. steps: of the driver, at most."""
    progress = None
    for _, progress in zip(range(steps), driver):
        if progress.updates >= updates:
            return progress
    made = progress.updates if progress is not None else 0
    raise AssertionError(f"{made} updates after {steps:,} steps of the driver, {updates} were to be made")
