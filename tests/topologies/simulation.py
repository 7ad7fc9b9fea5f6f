"""A runtime without threads: a clock, and workers whose calls take as long as the test says.

The driver runs as it is. Whenever it waits, the clock goes on to the next call that ends. A collector reads its
parameters when its call starts, the learner reads its batch until its call ends: the worst that threads can do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from rookery.runtime.interface import WorkerLost
from rookery.trees import tree_leaves
from rookery.types import Agent, Batch, EnvPool, Episode, PyTree, Rollout
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.learning.learner import Learner, Update

Seconds = Callable[[str, int], float]  # (name of the worker, how many calls it has had) -> seconds that this one takes
Dies = Callable[[str, int], bool]  # (name of the worker, how many calls its place has had) -> is it killed in this one?


class Row(NamedTuple):
    """One row that was learned from."""

    stream: int
    step: int
    version: int
    valid: bool


def rows_of(rollout: Rollout) -> list[Row]:
    T, B = rollout.reward.shape
    numbers = lambda b, t: (rollout.stream[b], rollout.step[b] + t, rollout.version[t, b])
    return [Row(*map(int, numbers(b, t)), bool(rollout.valid[t, b])) for b in range(B) for t in range(T)]


class Ledger:
    """What the learner was given, in its order, and how old it was."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.lags: list[int] = []
        self.batches = 0

    def write(self, batch: Batch, version: int) -> None:
        rollout = batch.rollout
        self.batches += 1
        self.rows += (rows := rows_of(rollout))
        self.lags += [version - row.version for row in rows]
        assert (rollout.discount <= 0.5).all(), "gamma was not multiplied in"
        assert np.isin(rollout.discount, (0.0, 0.5)).all(), "gamma was multiplied in twice"

    def check(self, *, in_order: bool = True, waiting: Sequence[Row] = ()) -> None:
        """No step twice, none missing in between, and versions that never go back; waiting: not learned from yet."""
        streams: dict[int, list[Row]] = {}
        for row in (*self.rows, *waiting):
            streams.setdefault(row.stream, []).append(row)
        for stream, rows in streams.items():
            rows = rows if in_order else sorted(rows, key=lambda row: row.step)
            steps = [row.step for row in rows]
            assert steps == list(range(len(steps))), f"stream {stream}: {steps}"
            versions = [row.version for row in rows]
            assert versions == sorted(versions), f"stream {stream}: {versions}"

    @property
    def lag_max(self) -> int:
        return max(self.lags)


def record(runtime: Any, ledger: Ledger | None = None, *, pause: float = 0.0) -> Ledger:
    """What learners that this runtime spawns from now on are given goes into the ledger; each update takes `pause` longer."""
    ledger = ledger or Ledger()
    spawn = runtime.spawn

    class RecordedLearner(Learner):
        def learn(self, batch: Batch) -> Update:
            ledger.write(batch, self.version)
            time.sleep(pause)
            return super().learn(batch)

    runtime.spawn = lambda worker, *args, **kwargs: spawn(RecordedLearner if worker is Learner else worker, *args, **kwargs)
    return ledger


class LedgerLearner:
    """Keeps a ledger of what it is given. It looks at a batch again when its call ends."""

    def __init__(self, ledger: Ledger, agent: Agent, *, seed: int, snapshot: PyTree | None = None, **_: Any) -> None:
        self.ledger, self.version = ledger, int(snapshot["version"]) if snapshot else 0

    def published(self) -> tuple[PyTree, int]:
        return {"offset": np.int32(self.version), "sum": np.float32(0)}, self.version

    def warm_up(self, specs: Any) -> None: ...

    def learn(self, batch: Batch) -> Update:
        self.ledger.write(batch, self.version)
        lag = self.version - batch.rollout.version[batch.rollout.valid > 0]
        self.version += 1
        trained = int(batch.rollout.valid.sum())
        return Update(self.version, self.published()[0], {"loss": 0.0}, None, trained, float(lag.mean()), int(lag.max()), 0, 0)

    def snapshot(self) -> PyTree:
        return {"version": self.version}

    def close(self) -> None: ...


class LedgerCollector:
    """Plays at no cost: every fifth row of a stream starts an episode, every other end is a termination."""

    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, index: int, snapshot: PyTree | None, incarnation: int, **_: Any
    ) -> None:
        self._num_envs, self._length, self._index = make_pool().num_envs, agent.needs.rollout_length, index
        self._incarnation = incarnation
        self._step = int(snapshot["step"]) if snapshot else 0
        self._version = -1

    def publish(self, params: PyTree, version: int) -> None:
        assert version == int(params["offset"]) >= self._version
        self._version = version

    def collect(self, out: Rollout) -> Collected:
        for leaf in tree_leaves(out):
            leaf[...] = 1
        envs, rows = np.arange(self._num_envs), self._step + np.arange(self._length)[:, None]
        streams = (self._index * self._num_envs + envs << 20) + self._incarnation
        out.stream[:], out.step[:], out.version[:] = streams, self._step, self._version
        out.valid[:] = (rows + envs) % 5 != 4
        out.discount[:] = (rows + envs) % 10 != 3
        episodes = [Episode(int(env), 1.0, 4) for env in np.nonzero(out.valid == 0)[1]]
        self._step += self._length
        return Collected(self._index, int(out.valid.sum()), episodes, {"env": 1.0}, out)

    def snapshot(self) -> PyTree:
        return {"step": self._step}

    def close(self) -> None: ...


