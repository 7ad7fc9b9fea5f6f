"""Columns that are spread over processes, and the gradient that is summed over them as one vector.

A learner of several processes traces `learn` under a mesh whose axis is AXIS. All of it keeps the meaning that it has on
one device: XLA cuts the arrays and puts the sums in. But over processes it sums the gradient leaf by leaf, and a message
for each of 20 small leaves costs 3 to 4 times as much as one for all. Parameters and data meet in one place, the network,
which treats each column by itself: there the parameters come as one vector, so that what flows back into them does, too.
Without such a mesh nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from rookery.types import PyTree

AXIS = "columns"
ROWS, LANES = PartitionSpec(None, AXIS), PartitionSpec(AXIS)  # of [T, B, ...] and of [B, ...]


def ranks() -> int:
    """Count the devices of several processes that the columns are spread over where this is traced; 1 if they are not."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty or AXIS not in mesh.axis_names or AXIS in mesh.manual_axes else mesh.shape[AXIS]


def by_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, each process with its columns. Where they cannot be shared out evenly it is left to XLA.

    function(params, observation [T, B, ...], memory [B, ...], first [T, B]) -> (rows [T, B, ...], memory [B, ...]).
    """

    def spread(params: PyTree, observation: PyTree, memory: PyTree, first: jax.Array) -> tuple[Any, PyTree]:
        count = ranks()
        if count == 1 or first.shape[1] % count:
            return function(params, observation, memory, first)
        flat, unravel = ravel_pytree(params)
        own = jax.shard_map(
            lambda flat, *rest: function(unravel(flat), *rest),
            in_specs=(PartitionSpec(), ROWS, LANES, ROWS), out_specs=(ROWS, LANES), check_vma=False,
        )  # fmt: skip
        return own(flat, observation, memory, first)

    return spread


def everywhere(tree: PyTree) -> PyTree:
    """Put the whole of it on every process: fetched once, where it would else be fetched again by each that reads it."""
    if ranks() == 1:
        return tree
    whole = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, whole), tree)


def chunks(leaf: jax.Array, axis: int, count: int) -> list[jax.Array]:
    """Cut an axis of columns into `count` equal parts, each with columns of every process."""
    size = ranks()
    if size == 1 or leaf.shape[axis] % (size * count):
        width = leaf.shape[axis] // count
        return [jax.lax.slice_in_dim(leaf, i * width, (i + 1) * width, axis=axis) for i in range(count)]
    shape, width = leaf.shape, leaf.shape[axis] // (size * count)
    by_rank = leaf.reshape(*shape[:axis], size, count, width, *shape[axis + 1 :])
    cut = [jnp.take(by_rank, i, axis=axis + 1) for i in range(count)]
    return [part.reshape(*shape[:axis], size * width, *shape[axis + 1 :]) for part in cut]
