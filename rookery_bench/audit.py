"""The books of a run: what the learner is given, step by step, and how each worker came and went.

    collectors ──▶ queue ──batch──▶ [ Ledger ] ──▶ learner

`Audited` stands before any runtime. It writes every batch into a Ledger on its way to the learner, and notes when each
worker was spawned, made, first answered and was lost. A stream is one environment in one incarnation; its steps must be
learned from once each, without a gap, acted on by parameters that never become older.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic

import numpy as np

from rookery.data.chunks import INCARNATIONS
from rookery.runtime.interface import Handle, Out, P, R, Runtime, W, W_co
from rookery.types import Rollout


@dataclass
class _Stream:
    end: int = 0  # all steps before this were written
    version: int = -1  # that acted last before it
    ahead: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # step -> end, first and last version


class Ledger:
    """Rollouts may be written in any order; `violations` says what is wrong with them, at most `most` times."""

    def __init__(self, most: int = 20) -> None:
        self._streams: dict[int, _Stream] = {}
        self._most = most
        self.rows = self.valid = self.rollouts = 0
        self.violations: list[str] = []

    def write(self, rollout: Rollout) -> None:
        T, B = rollout.reward.shape
        self.rows, self.valid, self.rollouts = self.rows + T * B, self.valid + int(rollout.valid.sum()), self.rollouts + 1
        for stream, step, versions in zip(rollout.stream.tolist(), rollout.step.tolist(), rollout.version.T):
            if (np.diff(versions) < 0).any():
                self._wrong(stream, f"versions {versions.tolist()} from step {step} on go back")
            self._write(stream, step, step + T, (int(versions[0]), int(versions[-1])))

    def _write(self, number: int, step: int, end: int, versions: tuple[int, int]) -> None:
        stream = self._streams.setdefault(number, _Stream())
        if step < stream.end or any(step < to and end > start for start, (to, *_) in stream.ahead.items()):
            return self._wrong(number, f"steps {step} to {end - 1} again: all before {stream.end} were learned from")
        stream.ahead[step] = (end, *versions)
        while stream.end in stream.ahead:
            begin = stream.end
            stream.end, first, last = stream.ahead.pop(begin)
            if first < stream.version:
                self._wrong(number, f"step {begin} was decided by version {first}, the one before by {stream.version}")
            stream.version = last

    def _wrong(self, stream: int, what: str) -> None:
        if len(self.violations) < self._most:
            slot, incarnation = divmod(stream, INCARNATIONS)
            self.violations.append(f"environment {slot}, incarnation {incarnation}: {what}")

    def closed(self, waiting: Sequence[Rollout] = (), *, trained_steps: int, env_steps: int) -> list[str]:
        """Close the books and return what is wrong; nothing may be under way. waiting: collected, not learned from yet."""
        trained = self.valid
        for rollout in waiting:
            self.write(rollout)
        for number, stream in self._streams.items():
            if stream.ahead:
                self._wrong(number, f"steps from {stream.end} on are missing before {min(stream.ahead)}")
        for what, counted, found in (("trained_steps", trained_steps, trained), ("env_steps", env_steps, self.valid)):
            if counted != found:
                self.violations.append(f"{what} is {counted:,}, but the ledger has {found:,}")
        return self.violations

    @property
    def incarnations(self) -> dict[int, list[int]]:
        """Incarnations of each environment that were learned from."""
        found: dict[int, list[int]] = {}
        for stream in sorted(self._streams):
            found.setdefault(stream // INCARNATIONS, []).append(stream % INCARNATIONS)
        return found


@dataclass
class WorkerLife:
    """One worker, in seconds of the monotonic clock."""

    name: str
    handle: Any
    spawned: float
    made: float | None = None
    answered: float | None = None  # for the first time
    lost: float | None = None
    answers: int = 0


class Audited:
    """A runtime whose learner is given nothing that is not in the ledger."""

    def __init__(self, runtime: Runtime, ledger: Ledger | None = None) -> None:
        self.runtime, self.ledger = runtime, ledger or Ledger()
        self.name, self.patience, self.stores = runtime.name, runtime.patience, runtime.stores
        self.lives: list[WorkerLife] = []

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> Handle[W]:
        spawned = time.monotonic()
        handle = self.runtime.spawn(worker, *args, name=name, role=role, **kwargs)
        if role == "learner":
            return _Booked(handle, self.ledger)
        self.lives.append(life := WorkerLife(name, handle, spawned))
        return _Timed(handle, life)

    def put(self, value: Any) -> Any:
        return self.runtime.put(value)

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        return self.runtime.wait(futures, timeout)

    def apart(self, role: str) -> bool:
        return self.runtime.apart(role)

    def room(self, role: str, live: int) -> int:
        return self.runtime.room(role, live)

    def close(self) -> None:
        self.runtime.close()


class _Booked(Generic[W_co]):
    """The learner's handle: what it is to learn from is written down first."""

    def __init__(self, handle: Handle[W_co], ledger: Ledger) -> None:
        self._handle, self._ledger = handle, ledger
        self.name, self.ready, self.fill, self.now, self.kill = handle.name, handle.ready, handle.fill, handle.now, handle.kill
        self.keep = handle.keep

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        if method.__name__ == "learn":  # whosever it is
            batch: Any = [*args, *kwargs.values()][0]
            self._ledger.write(batch.rollout)
        return self._handle.call(method, *args, **kwargs)


class _Timed(Generic[W_co]):
    """A collector's handle, with a note of when it answered first and when it was lost."""

    def __init__(self, handle: Handle[W_co], life: WorkerLife) -> None:
        self._handle, self._life = handle, life
        self.name, self.ready, self.call, self.now, self.kill = handle.name, handle.ready, handle.call, handle.now, handle.kill
        self.keep = handle.keep
        handle.ready.add_done_callback(lambda future: self._note("made", future))

    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]:
        future = self._handle.fill(method, out)
        future.add_done_callback(lambda future: self._note("answered", future))
        return future

    def _note(self, what: str, future: Future) -> None:
        what = "lost" if future.cancelled() or future.exception() is not None else what
        self._life.answers += what == "answered"
        if getattr(self._life, what) is None:
            setattr(self._life, what, time.monotonic())