class SimulatedHandle:
    def __init__(self, runtime: SimulatedRuntime, name: str, worker: Any) -> None:
        self.runtime, self.name, self.worker = runtime, name, worker
        self.queue: deque[tuple[Future, str, tuple]] = deque()
        self.running: tuple[float, Future, Callable[[], None]] | None = None
        self.calls, self.dead = 0, False
        self.ready: Future = Future()
        self.ready.set_result(None)

    def fill(self, method: Callable[..., Any], out: Any) -> Future:
        return self.call(method, out)

    def kill(self) -> None:
        if self.runtime.handles.get(self.name) is self:
            del self.runtime.handles[self.name]

    def die(self) -> None:
        """What it was asked is answered by its loss."""
        self.dead, owed = True, [future for future, _, _ in self.queue]
        owed += [self.running[1]] if self.running else []
        self.queue.clear()
        self.running = None
        for future in owed:
            future.set_exception(WorkerLost(f"{self.name} was killed"))

    def call(self, asked: Callable[..., Any], *args: Any) -> Future:
        future: Future = Future()
        if self.dead:
            future.set_exception(WorkerLost(f"{self.name} was killed"))
            return future
        method = asked.__name__
        self.queue.append((future, method, args))
        if method in ("snapshot", "published", "publish") and self.running is None and len(self.queue) == 1:
            self.queue.clear()  # asked for when nothing is in flight, and waited for
            future.set_result(getattr(self.worker, method)(*args))
        assert method != "snapshot" or future.done(), "a snapshot of a worker that is busy"
        self.start()
        return future

    def now(self, method: Callable[..., Any], *args: Any) -> Any:
        return getattr(self.worker, method.__name__)(*args)

    def start(self) -> None:
        """Begins the next call, if the worker is free."""
        if self.running is not None or not self.queue:
            return
        future, method, args = self.queue.popleft()
        seconds = 0.0 if method == "warm_up" else self.runtime.seconds(self.name, self.calls)
        self.calls += method != "warm_up"
        total = self.runtime.totals[self.name] = self.runtime.totals.get(self.name, 0) + (method != "warm_up")
        if method == "collect" and self.runtime.dies(self.name, total):
            for leaf in tree_leaves(args[0]):
                leaf[...] = -1  # half a rollout, which nobody may learn from
            self.running = (self.runtime.clock + seconds / 2, future, self.die)
        elif method == "learn":
            before = [np.copy(leaf) for leaf in tree_leaves(args[0])]

            def end() -> None:
                for old, leaf in zip(before, tree_leaves(args[0])):
                    assert np.array_equal(old, leaf), "a batch changed while it was learned from"
                future.set_result(self.worker.learn(*args))
        else:
            result = getattr(self.worker, method)(*args)
            end = lambda: future.set_result(result)
        self.running = self.running or (self.runtime.clock + seconds, future, end)


class SimulatedRuntime:
    """Takes the place of LocalRuntime in a Job."""

    name = "simulated"
    patience: float | None = None

    def __init__(self, seconds: Seconds, ledger: Ledger | None = None, *, dies: Dies = lambda name, call: False) -> None:
        self.seconds, self.ledger, self.dies = seconds, ledger or Ledger(), dies
        self.totals: dict[str, int] = {}
        self.clock, self.closed = 0.0, False
        self.handles: dict[str, SimulatedHandle] = {}

    def room(self, role: str, live: int) -> int:
        return 1

    def spawn(self, worker: Callable[..., Any], *args: Any, name: str, role: str, **kwargs: Any) -> SimulatedHandle:
        assert worker in (Learner, Collector)
        made = LedgerLearner(self.ledger, *args, **kwargs) if worker is Learner else LedgerCollector(*args, **kwargs)
        self.handles[name] = SimulatedHandle(self, name, made)
        return self.handles[name]

    def put(self, value: Any) -> Any:
        return value

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        deadline = self.clock + (timeout if timeout is not None else float("inf"))
        while futures and not any(future.done() for future in futures):
            ends = [handle for handle in self.handles.values() if handle.running is not None]
            assert ends, "the driver waits for a call that nobody runs"
            handle = min(ends, key=lambda h: (h.running[0], h.name))  # type: ignore[index]
            when, _, end = handle.running  # type: ignore[misc]
            if when > deadline:
                self.clock = deadline
                break
            self.clock = max(self.clock, when)
            if end != handle.die:
                handle.running = None
            end()
            handle.start()
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def close(self) -> None:
        for handle in self.handles.values():
            handle.worker.close()
        self.closed = True
