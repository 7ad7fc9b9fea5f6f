"""RayRuntime: spawns workers as actors of a Ray cluster, and waits for their answers.

A role that has resources lives in actors, every other (the learner) in this process, where `near` is a local runtime.
Without an address a Ray of our own is started and ended with the run. Three threads serve it: the fetcher settles futures,
two of Liveness see whether the head and the machines are there.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from rookery import references
from rookery.runtime.interface import Handle, Resources, W
from rookery.runtime.local import LocalRuntime
from rookery.runtime.ray import cluster
from rookery.runtime.ray.actor import Actor
from rookery.runtime.ray.checks import VersionCheck, check_machines, check_resources
from rookery.runtime.ray.cluster import raylet
from rookery.runtime.ray.fetcher import Fetcher
from rookery.runtime.ray.handle import RayHandle
from rookery.runtime.ray.liveness import Liveness
from rookery.runtime.ray.object_store import Shared


class RayRuntime:
    """Workers as actors of a cluster, wherever it has room for them."""

    name = "ray"
    stores = True
    patience: float | None = 120.0

    def __init__(
        self,
        *,
        address: str | None = None,
        strict: bool = False,
        resources: Mapping[str, Resources],
        counts: Mapping[str, tuple[int, int]],
        prepare: Callable[[], None],
        versions: Callable[[], dict[str, str]],
    ) -> None:
        """resources, counts: of each role that lives in actors, counts as (least, most); prepare: before anything else in one;
        strict: what would be warned of because it is not secure is refused."""
        self.near = LocalRuntime()
        self._resources, self._prepare, self._versions = resources, prepare, versions
        self._expected = versions()
        self._handles: list[RayHandle] = []
        self._fetcher, self._liveness = Fetcher(), Liveness(self._handles)
        self._closed = False
        self._own: Path | None = None  # the directory of a Ray that this run starts
        self._joined = False
        if not ray.is_initialized():
            if address is None:
                needed = sum(most * resources[role].cpus for role, (_, most) in counts.items())
                self._own = cluster.start(cpus=max(len(os.sched_getaffinity(0)), math.ceil(needed)))
            else:
                cluster.join(address, strict=strict)
                self._joined = True
        try:
            check_resources(resources, counts)
            if not cluster.started_here:
                check_machines(versions, self._expected)
        except BaseException:
            self.close()
            raise
        for module in references.from_files():  # no other machine has the file
            ray.cloudpickle.register_pickle_by_value(module)
        self._fetcher.start()
        self._liveness.start()

    @property
    def fetched_bytes(self) -> int:
        """Count the bytes of arrays that came into this process."""
        return self._fetcher.fetched_bytes

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> Handle[W]:
        """Make a worker: in an actor, where its role has resources, else in a thread of this process."""
        if role not in self._resources:
            return self.near.spawn(worker, *args, name=name, role=role, **kwargs)
        raylet.require()
        wanted = self._resources[role]
        variables = environment_of(wanted)
        actor = Actor.options(
            num_cpus=wanted.cpus, num_gpus=wanted.gpus, scheduling_strategy="SPREAD", **self._liveness.placement(),
            runtime_env={"env_vars": variables} if variables else None,
        ).remote()  # fmt: skip
        check = VersionCheck(self._prepare, self._versions, self._expected)
        made = (check, worker, args, kwargs)
        handle: RayHandle[W] = RayHandle(name, actor, made, fetcher=self._fetcher, forget=self._forget)
        self._handles.append(handle)
        return handle

    def _forget(self, handle: RayHandle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)

    def put(self, value: Any) -> Shared:
        """Share a value between workers: it is stored once."""
        return Shared(value)

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        """Wait for the first future, if the cluster is alive. -> those that are done, and the others."""
        self._liveness.require()
        return self.near.wait(futures, timeout)

    def apart(self, role: str) -> bool:
        return role in self._resources

    def room(self, role: str, live: int) -> int:
        """Count the workers of a role that could live in this cluster, when `live` do."""
        wanted, there = self._resources.get(role, Resources()), self._liveness.available_resources()
        pairs = [(wanted.cpus, there.get("CPU", 0.0)), (wanted.gpus, there.get("GPU", 0.0))]
        return live + min((int(have / need) for need, have in pairs if need), default=10**6)

    def close(self) -> None:
        """Let every worker close, then kill it; end a Ray that we started, and remove its directory."""
        if self._closed:
            return
        self._closed = True
        self._liveness.stop()
        self.near.close()
        lost = self._liveness.lost
        if ray.is_initialized() and not lost:
            closing = [handle.actor.call.remote("close") for handle in self._handles if handle.ready.done()]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=cluster.CLOSE_SECONDS)
            for handle in [*self._handles]:
                handle.kill()
        self._fetcher.stop()
        if self._own is not None or self._joined:
            cluster.leave(self._own) if lost else ray.shutdown()
        if self._own is not None:
            cluster.remove(self._own)
            if lost:  # Ray's own threads here may still write a line
                atexit.register(shutil.rmtree, self._own, ignore_errors=True)


def environment_of(wanted: Resources) -> dict[str, str]:
    """Derive the environment variables of an actor from what it takes of a machine: XLA's threads, its platform."""
    variables = {name: os.environ[name] for name in wanted.variables if name in os.environ}
    if not cluster.started_here:  # else its processes have inherited these; passing them costs an actor 1-4 s at its start
        one_thread = {} if wanted.gpus else cluster.ONE_THREAD
        variables |= {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")} | one_thread
    if wanted.cpus > 1 or wanted.gpus:  # not one thread, as all other actors
        variables |= {"NPROC": str(max(1, round(wanted.cpus)))} | ({"JAX_PLATFORMS": ""} if wanted.gpus else {})
    return variables
