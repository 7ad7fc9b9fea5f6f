"""Pieces of a batch: the columns of each minibatch, where there are several passes or gradient steps, and chunks that fit into
the cache."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery import spaces
from rookery.types import Array, Batch, Spec

ROWS = 64  # of a minibatch, where nobody said how many there are
MOST = 32  # minibatches of an epoch, however large the batch


def minibatches_for(asked: int | None, *, pieces: int, rows: int) -> int:
    """Choose how many minibatches a batch of `rows` is cut into: as asked, or about 64 rows each, but at most 32 that share
    its pieces (rows, or sequences that stay whole) evenly."""
    if asked is not None:
        return asked
    return max(n for n in range(1, min(MOST, max(1, rows // ROWS)) + 1) if pieces % n == 0)


def shuffles(key: Array, epochs: int, columns: int) -> Array:
    """Draw a new order of the columns for each epoch, [epochs, columns].

    One random permutation is read in each epoch with another stride (coprime to its length) and start: every minibatch is
    drawn anew, and only one sort is paid (sorting 4 x 2,048 took 1.5 ms of an 11 ms update on CPU).
    """
    keys = dict(zip(("order", "stride", "start"), jax.random.split(key, 3)))
    strides = np.array([a for a in range(1, columns + 1) if math.gcd(a, columns) == 1 and a * columns < 2**31], np.uint32)
    # random bits above the index: numbers alone are sorted in a quarter of the time of an argsort
    places = max(1, (columns - 1).bit_length())
    tickets = (jax.random.bits(keys["order"], (columns,)) << places) | jnp.arange(columns, dtype=jnp.uint32)
    order = jnp.sort(tickets, stable=False) & jnp.uint32((1 << places) - 1)
    stride = jnp.asarray(strides)[jax.random.randint(keys["stride"], (epochs, 1), 0, len(strides))]
    start = jax.random.randint(keys["start"], (epochs, 1), 0, columns).astype(jnp.uint32)
    return order[(jnp.arange(columns, dtype=jnp.uint32)[None] * stride + start) % columns]


def chunks_for(spec: Spec, batch: Batch, frames: int = 168, most: int = 4) -> int:
    """Choose how many column chunks the gradient is accumulated over: on CPU, images go through the network about 168 frames
    at a time, so that activations stay in the cache; vectors, and accelerators, take the whole batch at once."""
    rows, columns = batch.rollout.valid.shape
    leaves = jax.tree.leaves(spaces.zeros(spec.observation, ()))
    if not any(leaf.ndim >= 2 and leaf.size >= 36 * 36 for leaf in leaves) or jax.default_backend() != "cpu":
        return 1
    divisors = [n for n in range(1, most + 1) if columns % n == 0]
    return next((n for n in divisors if (rows + 1) * columns / n <= frames), divisors[-1])


def pieces(batch: Batch, count: int) -> Batch:
    """Cut columns into [count, ..., B / count, ...], to be scanned over."""

    def cut(x: Array, axis: int) -> Array:
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    rows = {
        name: jax.tree.map(lambda x: cut(x, 1), getattr(batch.rollout, name))
        for name in ("observation", "action", "reward", "discount", "valid", "extras", "version", "weight")
    }
    return Batch(batch.rollout._replace(**rows), cut(batch.weight, 0), ())
