"""The cluster's side of a worker: an actor that makes it and runs its calls.

Calls run one after the other. `now` has a thread of its own beside them (a concurrency group of Ray's), so that parameters
can be published while a rollout is being collected; a message that a call has overtaken comes with the call, and is then
known by its number.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import jax
import ray

from rookery.runtime.ray.object_store import device_copies, host_arrays, read_call, resolve
from rookery.runtime.remote_error import remote_error


def travelling_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Raise what a method raises as a RemoteError, which can be pickled whatever its constructor wants."""

    @functools.wraps(function)
    def passing_on(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise remote_error(error) from None

    return passing_on


class WorkerActor:
    """The actor of one worker: runs its calls in their order, and `now` beside them."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._buffer: Any = None
        self._heard, self._hearing = 0, threading.Lock()

    @travelling_errors
    def make(self, check: Callable[[], None], worker: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[str, int]:
        """Construct the worker. -> the machine and the process that it lives in."""
        os.environ["ROOKERY_HOST"] = ray.util.get_node_ip_address()  # where ranks of a learner find each other
        check()
        self._worker = worker(*args, **kwargs)
        return ray.get_runtime_context().get_node_id(), os.getpid()

    @travelling_errors
    def call(self, asked: str, *values: Any) -> Any:
        """Call the worker, with views of the store where it takes them (it copies, in numpy), else with copies of its own."""
        given = values if getattr(self._worker, "takes_views", False) else tuple(map(resolve, values))
        return host_arrays(self._run(asked, given))

    @travelling_errors
    def fill(self, method: str, *told: Any) -> tuple[Any, Any]:
        """Collect a rollout. -> its statistics, and the rollout: two objects, so that the driver can pass it on untouched.

        told: what was to be heard before, in case that the lane is slower."""
        if told:
            self.now(*told)
        collected = getattr(self._worker, method)(self._buffer)
        rollout = host_arrays(collected.rollout)
        if all(leaf.flags.writeable for leaf in jax.tree.leaves(rollout)):
            self._buffer = rollout  # what is returned is copied into the store before the next call
        return collected._replace(rollout=None), rollout

    def now(self, number: int, asked: str, *values: Any) -> None:
        """Run a call beside the queue, unless a newer one was run before it."""
        with self._hearing:
            if number > self._heard:  # else it is old, or came with a call
                self._heard = number
                self._run(asked, device_copies(values))

    def _run(self, asked: str, values: tuple[Any, ...]) -> Any:
        method, args, kwargs = read_call(asked, values)
        return getattr(self._worker, method)(*args, **kwargs)


WorkerActor.now = ray.method(concurrency_group="lane")(WorkerActor.now)  # type: ignore[method-assign]
remote: Any = ray.remote  # its stubs do not know of concurrency groups
Actor = remote(concurrency_groups={"lane": 1}, max_restarts=0, max_task_retries=0)(WorkerActor)
