"""Time of an all-reduce of gradients over N processes, and over N devices of one: as one vector, and leaf by leaf."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rookery.run import startup
from rookery.runtime.local import LocalRuntime

MEGABYTES, LEAVES, REPEATS = 6.75, 20, 30  # a Nature network, and its leaves
FLAG = "--xla_force_host_platform_device_count"


class Reducer:
    """One process of the all-reduce."""

    def __init__(self) -> None:
        from rookery.workers.learning.learner_rank import LearnerRank

        self._rank = LearnerRank()

    def address(self) -> str:
        return self._rank.address()

    def join(self, address: str, number: int, count: int, devices: tuple[int, ...] | None) -> None:
        self._rank.join(address, number, count, devices)

    def reduce(self, devices: int, megabytes: float, leaves: int, repeats: int) -> dict[str, float]:
        """Measure the median milliseconds of one vector, and of a tree of `leaves` leaves of the same size in all."""
        import jax
        import numpy as np
        from jax.sharding import NamedSharding

        from rookery.ops.spread import AXIS, LANES
        from rookery.workers.learning.mesh import mesh_of

        mesh, size = mesh_of(devices), int(megabytes * 1e6 / 4)
        sharding = NamedSharding(mesh, LANES)
        own = len(mesh.local_devices)
        place = lambda n: jax.make_array_from_process_local_data(sharding, np.ones((own, n), np.float32))
        total = jax.jit(
            jax.shard_map(lambda x: jax.lax.psum(x, AXIS), mesh=mesh, in_specs=LANES, out_specs=LANES, check_vma=False)
        )
        found = {}
        for name, tree in {"vector": place(size), "tree": [place(size // leaves) for _ in range(leaves)]}.items():
            summed = jax.block_until_ready(total(tree))
            assert float(jax.tree.leaves(summed)[0].addressable_data(0)[0, 0]) == mesh.size, "the sum is wrong"
            found[name] = statistics.median(_milliseconds(total, tree) for _ in range(repeats))
        return found

    def close(self) -> None:
        pass


def _milliseconds(function: Callable[[Any], Any], tree: Any) -> float:
    import jax

    begin = time.perf_counter()
    jax.block_until_ready(function(tree))
    return (time.perf_counter() - begin) * 1e3


def reduction(
    *, processes: int, devices: int, megabytes: float = MEGABYTES, leaves: int = LEAVES, repeats: int = REPEATS
) -> dict[str, float]:
    """Measure the milliseconds over `processes` processes, each with `devices` devices (of a CPU: parts of it)."""
    before = os.environ.get("XLA_FLAGS")
    if devices > 1:
        os.environ["XLA_FLAGS"] = f"{before or ''} {FLAG}={devices}".strip()
    runtime = LocalRuntime(apart={"reducer": processes}, prepare=startup.prepare)
    try:
        handles = [runtime.spawn(Reducer, name=f"reducer-{i}", role="reducer") for i in range(processes)]
        address = handles[0].call(Reducer.address).result()
        for joined in [handle.call(Reducer.join, address, i, processes, None) for i, handle in enumerate(handles)]:
            joined.result()
        calls = [handle.call(Reducer.reduce, devices, megabytes, leaves, repeats) for handle in handles]
        return calls[0].result()
    finally:
        with suppress(KeyError):
            os.environ.pop("XLA_FLAGS") if before is None else os.environ.__setitem__("XLA_FLAGS", before)
        runtime.close()
