"""Data parallelism over several devices, of one process or of several: the state is replicated, the batch is split by columns.

`learn` itself is compiled for the mesh and XLA puts the all-reduces in, so that whatever an algorithm does (PPO's epochs,
statistics over the batch) gives what one device would give on the whole batch, to the rounding of a sum in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.ops.spread import AXIS, LANES, ROWS
from rookery.types import BATCH_MAJOR, Batch, PyTree, Rollout


def mesh_of(devices: int) -> Mesh:
    """Make a mesh of the first `devices` devices of each process; refuse more than there are."""
    there = jax.local_devices()
    if len(there) < devices:
        kind = there[0].platform
        hint = (
            f" (XLA_FLAGS=--xla_force_host_platform_device_count={devices} cuts a CPU into that many)" if kind == "cpu" else ""
        )
        raise ValueError(f"--devices {devices}: this process sees {len(there)} of the kind {kind}{hint}")
    taken: dict[int, list[Any]] = {}
    for device in jax.devices():
        taken.setdefault(device.process_index, []).append(device)
    return Mesh([device for own in taken.values() for device in own[:devices]], (AXIS,))


def replicated(mesh: Mesh, tree: PyTree) -> PyTree:
    """Replicate a tree on every device of the mesh; each process has the same to begin with."""
    whole = NamedSharding(mesh, PartitionSpec())
    if jax.process_count() == 1:
        return jax.device_put(tree, whole)
    return jax.tree.map(lambda x: _placed(whole, x), tree)


def compiled(function: Callable[..., Any], mesh: Mesh, *, donate: tuple[int, ...]) -> Callable[..., Any]:
    """Compile function(params, slow, optimizer, updates, batch, key, counter) by jit: the batch is cut into columns, all else
    is on all devices.

    Of several processes each gives its own columns of the batch, and all of everything else.
    """
    whole, columns = NamedSharding(mesh, PartitionSpec()), batch_sharding(mesh)
    wanted = (whole, whole, whole, whole, columns, whole, whole)
    learn = jax.jit(function, donate_argnums=donate, in_shardings=wanted, out_shardings=whole)
    if jax.process_count() == 1:
        return learn

    def together(params: PyTree, slow: PyTree, optimizer: PyTree, updates: Any, batch: Batch, key: Any, counter: Any) -> Any:
        own = jax.tree.map(lambda sharding, part: jax.tree.map(lambda x: _placed(sharding, x), part), columns, batch)
        with jax.set_mesh(mesh):  # known while `learn` is traced: rookery/ops/spread.py
            return learn(params, slow, optimizer, updates, own, _placed(whole, key), counter)

    return together


def _placed(sharding: NamedSharding, x: Any) -> jax.Array:
    """Place this process's part of an array that is spread over several."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_placed(sharding, jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))


def batch_sharding(mesh: Mesh) -> Any:
    """Shard each field along its batch axis: [T, B, ...] and [B, ...] along B."""
    first, second = NamedSharding(mesh, LANES), NamedSharding(mesh, ROWS)
    fields: dict[str, Any] = {name: first if name in BATCH_MAJOR else second for name in Rollout._fields}
    return Batch(Rollout(**fields | {"stream": (), "step": ()}), first, ())


def one_copy(tree: PyTree) -> PyTree:
    """Return the copy on the first device, which is published. Acting on all devices would do the same work on each."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)
