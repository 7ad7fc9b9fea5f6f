"""Means and moments over the entries that a mask keeps.

A mask is [T, B] floats (0/1, or weights) or booleans. One of lower rank than x is matched to x's leading axes: `valid`
[T, B] masks x [T, B, K]. Entries with mask 0 count for nothing, even when they are infinite or NaN (their gradient is 0
here; 0 · inf further upstream is still NaN). With an all-zero mask every result is 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from rookery.types import Rollout


def all_alike(rollout: Rollout) -> bool:
    """Tell whether every transition of a rollout counts alike in a loss: nobody gave its rows weights."""
    return isinstance(rollout.weight, tuple)


def row_weights(rollout: Rollout) -> Array:
    """Return how much each row counts in a loss: `valid` · `weight`, [T, B]. Losses are reduced by it.

    Recursions take `valid` alone: a row of weight 0 teaches nothing, and its reward is still part of the return before it.
    """
    return rollout.valid if all_alike(rollout) else rollout.valid * rollout.weight


def masked_mean(x: Array, mask: Array) -> Array:
    """Compute Σ mask x / Σ mask over all axes. x [T, B, ...], mask [T, B] -> scalar. Gradients flow to x."""
    mask = align(mask, x)
    return _total(x, mask) / _weight(x, mask)


def masked_moments(x: Array, mask: Array) -> tuple[Array, Array]:
    """Compute mean and (population) standard deviation over all axes. x [T, B, ...], mask [T, B] -> two scalars.

    Gradients flow to x; that of the standard deviation is infinite where all kept entries are equal.
    """
    mask = align(mask, x)
    weight = _weight(x, mask)
    mean = _total(x, mask) / weight
    # Two passes: E[x²] − E[x]² loses every digit when the mean is large beside the deviation.
    variance = _total(jnp.square(x - mean), mask) / weight
    return mean, jnp.sqrt(variance)


def masked_normalise(x: Array, mask: Array, epsilon: float = 1e-8) -> Array:
    """Normalise advantages: (x − mean) / (std + epsilon) where mask is not 0, and 0 elsewhere.

    x [T, B, ...], mask [T, B] -> [T, B, ...]. No gradient flows through the result.
    """
    x = jax.lax.stop_gradient(x)
    mask = align(mask, x)
    mean, std = masked_moments(x, mask)
    return jnp.where(mask != 0, (x - mean) / (std + epsilon), 0)


def align(mask: Array, x: Array) -> Array:
    """Give `mask` [T, B] the rank of x [T, B, ...] by axes of size 1 at its end."""
    missing = jnp.ndim(x) - jnp.ndim(mask)
    if missing < 0:
        raise ValueError(f"A mask of shape {jnp.shape(mask)} has more axes than what it masks: {jnp.shape(x)}.")
    return mask.reshape(mask.shape + (1,) * missing) if missing else mask


def _total(x: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask != 0, x * mask, 0))


def _weight(x: Array, mask: Array) -> Array:
    weight = jnp.sum(mask, dtype=jnp.result_type(float)) * (x.size // mask.size)
    return jnp.where(weight == 0, 1, weight)
