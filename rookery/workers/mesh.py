"""One learner on several devices: the state on all of them, each with its columns of the batch.

`learn` itself is compiled for the mesh and XLA puts the all-reduces in, so that whatever an algorithm does (PPO's epochs,
statistics over the batch) gives what one device would give on the whole batch, to the rounding of a sum in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.types import BATCH_MAJOR, Batch, PyTree, Rollout


def mesh_of(devices: int) -> Mesh:
    """A mesh of the first `devices` devices; refuses more than there are."""
    there = jax.devices()
    if len(there) < devices:
        kind = there[0].platform
        hint = (
            f" (XLA_FLAGS=--xla_force_host_platform_device_count={devices} cuts a CPU into that many)" if kind == "cpu" else ""
        )
        raise ValueError(f"--devices {devices}: this process sees {len(there)} of the kind {kind}{hint}")
    return Mesh(there[:devices], ("columns",))


def replicated(mesh: Mesh, tree: PyTree) -> PyTree:
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def compiled(function: Callable[..., Any], mesh: Mesh, *, donate: tuple[int, ...]) -> Callable[..., Any]:
    """jit of (params, slow, optimizer, updates, batch, key, counter): the batch cut into columns, all else on all devices."""
    whole = NamedSharding(mesh, PartitionSpec())
    wanted = (whole, whole, whole, whole, batch_sharding(mesh), whole, whole)
    return jax.jit(function, donate_argnums=donate, in_shardings=wanted, out_shardings=whole)


def batch_sharding(mesh: Mesh) -> Any:
    """Which axis of each field is cut: [T, B, ...] along B, [B, ...] along B."""
    first, second = NamedSharding(mesh, PartitionSpec("columns")), NamedSharding(mesh, PartitionSpec(None, "columns"))
    fields: dict[str, Any] = {name: first if name in BATCH_MAJOR else second for name in Rollout._fields}
    return Batch(Rollout(**fields | {"stream": (), "step": ()}), first, ())


def one_copy(tree: PyTree) -> PyTree:
    """The copy on the first device: what is published. Acting on all devices would do the same work on each."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)
