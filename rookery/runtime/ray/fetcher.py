"""The thread that settles futures: takes what actors answer, and copies rollouts out of the object store.

Ray's own threads only put an answer into the inbox. They must not wait for Ray, and one thread that copies is enough: it
copies at the speed of memory.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from rookery.data.queue import Stored
from rookery.runtime.interface import WorkerLost
from rookery.runtime.ray.cluster import raylet
from rookery.runtime.ray.errors import translated
from rookery.runtime.ray.object_store import Kept, array_bytes
from rookery.trees import tree_map

if TYPE_CHECKING:
    from rookery.runtime.ray.handle import RayHandle

_STOP = object()


class Fetcher:
    """Turns references of Ray's into futures. What comes into this process is counted in `fetched_bytes`."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.fetched_bytes = 0  # of arrays that came into this process

    def start(self) -> None:
        threading.Thread(target=self._fetch, name="ray-fetcher", daemon=True).start()

    def stop(self) -> None:
        """End the thread after what is in the inbox now."""
        self._inbox.put(_STOP)

    def watch(self, handle: RayHandle, said: Any, rollout: Any = None, out: Any = None) -> Future:
        """Make a Future of what the actor says; of a rollout, only when it is written into `out`: a Stored takes the reference.

        out is None: the rollout stays where it is, and what is said holds the reference."""
        future: Future = Future()
        future.set_running_or_notify_cancel()
        handle.owed.add(future)
        future.add_done_callback(handle.owed.discard)
        if handle.cut:
            settle(future, error=WorkerLost(handle.cut))
        stays = out is None or isinstance(out, Stored)
        last = said if rollout is None or stays else rollout
        last.future().add_done_callback(lambda raw: self._inbox.put((handle, future, raw, rollout if stays else said, out)))
        return future

    def later(self, function: Callable[[], None]) -> None:
        """Run a call in the fetcher thread: Ray's own threads call back, and must not wait for Ray."""
        self._inbox.put(function)

    def _fetch(self) -> None:
        """Copy rollouts out of the object store: a view of one would keep its memory there for as long as it lives."""
        while (item := self._inbox.get()) is not _STOP:
            if callable(item):
                with contextlib.suppress(Exception):
                    item()
                continue
            handle, future, raw, other, out = item
            try:
                raylet.require()
                value = raw.result()
                self.fetched_bytes += array_bytes(value)
                if isinstance(out, Stored):
                    value = self._stored(handle, value, other, out)
                elif out is not None:
                    value = self._copied(handle, ray.get(other), value, out)
                elif other is not None:
                    value = value._replace(rollout=Kept(other))
                settle(future, value)
            except BaseException as error:
                settle(future, error=translated(error, handle.name))
            del item, handle, future, raw, other, out  # nor may an idle thread keep one
            value = None

    def _copied(self, handle: RayHandle, collected: Any, rollout: Any, out: Any) -> Any:
        with handle.fence:
            if not handle.dead:  # else it is late: its columns may be somebody else's by now
                tree_map(np.copyto, out, rollout)
        return collected._replace(rollout=out)

    def _stored(self, handle: RayHandle, collected: Any, rollout: Any, out: Stored) -> Any:
        with handle.fence:
            if not handle.dead:
                out.value, out.fetch = rollout, self._came
        return collected._replace(rollout=out)

    def _came(self, rollout: Any) -> Any:
        value = ray.get(rollout)
        self.fetched_bytes += array_bytes(value)
        return value


def settle(future: Future, value: Any = None, error: BaseException | None = None) -> None:
    """Settle a future once: a worker that was given up may still answer."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(value) if error is None else future.set_exception(error)
