"""LockstepRuntime: a runtime without threads, on a simulated clock.

The driver runs as it is. Whenever it waits, the clock goes on to the next call that ends; which one that is the schedule says
(schedules.py), so that a test chooses the order of completions and the moments at which workers are killed, and the same test
has the same order every time. It is the worst that threads can do: a call is computed when it starts, with the parameters of
that moment; an update is computed when it ends, and a batch that was changed meanwhile is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, NamedTuple

import numpy as np

from rookery.runtime.interface import Out, P, R, W, W_co, WorkerLost
from rookery.testing.schedules import Dies, ScheduledCall, Seconds, even, never
from rookery.trees import tree_leaves

INSTANT = frozenset({"warm_up", "snapshot", "published", "slow", "publish", "pull", "state", "inspect", "restore", "close"})
LATE = frozenset({"learn"})  # reads its arguments until it ends


class Deadlock(AssertionError):
    """The driver waits for a call that nobody runs."""


class LockstepFuture(Future):
    """A Future whose `result` lets the clock run until it is there: there is no other thread that could settle it."""

    def __init__(self, runtime: LockstepRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def result(self, timeout: float | None = None) -> Any:
        self._runtime.wait([self], timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._runtime.wait([self], timeout)
        return super().exception(0)


class QueuedCall(NamedTuple):
    future: LockstepFuture
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fills: bool  # is its argument a rollout to be written?


class RunningCall(NamedTuple):
    ends: float  # on the clock
    future: LockstepFuture
    end: Callable[[], None]


class LockstepHandle(Generic[W_co]):
    """A worker that was spawned: its calls wait in `queue`, at most one is `running`."""

    def __init__(self, runtime: LockstepRuntime, name: str, role: str, make: Callable[[], Any]) -> None:
        self.name, self.role, self._runtime = name, role, runtime
        self.queue: deque[QueuedCall] = deque()
        self.running: RunningCall | None = None
        self.calls, self.dead = 0, False  # calls: of this worker that took time
        self.worker: Any = None
        self.ready: Future = LockstepFuture(runtime)
        try:
            self.worker = make()
            self.ready.set_result(None)
        except Exception as error:
            self.ready.set_exception(error)

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._queue(method.__name__, args, kwargs)

    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]:
        return self._queue(method.__name__, (out,), {}, fills=True)

    def keep(
        self, method: Callable[Concatenate[W_co, P], tuple[R, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[R, Any]]:
        return self._queue(method.__name__, args, kwargs)

    def now(self, method: Callable[Concatenate[W_co, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.dead:
            getattr(self.worker, method.__name__)(*args, **kwargs)

    def kill(self) -> None:
        """Give the worker up: what it was asked is answered by its loss."""
        self.die()
        if self._runtime.handles.get(self.name) is self:
            del self._runtime.handles[self.name]

    def die(self) -> None:
        if self.dead:
            return
        self.dead, owed = True, [call.future for call in self.queue]
        owed += [self.running.future] if self.running else []
        self.queue.clear()
        self.running = None
        for future in owed:
            future.set_exception(WorkerLost(f"{self.name} was killed"))
        if self.worker is not None:
            self.worker.close()

    def _queue(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, fills: bool = False) -> Future:
        future = LockstepFuture(self._runtime)
        if self.dead:
            future.set_exception(WorkerLost(f"{self.name} was killed"))
        elif not self.ready.done() or Future.exception(self.ready) is not None:
            future.set_exception(Future.exception(self.ready))
        else:
            busy = self.running is not None or bool(self.queue)
            assert not (busy and method in self._runtime.at_rest), f"{method}() was asked of {self.name} while it is busy"
            self.queue.append(QueuedCall(future, method, args, kwargs, fills))
            self.begin()
        return future

    def begin(self) -> None:
        """Begin the next call, if the worker is free."""
        if self.running is not None or not self.queue:
            return
        future, method, args, kwargs, fills = self.queue.popleft()
        runtime, seconds, dies = self._runtime, 0.0, False
        if method not in INSTANT:
            self.calls += 1
            number = runtime.calls[self.name] = runtime.calls.get(self.name, 0) + 1
            call = ScheduledCall(self.name, self.role, method, number)
            seconds, dies = runtime.seconds(call), runtime.dies(call)
        if dies:
            for leaf in tree_leaves(args[0]) if fills else ():
                leaf[...] = -1  # half a rollout, which nobody may learn from
            self.running = RunningCall(runtime.clock + seconds / 2, future, self.die)
            return
        compute = lambda: getattr(self.worker, method)(*args, **kwargs)
        settle = _unchanged(future, compute, (args, kwargs)) if method in LATE else _computed(future, compute)
        self.running = RunningCall(runtime.clock + seconds, future, settle)


def _computed(future: Future, compute: Callable[[], Any]) -> Callable[[], None]:
    """Compute now, answer when the call ends."""
    try:
        result = compute()
    except Exception as raised:
        error = raised
        return lambda: future.set_exception(error)
    return lambda: future.set_result(result)


def _unchanged(future: Future, compute: Callable[[], Any], given: Any) -> Callable[[], None]:
    """Compute when the call ends, if its arguments are then what they were when it began."""
    arrays = [leaf for leaf in tree_leaves(given) if isinstance(leaf, np.ndarray)]
    before = [np.copy(leaf) for leaf in arrays]

    def end() -> None:
        for old, leaf in zip(before, arrays):
            assert np.array_equal(old, leaf, equal_nan=old.dtype.kind == "f"), "a batch changed while it was learned from"
        _computed(future, compute)()

    return end


class LockstepRuntime:
    """Takes the place of LocalRuntime in a Job. `clock`: simulated seconds; `closed`: whether the driver has closed it."""

    name = "local"  # where workers live
    stores = False

    def __init__(
        self,
        seconds: Seconds | None = None,
        *,
        dies: Dies = never,
        instead: Mapping[Any, Callable[..., Any]] | None = None,
        at_rest: Collection[str] = (),
        patience: float | None = None,
        room: int = 1,
    ) -> None:
        """seconds, dies: of each call; instead: worker class -> what is made in its place; at_rest: methods that may be asked
        only of a worker that has nothing else to do; patience: for a call, on the clock; room: for workers of any role."""
        self.seconds, self.dies = seconds or even(), dies
        self._instead, self.at_rest, self.patience, self._room = dict(instead or {}), frozenset(at_rest), patience, room
        self.clock, self.closed = 0.0, False
        self.calls: dict[str, int] = {}  # that took time, by the name of the worker, over all its lives
        self.handles: dict[str, LockstepHandle] = {}

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> LockstepHandle[W]:
        make = self._instead.get(worker, worker)
        handle: LockstepHandle[W] = LockstepHandle(self, name, role, lambda: make(*args, **kwargs))
        self.handles[name] = handle
        return handle

    def put(self, value: Any) -> Any:
        return value

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        """Let calls end, in the order of the schedule, until one of these is done or the time is over."""
        deadline = self.clock + (timeout if timeout is not None else float("inf"))
        while not any(future.done() for future in futures) and self._advance(deadline):
            pass
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def _advance(self, deadline: float) -> bool:
        """End the call that is next. False: there is none before the deadline, and the clock stands there."""
        busy = [(handle.running.ends, name) for name, handle in self.handles.items() if handle.running is not None]
        if not busy and deadline == float("inf"):
            raise Deadlock("the driver waits for a call that nobody runs")
        if not busy or min(busy)[0] > deadline:
            self.clock = deadline
            return False
        handle = self.handles[min(busy)[1]]
        assert handle.running is not None
        ends, _, end = handle.running
        self.clock = max(self.clock, ends)
        if end != handle.die:  # which answers the running call itself
            handle.running = None
        end()
        handle.begin()
        return True

    def monotonic(self) -> float:
        """Return the simulated time: deadlines and back-offs of a fleet are counted on it."""
        return self.clock

    def apart(self, role: str) -> bool:
        return False

    def room(self, role: str, live: int) -> int:
        return self._room

    def close(self) -> None:
        """Close every worker."""
        for handle in [*self.handles.values()]:
            if handle.worker is not None and not handle.dead:
                handle.worker.close()
        self.closed = True
