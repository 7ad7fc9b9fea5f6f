"""The cross-entropy method (Rubinstein 1997) over actions in units of their bounds: the best of a box, by samples alone.

    (mean, deviation) ← (0, 1)
    repeat: draw `samples` from the Gaussian, cut to [-1, 1]; mean and deviation ← those of the `elites` that score most

A deviation of one covers the whole box, a third of what it draws lies on the bounds, and the deviation of elites that all lie
on a bound is zero there: an optimum at a bound is found exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.types import Array


class Best(NamedTuple):
    """What the search has found."""

    action: Array  # [B, size] in [-1, 1]
    score: Array  # [B]


def cross_entropy_method(
    score: Callable[[Array], Array], key: Array, *, batch: int, size: int, samples: int, elites: int, iterations: int
) -> Best:
    """Search the action of the highest score for each of B states at once. Shapes are fixed; no gradient flows.

    score: actions [N, B, size] -> [N, B]. Of the last mean and of all that was drawn, the best is taken: between two peaks lies
    a mean that is no good, and on a smooth one the mean is nearer than any draw.
    """
    mean, deviation = jnp.zeros((batch, size)), jnp.ones((batch, size))
    best = Best(mean, jnp.full((batch,), -jnp.inf))
    for own in jax.random.split(key, iterations):
        noise = jax.random.normal(own, (samples, batch, size))
        drawn = jnp.clip(mean[None] + deviation[None] * noise, -1.0, 1.0)
        worth = score(drawn)  # [N, B]
        highest, which = jax.lax.top_k(worth.T, elites)  # [B, elites]
        chosen = jnp.take_along_axis(drawn.swapaxes(0, 1), which[..., None], 1)  # [B, elites, size]
        best = _better(best, Best(chosen[:, 0], highest[:, 0]))
        mean, deviation = chosen.mean(1), chosen.std(1)
    best = _better(best, Best(mean, score(mean[None])[0]))
    return Best(*jax.lax.stop_gradient(tuple(best)))


def _better(one: Best, other: Best) -> Best:
    higher = other.score > one.score
    return Best(jnp.where(higher[:, None], other.action, one.action), jnp.where(higher, other.score, one.score))
