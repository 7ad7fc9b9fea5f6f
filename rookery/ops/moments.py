"""Running mean and standard deviation as a value, for observations, rewards and returns.

Moments are merged by the parallel rule of Chan, Golub & LeVeque (1983). What float32 rounds off is carried to the next
update (Kahan): 10⁸ samples in small batches would otherwise stop counting at 2²⁴ and drift by several per cent.
They are leaves of `params`, updated by the learner after use; a gradient never reaches them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rookery.ops.masked import align


class Moments(NamedTuple):
    count: Array  # type: ignore[assignment]  # [] float32; hides tuple.count
    mean: Array  # [*shape] float32
    m2: Array  # [*shape] float32: sum of squared deviations from the mean
    lost: tuple[Array, Array, Array]  # what rounding has kept out of count, mean and m2


def init(shape: tuple[int, ...] = ()) -> Moments:
    """Return the moments of nothing; `normalise` leaves x as it is (but for the clip). Every leaf is an array of its own."""
    return Moments(
        count=jnp.zeros(()),
        mean=jnp.zeros(shape),
        m2=jnp.zeros(shape),
        lost=(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape)),
    )


def of(x: Array, rank: int, mask: Array | None = None) -> Moments:
    """Take the moments of samples x [..., *shape] alone, where `shape` has `rank` axes; those whose mask [...] is not 0."""
    return update(init(x.shape[x.ndim - rank :]), x, mask)


def update(moments: Moments, x: Array, mask: Array | None = None) -> Moments:
    """Merge the samples x [..., *shape] of all leading axes, those whose mask [...] is not 0. No gradient flows."""
    x, moments = jax.lax.stop_gradient((x, moments))
    axes = tuple(range(x.ndim - moments.mean.ndim))
    deviation = x.astype(jnp.float32) - _lift(moments.mean, x)  # small numbers: keeps the digits when |mean| >> std
    if mask is None:
        count = jnp.asarray(float(x.size // max(moments.mean.size, 1)))
        mean = jnp.mean(deviation, axes)
        m2 = jnp.sum(jnp.square(deviation - _lift(mean, x)), axes)
    else:
        keep = jnp.broadcast_to(mask, x.shape[: len(axes)]) != 0
        count = jnp.sum(keep, dtype=jnp.float32)
        keep = align(keep, x)
        mean = jnp.sum(jnp.where(keep, deviation, 0), axes) / jnp.maximum(count, 1)
        m2 = jnp.sum(jnp.where(keep, jnp.square(deviation - _lift(mean, x)), 0), axes)
    return _merged(moments, count, mean, m2)


def merge(moments: Moments, count: Array, mean: Array, m2: Array) -> Moments:
    """Merge samples of which only the count [], the mean and m2 [*shape] are known. No gradient flows."""
    count, mean, m2, moments = jax.lax.stop_gradient((count, mean, m2, moments))
    return _merged(moments, count, mean - moments.mean, m2)


def _merged(moments: Moments, count: Array, mean: Array, m2: Array) -> Moments:
    """Merge moments of other samples in; mean: as a deviation from the one so far."""
    share = count / jnp.maximum(moments.count + count, 1)
    count_new, count_lost = _add(moments.count, moments.lost[0], count)
    mean_new, mean_lost = _add(moments.mean, moments.lost[1], mean * share)
    m2_new, m2_lost = _add(moments.m2, moments.lost[2], m2 + jnp.square(mean) * (moments.count * share))
    return Moments(count_new, mean_new, m2_new, (count_lost, mean_lost, m2_lost))


def std(moments: Moments) -> Array:
    """Compute the standard deviation [*shape]; 1 where nothing has varied yet beyond rounding, so that it can be divided by."""
    moments = jax.lax.stop_gradient(moments)
    deviation = jnp.sqrt(moments.m2 / jnp.maximum(moments.count, 1))
    return jnp.where(deviation > 1e-6 * jnp.abs(moments.mean), deviation, 1)


def normalise(moments: Moments, x: Array, clip: float | None = 10.0) -> Array:
    """Compute (x − mean) / std, clipped to ±clip. x [..., *shape] of any dtype -> float32. Gradients flow to x alone."""
    mean = jax.lax.stop_gradient(moments.mean)
    scaled = (x.astype(jnp.float32) - _lift(mean, x)) * _lift(1 / std(moments), x)
    return scaled if clip is None else jnp.clip(scaled, -clip, clip)


def _lift(statistic: Array, x: Array) -> Array:
    """Give a [*shape] statistic the rank of x [..., *shape]."""
    return statistic.reshape((1,) * (x.ndim - statistic.ndim) + statistic.shape)


def _add(total: Array, lost: Array, increment: Array) -> tuple[Array, Array]:
    """Add by Kahan's sum: (total + lost + increment, what that rounding loses)."""
    increment = increment + lost
    result = total + increment
    return result, increment - (result - total)
