"""The interface of a runtime: it spawns workers, calls them, and reports when one is gone.

A worker is a plain class, and a call names the method itself: `learner.call(Learner.learn, batch)`. What runs is the method
of that name of the worker that lives there: a subclass, or another class with the same methods, answers with its own.

Calls to a worker run in their order and return Futures; `now` overtakes them, for methods that only swap a reference
(`publish`). What a worker raises comes out of its Future as it was raised; a worker that is gone (killed, its machine lost,
the network partitioned) answers with `WorkerLost`, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from rookery.ranges import NotNegative

W = TypeVar("W")  # the worker
W_co = TypeVar("W_co", covariant=True)  # a handle of a subclass is one of the class, too
P = ParamSpec("P")
R = TypeVar("R")
Out = TypeVar("Out")


class WorkerLost(RuntimeError):
    """A worker is gone. Calls that it had not answered were not done, or cannot be known to be done."""

    exit_code = 7


class ArgumentLost(RuntimeError):
    """An argument that was passed by reference is gone with the machine that held it. The worker that was called is alive."""


class RuntimeRefused(ValueError):
    """The runtime cannot be used as it was asked for; the message says why and what to do."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each worker of a role takes of a machine (ray only)."""

    cpus: NotNegative = 1.0
    """Cores."""
    gpus: NotNegative = 0.0
    """GPUs."""
    variables: tuple[str, ...] = ()
    """Environment variables handed on to it."""


class Handle(Protocol, Generic[W_co]):
    name: str
    ready: Future  # done when the worker is made; its exception, where it cannot be

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    #   in the order of the calls
    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]: ...
    #   the worker's `method(out)`: writes a rollout into `out`
    #   out is None: the rollout stays where it was made; the answer's is a reference that a call of another worker can take
    def keep(
        self, method: Callable[Concatenate[W_co, P], tuple[R, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[R, Any]]: ...
    #   a call that answers a pair; its second part stays where it was made and comes as a reference, for calls of others
    def now(self, method: Callable[Concatenate[W_co, P], Any], *args: P.args, **kwargs: P.kwargs) -> None: ...
    #   beside the calls, at once; the newest wins. A rollout that is asked for after it begins after it: that bounds the lag
    def kill(self) -> None: ...  # gives the worker up; after this nothing is written into any `out`


class Runtime(Protocol):
    name: str
    stores: bool  # may a rollout stay where it was made (`fill` into a rookery.data.queue.Stored)?
    patience: float | None  # seconds for a call, after which a worker is given up; None: where it cannot be ended

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> Handle[W]: ...
    def put(self, value: Any) -> Any: ...  # something that many workers will be given
    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]: ...
    def apart(self, role: str) -> bool: ...  # do workers of this role live in processes of their own?
    def room(self, role: str, live: int) -> int: ...  # how many workers of a role could live here, when `live` do
    def close(self) -> None: ...
