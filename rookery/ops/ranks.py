"""Ranks in place of returns: what evolution strategies are shaped by (Salimans et al. 2017, section 2.1)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def centred_ranks(x: Array) -> Array:
    """Rank x [N] -> [N] from -0.5 (the lowest) to 0.5 (the highest), their sum 0. Equal numbers share the mean of their ranks.

    Ranks given to ties in the order of an argsort would prefer one member to its equal by its place. A sum of 1 and -1 is
    exact in float32, in whatever order it is added: every machine finds the same ranks. No gradient flows.
    """
    above = jnp.sum(jnp.sign(x[:, None] - x[None]), 1)  # how many are below, less how many are above
    return above / (2 * max(x.size - 1, 1))
