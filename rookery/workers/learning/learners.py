"""Learners: N data-parallel ranks with the interface of one Learner, which restart together when one of them is lost.

                    ┌─▶ rank 0, columns 0 … B/N ──▶ what is published
    batch [T, B] ───┼─▶ rank 1                       │ all-reduce: one vector, every gradient step
                    └─▶ rank N − 1 ◀─────────────────┘

Lives in a thread of the driver; the ranks are workers of the runtime: child processes, or actors. A rank that dies is known by
the error of its call, and to the others by an all-reduce that breaks off. Then all are killed and restarted from the last
copy of the state, taken every COPY_SECONDS, and the batch in hand is learned from again. Versions keep rising: what is
published after a loss has a higher number than all before it, and the updates since that copy are counted as lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVarTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithms import hyper
from rookery.data import arrays
from rookery.data.queue import StoredBatch
from rookery.runtime.interface import Handle, R, Runtime, WorkerLost
from rookery.runtime.roster import Life, Roster, Terms
from rookery.types import Agent, Batch, PyTree, Rollout
from rookery.workers.learning.learner import Update
from rookery.workers.learning.learner_rank import BatchShare, LearnerRank, PeerLost

COPY_SECONDS = 10.0  # between copies of the state
START_SECONDS = 120.0  # to be made, to join and to compile
LOSSES = 5  # times that all may be started again without a copy of the state in between
_logger = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")


class AnyLearner(Protocol):
    """Learn from batches: a Learner, or Learners in its place. Topologies call either by these methods."""

    def published(self) -> tuple[PyTree, int]: ...
    def slow(self) -> PyTree: ...
    def warm_up(self, specs: Rollout) -> None: ...
    def learn(self, batch: Batch) -> Update: ...
    def inspect(self) -> dict[str, float]: ...
    def tune(self, values: Mapping[str, float]) -> None: ...  # hyper-parameters that are leaves of the state
    def snapshot(self) -> PyTree: ...


class Learners:
    def __init__(
        self, runtime: Runtime, agent: Agent, *, seed: int, count: int, devices: int, snapshot: PyTree | None,
        losses: dict[str, int], shares_slow: bool = False,
    ) -> None:  # fmt: skip
        """devices: of each rank; losses: where `learners_lost` and `updates_lost` are counted; shares_slow: as of a Learner."""
        self._runtime, self._agent, self._seed, self._shares_slow = runtime, agent, seed, shares_slow
        self._count, self._devices, self._losses = count, devices, losses
        self._roster = Roster(Terms(losses=LOSSES))
        self._life: Life | None = None
        self._ranks: list[Handle[LearnerRank]] = []
        self._specs: Rollout | None = None  # of the columns of one rank
        self._tuned: dict[str, float] = {}  # since the beginning
        self._kept: PyTree | None = None
        self._kept_version, self._copied = 0, 0.0
        self._keep(snapshot)
        self._version, self._begun = self._kept_version, ()  # type: int, PyTree
        self._params: PyTree = jax.tree.map(jnp.array, self._until_done(lambda: self._begun))
        self._ended = time.perf_counter()

    # ------------------------------------------------------------------------------------------------ as a Learner

    def published(self) -> tuple[PyTree, int]:
        return self._params, self._version

    def slow(self) -> PyTree:
        """Copy what is slow, from the first rank."""
        wanted = lambda: self._answers([self._ranks[0].call(LearnerRank.slow)], self._runtime.patience)[0]
        return jax.tree.map(jnp.array, self._until_done(wanted))

    def warm_up(self, specs: Rollout) -> None:
        """Compile the update on every rank. specs: of the whole batch."""
        share = self._specs = arrays.widen(specs, specs.reward.shape[1] // self._count)
        self._until_done(lambda: self._all(LearnerRank.warm_up, [(share,)] * self._count, START_SECONDS))
        self._ended = time.perf_counter()

    def learn(self, batch: Batch | StoredBatch) -> Update:
        begin = time.perf_counter()
        shares = self._shares(batch)
        told = self._until_done(lambda: self._all(LearnerRank.learn, shares, self._runtime.patience))
        first, trained = told[0], sum(update.trained_steps for update in told)
        lag_mean = sum(update.lag_mean * update.trained_steps for update in told) / max(1, trained)
        self._params = jax.tree.map(jnp.array, first.params)  # once, not each time that somebody acts with it
        self._version = first.version
        if time.monotonic() - self._copied > COPY_SECONDS:
            self.snapshot()
        end = time.perf_counter()
        idle, self._ended = begin - self._ended, end
        return first._replace(
            params=self._params, slow=jax.tree.map(jnp.array, first.slow), trained_steps=trained, lag_mean=lag_mean,
            lag_max=max(update.lag_max for update in told),
            busy_seconds=end - begin, idle_seconds=idle,
        )  # fmt: skip

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name on all ranks, and on those that take their place."""
        self._params = hyper.tuned(self._params, values)
        self._tuned |= values
        self._until_done(lambda: self._all(LearnerRank.tune, [(self._tuned,)] * self._count, self._runtime.patience))

    def inspect(self) -> dict[str, float]:
        return self._until_done(lambda: self._answers([self._ranks[0].call(LearnerRank.inspect)], self._runtime.patience)[0])

    def snapshot(self) -> PyTree:
        """Copy the state, which is replicated, from the first rank, and keep the copy to restart from."""
        wanted = lambda: self._answers([self._ranks[0].call(LearnerRank.snapshot)], self._runtime.patience)[0]
        self._keep(self._until_done(wanted))
        assert self._life is not None
        self._roster.earned(self._life)
        return self._kept

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()

    # -------------------------------------------------------------------------------------------------- shares

    def _shares(self, batch: Batch | StoredBatch) -> list[tuple[list[Any], list[BatchShare], np.ndarray, float]]:
        """Split a batch into the arguments of `learn` for each rank."""
        columns = batch.width if isinstance(batch, StoredBatch) else batch.rollout.reward.shape[1]
        each = columns // self._count
        owns = [slice(i * each, (i + 1) * each) for i in range(self._count)]
        if isinstance(batch, StoredBatch):
            return [(*_parts(batch, own, self._runtime.put), batch.weight[own], batch.discount) for own in owns]
        put = lambda own: [self._runtime.put(arrays.columns(batch.rollout, own))]
        return [(put(own), [BatchShare(0, each)], batch.weight[own], 1.0) for own in owns]

    # --------------------------------------------------------------------------------------------- ranks, together

    def _until_done(self, ask: Callable[[], R]) -> R:
        """Call `ask`; whenever a rank is lost in it, restart all ranks and call it again."""
        while True:
            try:
                if self._life is None:
                    self._start()
                return ask()
            except (WorkerLost, PeerLost) as error:
                self._lose(error)
            except BaseException:
                self.close()  # one of them may be waiting for another that has given up
                raise

    def _start(self) -> None:
        """Start all ranks from the last copy of the state, after the back-off."""
        while not (steps := self._roster.plan(time.monotonic())):
            time.sleep(self._roster.wakes(time.monotonic()))  # back-off
        self._life, count = steps[0].life, self._count
        self._ranks = [self._runtime.spawn(LearnerRank, name=f"learner-{i}", role="learner") for i in range(count)]
        self._answers([rank.ready for rank in self._ranks], START_SECONDS)
        (address,) = self._answers([self._ranks[0].call(LearnerRank.address)], START_SECONDS)
        own = lambda i: tuple(range(i * self._devices, (i + 1) * self._devices)) if self._runtime.name == "local" else None
        self._all(LearnerRank.join, [(address, i, count, own(i)) for i in range(count)], START_SECONDS)
        kept = self._runtime.put(self._kept)
        begin = (self._agent, self._seed, self._devices, self._version, kept, self._shares_slow)
        self._begun = self._all(LearnerRank.begin, [begin] * count, START_SECONDS)[0]  # the parameters
        if self._tuned:  # perhaps after that copy
            self._all(LearnerRank.tune, [(self._tuned,)] * count, START_SECONDS)
        if self._specs is not None:  # they are replaced: compile again, from the cache
            self._all(LearnerRank.warm_up, [(self._specs,)] * count, START_SECONDS)
        self._roster.ready(self._life, time.monotonic())

    def _lose(self, error: Exception) -> None:
        """Kill all ranks: the survivors are stuck in a broken collective."""
        self.close()
        life, self._life = self._life, None
        lost = self._version - self._kept_version
        _logger.warning("a learner is gone: all start again from %d updates ago: %s", lost, error)
        self._losses["learners_lost"] += 1
        self._losses["updates_lost"] += lost
        self._kept_version = self._version  # counted once
        if life is not None:
            self._roster.lost(life, time.monotonic(), str(error))

    def _all(self, method: Callable[[LearnerRank, *Ts], R], args: Sequence[tuple[*Ts]], seconds: float | None) -> list[R]:
        """Call every rank, each with its own arguments, and wait for all."""
        return self._answers([rank.call(method, *own) for rank, own in zip(self._ranks, args)], seconds)

    def _answers(self, futures: Sequence[Future[R]], seconds: float | None) -> list[R]:
        """Wait for all; the first that fails ends the wait."""
        waiting, deadline = list(futures), None if seconds is None else time.monotonic() + seconds
        while waiting:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WorkerLost(f"a learner has not answered in {seconds:g} s")
            ready, waiting = self._runtime.wait(waiting, left)
            for future in ready:
                try:
                    future.result()
                except CancelledError:
                    raise WorkerLost("a learner was ended") from None
        return [future.result() for future in futures]

    def _keep(self, snapshot: PyTree | None) -> None:
        self._kept, self._copied = snapshot, time.monotonic()
        self._kept_version = 0 if snapshot is None else int(snapshot["version"])


def _parts(batch: StoredBatch, own: slice, put: Callable[[Any], Any]) -> tuple[list[Any], list[BatchShare]]:
    """Find the rollouts that have columns of `own`, and which; those that a checkpoint brought are put into the store first."""
    width = batch.width // len(batch.rollouts)
    found = [
        (
            stored.value if stored.fetch else put(stored.value),
            BatchShare(max(own.start - i * width, 0), min(own.stop - i * width, width)),
        )
        for i, stored in enumerate(batch.rollouts)
        if own.start < (i + 1) * width and own.stop > i * width
    ]
    return [value for value, _ in found], [share for _, share in found]
