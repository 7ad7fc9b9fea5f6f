"""A ledger of what learners are given, row by row, and workers that cost nothing to fill it.

    collector ──▶ queue ──batch──▶ [ RowLedger ] ──▶ learner

`record` puts a ledger before the learners of any runtime. `ledger_workers` stand in for Collector and Learner where only the
driver is tested: a rollout is a few numbers, and an update is a count.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.trees import tree_leaves
from rookery.types import Agent, Batch, EnvPool, Episode, PyTree, Rollout
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.learning.learner import Learner, Update


class LearnedRow(NamedTuple):
    """One row that was learned from."""

    stream: int
    step: int
    version: int
    valid: int  # 0: it leads to the next episode, and is no transition


def rows_of(rollout: Rollout) -> list[LearnedRow]:
    """List the rows of a rollout, column by column."""
    T, B = rollout.reward.shape
    row = lambda b, t: (rollout.stream[b], rollout.step[b] + t, rollout.version[t, b], rollout.valid[t, b])
    return [LearnedRow._make(map(int, row(b, t))) for b in range(B) for t in range(T)]


class RowLedger:
    """What the learner was given, in its order, and how old it was. discount: gamma of the agent."""

    def __init__(self, discount: float = 0.5) -> None:
        self._discount = np.float32(discount)
        self.rows: list[LearnedRow] = []
        self.lags: list[int] = []
        self.batches = 0

    def write(self, batch: Batch, version: int) -> None:
        """Write down a batch that parameters `version` are about to learn from."""
        rollout = batch.rollout
        self.batches += 1
        self.rows += (rows := rows_of(rollout))
        self.lags += [version - row.version for row in rows]
        assert (rollout.discount <= self._discount).all(), "gamma was not multiplied in"
        assert np.isin(rollout.discount, np.array([0.0, self._discount], np.float32)).all(), "gamma was multiplied in twice"

    def check(self, *, in_order: bool = True, waiting: Sequence[LearnedRow] = ()) -> None:
        """Assert that no step came twice, none is missing in between, and versions never go back.

        in_order: batches were learned from in the order in which they were played; waiting: rows not learned from yet."""
        streams: dict[int, list[LearnedRow]] = {}
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


def ledger_workers(ledger: RowLedger) -> dict[Any, Callable[..., Any]]:
    """Stand in for Collector and Learner at no cost (`instead` of a LockstepRuntime)."""
    return {Learner: functools.partial(LedgerLearner, ledger), Collector: LedgerCollector}


def record(runtime: Any, ledger: RowLedger | None = None, *, pause: float = 0.0) -> RowLedger:
    """Write what learners that this runtime spawns from now on are given into a ledger; each update takes `pause` longer."""
    written = ledger or RowLedger()
    spawn = runtime.spawn

    class RecordedLearner(Learner):
        def learn(self, batch: Batch) -> Update:
            written.write(batch, self.version)
            time.sleep(pause)
            return super().learn(batch)

    runtime.spawn = lambda worker, *args, **kwargs: spawn(RecordedLearner if worker is Learner else worker, *args, **kwargs)
    return written


class LedgerLearner:
    """Keeps a ledger of what it is given, and learns nothing."""

    def __init__(self, ledger: RowLedger, agent: Agent, *, seed: int, snapshot: PyTree | None = None, **_: Any) -> None:
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
