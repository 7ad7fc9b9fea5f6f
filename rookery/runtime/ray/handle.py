"""The driver's side of a worker that lives in an actor."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Concatenate, Generic

import ray

from rookery.runtime.interface import Out, P, R, W_co, WorkerLost
from rookery.runtime.ray.cluster import raylet
from rookery.runtime.ray.fetcher import Fetcher, settle
from rookery.runtime.ray.object_store import Kept, reference, write_call


class RayHandle(Generic[W_co]):
    """A worker that was spawned as an actor. `call` queues a method, `now` tells it something beside the queue."""

    def __init__(
        self, name: str, actor: Any, made: Sequence[Any], *, fetcher: Fetcher, forget: Callable[[RayHandle], None]
    ) -> None:
        """made: the arguments of WorkerActor.make; forget: called when the worker was given up."""
        self.name, self.actor, self._fetcher, self._forget = name, actor, fetcher, forget
        self.fence, self.dead = threading.Lock(), False
        self.owed: set[Future] = set()
        self.cut = ""  # why nothing more can be heard of it
        self._lane = threading.Lock()
        self._telling, self._told, self._sent = False, (), 0  # type: bool, tuple[Any, ...], int
        self.ready = fetcher.watch(self, actor.make.remote(*made))

    @property
    def node(self) -> str | None:
        """The machine that it lives on, by the id of its node; None while that is not known."""
        return self.ready.result()[0] if self.ready.done() and not self.ready.exception() else None

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        raylet.require()
        return self._fetcher.watch(self, self.actor.call.remote(*map(reference, write_call(method, args, kwargs))))

    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]:
        raylet.require()
        said, rollout = self.actor.fill.options(num_returns=2).remote(method.__name__, *map(reference, self._told))
        return self._fetcher.watch(self, said, rollout, out)

    def keep(
        self, method: Callable[Concatenate[W_co, P], tuple[R, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[R, Any]]:
        raylet.require()
        said, kept = self.actor.call.options(num_returns=2).remote(*map(reference, write_call(method, args, kwargs)))
        pair: Future[tuple[R, Any]] = Future()

        def pass_on(answer: Future) -> None:
            error = answer.exception()
            pair.set_exception(error) if error is not None else pair.set_result((answer.result(), Kept(kept)))

        self._fetcher.watch(self, said).add_done_callback(pass_on)
        return pair

    def now(self, method: Callable[Concatenate[W_co, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call beside the queue; the newest wins: while one is on its way, only the last of those that follow is kept."""
        with self._lane:
            self._told = (self._told[0] + 1 if self._told else 1, *write_call(method, args, kwargs))
            if self._telling:
                return
            self._telling = True
        self.tell()

    def tell(self) -> None:
        """Send the newest message; called again when it has arrived. A worker that is gone shows in its calls."""
        with self._lane:
            told = self._told
            news = self._telling = told[0] > self._sent and not self.dead
            self._sent = told[0]
        if news and not raylet.gone.is_set():
            ref = self.actor.now.remote(*map(reference, told))
            ref.future().add_done_callback(lambda _: self._fetcher.later(self.tell))

    def cut_off(self, why: str) -> None:
        """Answer all that is asked of the worker, now and from now on, with its loss."""
        self.cut = why
        for future in [*self.owed]:
            settle(future, error=WorkerLost(why))

    def kill(self) -> None:
        """Give the worker up: after this nothing is written into any `out`."""
        with self.fence:  # a copy that is under way ends first, and none begins after it
            self.dead = True
        self._forget(self)
        if raylet.gone.is_set():
            return
        with contextlib.suppress(Exception):
            ray.kill(self.actor)
        if self.ready.done() and self.ready.exception() is None:
            node, pid = self.ready.result()
            if node == ray.get_runtime_context().get_node_id():  # one that is stopped does not hear Ray's request
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                        os.kill(pid, signal.SIGKILL)
