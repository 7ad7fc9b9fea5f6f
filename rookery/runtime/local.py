"""The local runtime: every worker is an object with a thread of its own, in this process. Nothing listens.

Calls to a worker run one after the other in its thread and answer with a Future. `now` is the lane beside the queue: it
runs at once in the caller's thread, for methods that only swap a reference (`publish`).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_futures
from typing import Any

_STOP = object()


class Handle:
    """A worker that was spawned. `call` queues a method and returns a Future; `now` runs one at once."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._worker: Any = None
        self.ready: Future = Future()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()

    def call(self, method: str, *args: Any) -> Future:
        if self._stopped:  # nobody would ever answer
            raise RuntimeError(f"{method}() was asked of {self.name} after it was closed")
        future: Future = Future()
        self._calls.put((future, method, args))
        return future

    def fill(self, method: str, out: Any) -> Future:
        return self.call(method, out)

    def now(self, method: str, *args: Any) -> Any:
        self.ready.result()
        return getattr(self._worker, method)(*args)

    def kill(self) -> None:
        """A thread cannot be killed: it ends after the call that is running."""
        self.stop()

    def _run(self, make: Callable[[], Any]) -> None:
        try:
            self._worker = make()
            self.ready.set_result(None)
        except BaseException as error:
            self.ready.set_exception(error)
        while (item := self._calls.get()) is not _STOP:
            future, method, args = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self.ready.result()  # a worker that could not be made answers every call with the reason
                future.set_result(getattr(self._worker, method)(*args))
            except BaseException as error:
                future.set_exception(error)
            del future, item, args  # an idle thread must not keep a batch alive
        if self._worker is not None:
            self._worker.close()

    def stop(self) -> None:
        """Asks the worker to close after the call that is running; those not started are cancelled."""
        if self._stopped:
            return
        self._stopped = True
        while True:
            try:
                future, _, _ = self._calls.get_nowait()
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
    patience: float | None = None

    def __init__(self, *, drain_seconds: float = 20.0) -> None:
        self._handles: list[Handle] = []
        self._drain_seconds = drain_seconds
        self.abandoned: list[str] = []  # a thread cannot be killed: those that did not end are named here

    def spawn(self, worker: Callable[..., Any], *args: Any, name: str, role: str = "", **kwargs: Any) -> Handle:
        handle = Handle(name, lambda: worker(*args, **kwargs))
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> Any:
        return value

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        """The futures that are done, at least one unless the time is over, and the others."""
        if not futures and timeout is not None:
            time.sleep(timeout)
        done, _ = wait_futures(futures, timeout=timeout, return_when=FIRST_COMPLETED)
        return [f for f in futures if f in done], [f for f in futures if f not in done]

    def apart(self, role: str) -> bool:
        return False

    def room(self, role: str, live: int) -> int:
        """As many as there are cores for."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def close(self) -> None:
        deadline = time.monotonic() + self._drain_seconds
        for handle in self._handles:
            handle.stop()
        for handle in self._handles:
            if not handle.join(max(0.0, deadline - time.monotonic())):
                self.abandoned.append(handle.name)
        self._handles.clear()
