"""The local runtime: every worker is an object with a thread of its own, in this process. Nothing listens.

Roles that are to live apart (learners that share the work) are processes, see child.py; their threads only pass calls on.

Calls to a worker run one after the other in its thread and answer with a Future. `now` is the lane beside the queue: it
runs at once in the caller's thread, for methods that only swap a reference (`publish`).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_futures
from typing import Any, Concatenate, Generic

from rookery.runtime.child import Child
from rookery.runtime.interface import Out, P, R, W, W_co

_STOP = object()


class LocalHandle(Generic[W_co]):
    """A worker that was spawned. `call` queues a method and returns a Future; `now` runs one at once."""

    def __init__(self, name: str, make: Callable[[], Any], kill: Callable[[], None] = lambda: None) -> None:
        self.name, self._end = name, kill
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._worker: Any = None
        self.ready: Future = Future()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        if self._stopped:  # nobody would ever answer
            raise RuntimeError(f"{method.__name__}() was asked of {self.name} after it was closed")
        future: Future[R] = Future()
        self._calls.put((future, method.__name__, args, kwargs))
        return future

    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]:
        return self.call(method, out)

    def keep(
        self, method: Callable[Concatenate[W_co, P], tuple[R, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[R, Any]]:
        return self.call(method, *args, **kwargs)

    def now(self, method: Callable[Concatenate[W_co, P], Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        self.ready.result()
        return getattr(self._worker, method.__name__)(*args, **kwargs)

    def kill(self) -> None:
        """Kill the worker's process; a thread cannot be killed, and ends after the call that is running."""
        self.stop()
        self._end()

    def _run(self, make: Callable[[], Any]) -> None:
        try:
            self._worker = make()
            self.ready.set_result(None)
        except BaseException as error:
            self.ready.set_exception(error)
        while (item := self._calls.get()) is not _STOP:
            future, method, args, kwargs = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self.ready.result()  # a worker that could not be made answers every call with the reason
                future.set_result(getattr(self._worker, method)(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
            del future, item, args, kwargs  # an idle thread must not keep a batch alive
        if self._worker is not None:
            self._worker.close()

    def stop(self) -> None:
        """Close the worker after the call that is running; cancel calls that have not started."""
        if self._stopped:
            return
        self._stopped = True
        while True:
            try:
                future, *_ = self._calls.get_nowait()
            except queue.Empty:
                break
            future.cancel()
            future.set_running_or_notify_cancel()  # wakes whoever waits for it
        self._calls.put(_STOP)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()


class LocalRuntime:
    """Threads in one process."""

    name = "local"
    stores = False
    patience: float | None = None

    def __init__(
        self, *, drain_seconds: float = 20.0, apart: Mapping[str, int] | None = None, prepare: Callable[[], None] | None = None
    ) -> None:
        """apart: roles that live in processes, and how many of each share the cores; prepare: before anything in one."""
        self._handles: list[LocalHandle] = []
        self._children: list[LocalHandle] = []
        self._closed = False
        self._apart, self._prepare = apart or {}, prepare or _nothing
        self._drain_seconds = drain_seconds
        self.abandoned: list[str] = []  # a thread cannot be killed: those that did not end are named here

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> LocalHandle[W]:
        if role in self._apart:
            if self._closed:  # nobody would end it
                raise RuntimeError(f"{name} was to be started after its runtime was closed")
            threads = max(1, self.room(role, 0) // self._apart[role])
            child = Child(name, (self._prepare, worker, args, kwargs), {"NPROC": str(threads)})  # XLA's threads
            handle: LocalHandle[W] = LocalHandle(name, child.made, child.kill)
            self._children.append(handle)
        else:
            handle = LocalHandle(name, lambda: worker(*args, **kwargs))
            self._handles.append(handle)
        return handle

    def put(self, value: Any) -> Any:
        return value

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        """Wait for the first future. -> those that are done, none if the time is over, and the others."""
        if not futures and timeout is not None:
            time.sleep(timeout)
        done, _ = wait_futures(futures, timeout=timeout, return_when=FIRST_COMPLETED)
        return [f for f in futures if f in done], [f for f in futures if f not in done]

    def apart(self, role: str) -> bool:
        return False

    def room(self, role: str, live: int) -> int:
        """Count the cores that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def close(self) -> None:
        """Close the threads first, which may be calling the processes, then these, which end in any case."""
        self._closed = True
        deadline = time.monotonic() + self._drain_seconds
        for handles in (self._handles, self._children):
            for handle in handles:
                handle.stop()
            for handle in handles:
                if not handle.join(max(0.0, deadline - time.monotonic())):
                    handle.kill()
                    if handles is self._handles or not handle.join(1.0):
                        self.abandoned.append(handle.name)
            handles.clear()


def _nothing() -> None:
    pass
