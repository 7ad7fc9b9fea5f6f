"""The interface of a Table: what stands between those who write experience and those who learn from it.

    claim ──▶ (a collector writes) ──▶ commit           take ──▶ (a learner, or a refiner, reads) ──▶ release, with priorities
                       └──▶ abandon: it is gone

A queue (queue.py), a replay (replay.py), a replay in shards (workers/replay/shards.py), a dataset that is only read
(dataset.py) and batches that workers have refined (refined.py) are Tables. Only the driver calls one: it needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery.types import PyTree


class Part(NamedTuple):
    """Columns of a table, handed to one collector."""

    slot: int
    place: int  # which part of the slot
    rollout: Any  # a Rollout of views into the slot; or a Stored


class Taken(NamedTuple):
    """A batch, handed to the learner."""

    slot: int
    batch: Any  # a Batch; or a StoredBatch


class Table(Protocol):
    discount: float  # gamma, multiplied into what is written or taken from now on

    def claim(self) -> Part | None: ...  # somewhere to write a rollout; None: collectors must wait
    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None: ...
    #   the part is written; priorities [T, B] of its rows, where an algorithm gives some
    def abandon(self, part: Part) -> None: ...  # its writer is gone
    def take(self) -> Taken | None: ...  # a batch; None: there is none, or the limiter refuses
    def release(self, slot: int, priorities: np.ndarray | None = None) -> None: ...
    #   nothing reads the batch any more; priorities [B] of its columns, where the algorithm gave new ones
    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...
    #   new priorities of items by their keys, where a batch was released before it was learned from (refined.py)
    @property
    def num_full(self) -> int: ...  # batches that must be learned from before a snapshot
    @property
    def settled(self) -> bool: ...  # is every call answered, where the table lives elsewhere?
    def pending(self) -> Sequence[Future]: ...  # to wait for, beside those of workers
    def serve(self, ready: Iterable[Future]) -> None: ...  # processes those of them that are done
    def waiting(self) -> str | None: ...  # whom it holds back, and what for; None: nobody
    def metrics(self) -> dict[str, float]: ...
    def snapshot(self) -> PyTree: ...  # nothing may be claimed or taken
    def restore(self, snapshot: PyTree) -> None: ...
