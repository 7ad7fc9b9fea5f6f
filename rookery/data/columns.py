"""Operations on columns of experience, when items are made or sampled. Plain functions on arrays [T, ...] and trees of them:

    chain(slice_steps(0, 80), time_major)(columns)

No operation changes what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rookery.trees import tree_map
from rookery.types import Array, PyTree

Operation = Callable[[PyTree], PyTree]


def n_step(
    *, reward: Array, discount: Array, valid: Array, gamma: float, n: int, count: int | None = None
) -> tuple[Array, Array, Array]:
    """Folds n rows into one transition, for each of the first `count` rows (by default all that have n rows).

    reward, discount, valid [T, ...] -> reward, discount, span [count, ...]: the sum of discounted rewards, the discount of
    what comes after them, and how many rows that is (n ≤ 255). A window ends before the first row that is no transition, so
    that a truncated episode bootstraps from its last observation, and the tail of an episode from shorter windows; behind a
    termination the discount is 0. Rows beyond T count as not there. float32 arrays of numpy or of jax, and so is the result.
    """
    xp, T = reward.__array_namespace__(), len(reward)
    count = max(0, T - n + 1) if count is None else count
    n = min(n, T)
    if (beyond := count + n - 1 - T) > 0:
        nothing = xp.zeros((beyond, *reward.shape[1:]), xp.float32)
        reward, discount, valid = (xp.concatenate([x, nothing]) for x in (reward, discount, valid))
    total = xp.zeros((count, *reward.shape[1:]), xp.float32)
    product, span, going = xp.ones_like(total), xp.zeros(total.shape, xp.uint8), xp.ones(total.shape, bool)
    for k in range(n):  # numpy adds in place, jax makes new arrays
        rows = slice(k, k + count)
        going &= valid[rows] > 0
        total += xp.where(going, product * reward[rows], 0.0)
        product = xp.where(going, product * (gamma * discount[rows]), product)
        span += going
    return total, product, span


def ages(first: np.ndarray, before: np.ndarray, most: int) -> np.ndarray:
    """first [T, B] -> rows since the episode's first, at most `most`, [T, B]; before [B]: of the row before (-1: none)."""
    out = np.empty(first.shape, np.int64)
    for t, flags in enumerate(first):
        before = np.where(flags, 0, np.minimum(before + 1, most))
        out[t] = before
    return out


def chain(*operations: Operation) -> Operation:
    """One operation after the other, the first first."""

    def applied(tree: PyTree) -> PyTree:
        for operation in operations:
            tree = operation(tree)
        return tree

    return applied


def concatenate(trees: Sequence[PyTree], axis: int = 0) -> PyTree:
    return tree_map(lambda *leaves: np.concatenate(leaves, axis), *trees)


def slice_steps(start: int, stop: int | None, step: int = 1) -> Operation:
    """Rows start, start + step ... before stop."""
    return lambda tree: tree_map(lambda x: x[start:stop:step], tree)


def truncate(length: int) -> Operation:
    """At most `length` rows, the first ones."""
    return slice_steps(0, length)


def time_major(tree: PyTree) -> PyTree:
    """[B, T, ...] -> [T, B, ...], and back."""
    return tree_map(lambda x: np.ascontiguousarray(np.swapaxes(x, 0, 1)), tree)


def stack_frames(frames: np.ndarray, first: np.ndarray, stack: int) -> np.ndarray:
    """frames [T, ...], first [T] -> [T, stack, ...], the oldest first; frames before the episode's first are zero."""
    T = len(frames)
    age = ages(first[:, None], np.full(1, -1), stack)[:, 0]
    out = np.zeros((T, stack, *frames.shape[1:]), frames.dtype)
    for back in range(stack):
        rows = np.flatnonzero(age >= back)
        out[rows, stack - 1 - back] = frames[rows - back]
    return out


def product(axis: int = 0) -> Operation:
    return lambda tree: tree_map(lambda x: np.prod(x, axis), tree)


def cumulative_product(axis: int = 0) -> Operation:
    return lambda tree: tree_map(lambda x: np.cumprod(x, axis), tree)


def mean(axis: int = 0) -> Operation:
    return lambda tree: tree_map(lambda x: np.mean(x, axis), tree)


def minimum(axis: int = 0) -> Operation:
    return lambda tree: tree_map(lambda x: np.min(x, axis), tree)


def maximum(axis: int = 0) -> Operation:
    return lambda tree: tree_map(lambda x: np.max(x, axis), tree)


def sequence_priority(errors: Any, weight: Any, eta: float) -> Any:
    """eta · max + (1 − eta) · mean of |errors| over axis 0, where weight is not 0 (Kapturowski et al. 2019). [T, B] -> [B]"""
    size = abs(errors) * (weight > 0)
    count = weight.sum(0)
    return eta * size.max(0) + (1.0 - eta) * size.sum(0) / (count + (count == 0))
