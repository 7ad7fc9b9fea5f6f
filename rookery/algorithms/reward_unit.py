"""The unit of rewards that are replayed: the mean size of those that are not zero.

An actor-critic divides by the deviation of the discounted return, for which whole episodes must be seen in order
(normalisers.py). Who draws single transitions knows their rewards alone. The mean size of those that are not zero is 1 wherever
a reward is 0, 1 or −1, however rare it is, so that such tasks are learned as they come, and it follows a unit of money or of
thousandths exactly. Moments of [size, is not zero] are a leaf of the parameters, as those of the normalisers.
"""

from __future__ import annotations

import jax.numpy as jnp

from rookery import ops
from rookery.types import Array, Rollout


def init() -> ops.moments.Moments:
    """Return the moments of no rewards: their unit is 1."""
    return ops.moments.init((2,))


def statistics(rollout: Rollout) -> ops.moments.Moments:
    """Take the moments [size, is not zero] of the rewards of a rollout alone."""
    rows = jnp.stack([jnp.abs(rollout.reward), (rollout.reward != 0).astype(jnp.float32)], -1)
    return ops.moments.of(rows, 1, rollout.valid)


def unit(moments: ops.moments.Moments, n: int = 1) -> Array:
    """Compute the mean size [] of a reward that is not zero, of sums of n of them; 1 as long as there was none.

    A share f of the sums is not zero, so a share p = 1 − (1 − f)^(1/n) of their rewards is not, and n p of them make up a sum:
    three rewards of 1 have the unit 1, as a single one among zeros has. Rewards of both signs in one sum count for less.
    """
    size, share = moments.mean[0], jnp.minimum(moments.mean[1], 1.0)
    each = share if n == 1 else -n * jnp.expm1(jnp.log1p(-share) / n)
    return jnp.where(size > 0, size / jnp.maximum(each, 1e-30), 1.0)
