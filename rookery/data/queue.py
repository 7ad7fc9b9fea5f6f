"""A queue of batches: the Table that actor-learner systems put between collectors and the learner.

FIFO in, FIFO out, each item learned from once. A batch is a preallocated slot; collectors write their rollouts straight
into its columns, so a batch is assembled without a copy. Only the driver calls a Queue, so it needs no lock.

A part of a slot is   free -> claimed (a collector writes) -> committed;   a slot whose parts are all committed is full,
is taken once by the learner, in the order in which slots became full, and is free again only when the driver releases
it, after the update that read it is ready (jax on CPU reads the slot's own memory).

Where the learner lives elsewhere, rollouts stay where they were made (`stored`): a part is a Stored, filled with what the
runtime calls the rollout, and a batch is a list of them. Whoever learns from it fetches and joins them.

From the first claim in a slot until it is taken, at most `slots` other batches are taken: that bounds how old data can
be. A slot whose writer is slow is overtaken by others until its patience ends; then they wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rookery.data import arrays
from rookery.data.interface import Part, Taken
from rookery.trees import tree_map
from rookery.types import Batch, PyTree, Rollout


@dataclass
class Stored:
    """A reference to a rollout that stays where it was made."""

    value: Any = None  # what the runtime calls it; or the rollout itself
    fetch: Callable[[Any], Rollout] | None = None  # from that to the rollout; None: it is one

    def rollout(self) -> Rollout:
        return self.value if self.fetch is None else self.fetch(self.value)

    def empty(self) -> None:
        self.value = self.fetch = None


class StoredBatch(NamedTuple):
    """A Batch whose rollouts are elsewhere."""

    rollouts: tuple[Stored, ...]  # side by side
    weight: np.ndarray  # [B]
    discount: float  # gamma: not multiplied in yet

    @property
    def width(self) -> int:
        return len(self.weight)


class Queue:
    def __init__(self, specs: Rollout, *, parts: int, slots: int, discount: float, stored: bool = False) -> None:
        """specs: shapes of one collector's rollout; parts: rollouts per batch; discount: gamma, multiplied in on take."""
        width, self._stored = specs.reward.shape[1], stored
        self._views: list[list[Any]] = [[Stored() for _ in range(parts)] for _ in range(slots)]
        if not stored:
            self._slots = [arrays.allocate(arrays.widen(specs, parts * width)) for _ in range(slots)]
            self._views = [
                [arrays.columns(slot, slice(i * width, (i + 1) * width)) for i in range(parts)] for slot in self._slots
            ]
        self._free: deque[tuple[int, int]] = deque((slot, part) for slot in range(slots) for part in range(parts))
        self._claimed: set[tuple[int, int]] = set()
        self._committed = [0] * slots
        self._full: deque[int] = deque()
        self._open: list[int] = []  # slots with a claimed or committed part that are not taken yet, oldest first
        self._patience = [0] * slots  # how many newer batches may still be taken before this one
        self._learning: set[int] = set()
        self._parts, self.discount = parts, discount
        self._weight = np.ones(parts * width, np.float32)
        self._key = np.zeros(parts * width, np.int64)

    def claim(self) -> Part | None:
        """Claim columns to write into; None when every slot is full or being learned from: collectors must wait."""
        if not self._free:
            return None
        slot, index = self._free.popleft()
        self._claimed.add((slot, index))
        if slot not in self._open:  # what is in use now may all be learned from before this slot
            self._patience[slot] = len(self._views) - len(self._open) - len(self._learning)
            self._open.append(slot)
        return Part(slot, index, self._views[slot][index])

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        """Mark the part as written: it may be learned from. A queue has no use for priorities; a replay does (replay.py)."""
        self._claimed.remove((part.slot, part.place))
        self._committed[part.slot] += 1
        if self._committed[part.slot] == self._parts:
            self._full.append(part.slot)

    def abandon(self, part: Part) -> None:
        """Take back a part whose writer is gone: its columns are the next to be claimed, whatever was written there."""
        self._claimed.remove((part.slot, part.place))
        self._free.appendleft((part.slot, part.place))
        if self._stored:
            part.rollout.empty()

    def take(self) -> Taken | None:
        """Take the batch that became full first, None if there is none or an older one may not be overtaken any more."""
        allowed = (slot for slot in self._full if all(self._patience[older] for older in self._older(slot)))
        if (slot := next(allowed, None)) is None:
            return None
        for older in self._older(slot):
            self._patience[older] -= 1
        self._full.remove(slot)
        self._open.remove(slot)
        self._learning.add(slot)
        if self._stored:
            return Taken(slot, StoredBatch(tuple(self._views[slot]), self._weight, self.discount))
        rollout = self._slots[slot]
        rollout.discount[:] *= self.discount  # the slot is rewritten before it is taken again
        return Taken(slot, Batch(rollout, self._weight, self._key))

    def _older(self, slot: int) -> list[int]:
        return self._open[: self._open.index(slot)]

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        """Free a slot whose update is ready: it may be overwritten."""
        self._learning.remove(slot)
        self._committed[slot] = 0
        if self._stored:
            for part in self._views[slot]:
                part.empty()
        self._free.extend((slot, part) for part in range(self._parts))

    @property
    def num_full(self) -> int:
        return len(self._full)

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...

    settled = True  # nothing is ever under way between the driver and a queue

    def pending(self) -> list[Any]:
        return []

    def serve(self, ready: Any) -> None: ...

    def waiting(self) -> str | None:
        """Return None: a queue has no rate limiter, so nobody waits for anything but the other side's speed."""
        return None

    def metrics(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> PyTree:
        """Copy the committed parts of slots that are not full yet (the caller has drained the full ones)."""
        assert not self._claimed and not self._full and not self._learning, "drain the queue before a snapshot"
        free = set(self._free)
        parts = [
            tree_map(np.copy, view.rollout() if self._stored else view)._asdict()
            for slot, views in enumerate(self._views)
            for part, view in enumerate(views)
            if (slot, part) not in free
        ]
        return {"parts": parts, "patience": min((self._patience[slot] for slot in self._open), default=len(self._views))}

    def restore(self, snapshot: PyTree) -> None:
        for saved in snapshot["parts"]:
            part = self.claim()
            assert part is not None, "a snapshot never holds a full batch"
            if self._stored:
                part.rollout.value = tree_map(np.copy, Rollout(**saved))
            else:
                tree_map(np.copyto, part.rollout._asdict(), saved)
            self.commit(part)
        for slot in self._open:
            self._patience[slot] = min(self._patience[slot], int(snapshot["patience"]))
