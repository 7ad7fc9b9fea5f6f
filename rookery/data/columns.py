"""Operations on columns of experience, when items are made or sampled. Plain functions on arrays [T, ...], which they leave
as they are."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces as gs

from rookery import spaces
from rookery.types import Array, Spec


def is_stack(shape: tuple[int, ...], frames: int) -> bool:
    """Tell whether an array of an observation is so many frames, on its first axis."""
    return frames > 0 and len(shape) >= 3 and shape[0] == frames


def frames_of(spec: Spec) -> int:
    """Return how many frames the pool stacks to the images of an observation; 0: none, or what is no stack looks like one."""
    frames = getattr(spec.pool, "frame_stack", 1)
    alike = [(keys, leaf) for _, keys, leaf in spaces.leaves(spec.observation) if is_stack(leaf.shape or (), frames)]
    stacks = all(isinstance(leaf, gs.Box) and "action_mask" not in keys for keys, leaf in alike)
    return frames if frames > 1 and alike and stacks else 0


def n_step(
    *, reward: Array, discount: Array, valid: Array, gamma: float, n: int, count: int | None = None
) -> tuple[Array, Array, Array]:
    """Fold n rows into one transition, for each of the first `count` rows (by default all that have n rows).

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
    """Count rows since the episode's first, up to `most`. first [T, B] -> [T, B]; before [B]: of the row before (-1: none)."""
    out = np.empty(first.shape, np.int64)
    for t, flags in enumerate(first):
        before = np.where(flags, 0, np.minimum(before + 1, most))
        out[t] = before
    return out


def sequence_priority(errors: Array, weight: Array, eta: float) -> Array:
    """Mix eta · max + (1 − eta) · mean of |errors| over the rows with a weight (Kapturowski et al. 2019). [T, B] -> [B]"""
    size = abs(errors) * (weight > 0)
    count = weight.sum(0)
    return eta * size.max(0) + (1.0 - eta) * size.sum(0) / (count + (count == 0))
