"""A queue of batches: the Table that actor-learner systems put between collectors and the learner.

FIFO in, FIFO out, each item learned from once. A batch is a preallocated slot; collectors write their rollouts straight
into its columns, so a batch is assembled without a copy. Only the driver calls a Queue, so it needs no lock.

A part of a slot is   free -> claimed (a collector writes) -> committed;   a slot whose parts are all committed is full,
is taken once by the learner, in the order in which slots became full, and is free again only when the driver releases
it, after the update that read it is ready (jax on CPU reads the slot's own memory).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from rookery.data import arrays
from rookery.trees import tree_map
from rookery.types import Batch, PyTree, Rollout


class Part(NamedTuple):
    """Columns of a slot, handed to one collector."""

    slot: int
    place: int  # which part of the slot
    rollout: Rollout  # views into the slot


class Taken(NamedTuple):
    """A full batch, handed to the learner."""

    slot: int
    batch: Batch


class Queue:
    def __init__(self, specs: Rollout, *, parts: int, slots: int, discount: float) -> None:
        """specs: shapes of one collector's rollout; parts: rollouts per batch; discount: gamma, multiplied in on take."""
        width = specs.reward.shape[1]
        self._slots = [arrays.allocate(arrays.widen(specs, parts * width)) for _ in range(slots)]
        self._views = [
            [arrays.columns(slot, slice(i * width, (i + 1) * width)) for i in range(parts)] for slot in self._slots
        ]
        self._free: deque[tuple[int, int]] = deque((slot, part) for slot in range(slots) for part in range(parts))
        self._claimed: set[tuple[int, int]] = set()
        self._committed = [0] * slots
        self._full: deque[int] = deque()
        self._learning: set[int] = set()
        self._parts, self._discount = parts, discount
        self._weight = np.ones(parts * width, np.float32)
        self._key = np.zeros(parts * width, np.int64)

    def claim(self) -> Part | None:
        """Columns to write into; None when every slot is full or being learned from: collectors must wait."""
        if not self._free:
            return None
        slot, index = self._free.popleft()
        self._claimed.add((slot, index))
        return Part(slot, index, self._views[slot][index])

    def commit(self, part: Part) -> None:
        """The part is written; it may be learned from."""
        self._claimed.remove((part.slot, part.place))
        self._committed[part.slot] += 1
        if self._committed[part.slot] == self._parts:
            self._full.append(part.slot)

    def abandon(self, part: Part) -> None:
        """The writer is gone: the columns are the next to be claimed, whatever was written there."""
        self._claimed.remove((part.slot, part.place))
        self._free.appendleft((part.slot, part.place))

    def take(self) -> Taken | None:
        """The oldest full batch, or None."""
        if not self._full:
            return None
        slot = self._full.popleft()
        self._learning.add(slot)
        rollout = self._slots[slot]
        rollout.discount[:] *= self._discount  # the slot is rewritten before it is taken again
        return Taken(slot, Batch(rollout, self._weight, self._key))

    def release(self, slot: int) -> None:
        """The update that read this slot is ready: it may be overwritten."""
        self._learning.remove(slot)
        self._committed[slot] = 0
        self._free.extend((slot, part) for part in range(self._parts))

    @property
    def num_full(self) -> int:
        return len(self._full)

    @property
    def num_claimed(self) -> int:
        return len(self._claimed)

    def snapshot(self) -> PyTree:
        """Copies of the committed parts of slots that are not full yet (the caller has drained the full ones)."""
        assert not self._claimed and not self._full and not self._learning, "drain the queue before a snapshot"
        free = set(self._free)
        return [
            tree_map(np.copy, view)._asdict()
            for slot, views in enumerate(self._views)
            for part, view in enumerate(views)
            if (slot, part) not in free
        ]

    def restore(self, snapshot: PyTree) -> None:
        for saved in snapshot:
            part = self.claim()
            assert part is not None, "a snapshot never holds a full batch"
            rollout = part.rollout._asdict()
            tree_map(np.copyto, rollout, saved)
            self.commit(part)
