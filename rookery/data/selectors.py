"""Selectors: which items of a table are sampled, and which go when it is full.

A selector keeps what it needs to choose fast; the table tells it what comes, changes and goes, in bulk. Slots are numbers
below the table's capacity. `select` gives slots and the probability of each; drawing n is n independent draws from the same
state, so an item can be drawn twice.

| selector | picks | probability |
|---|---|---|
| uniform | any | 1 / size |
| prioritized | p^exponent / sum of p^exponent; uniform where all are 0; a negative exponent prefers the low ones | that |
| fifo, lifo | the oldest, the newest | 1 |
| min_heap, max_heap | the lowest, the highest priority | 1 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from rookery.data.tree import Tree
from rookery.types import PyTree

Slots = np.ndarray  # [N] int64
Priorities = np.ndarray  # [N] float64


class Selector(Protocol):
    def insert(self, slots: Slots, priorities: Priorities) -> None: ...
    def update(self, slots: Slots, priorities: Priorities) -> None: ...
    def remove(self, slots: Slots) -> None: ...  # no slot twice
    def select(self, count: int, random: np.random.Generator) -> tuple[Slots, Priorities]: ...
    def snapshot(self) -> PyTree: ...  # what insert() of the same items would not bring back
    def restore(self, snapshot: PyTree, slots: Slots, priorities: Priorities) -> None: ...  # into an empty one


class Uniform:
    """Any item. The slots in use stand in a dense list; those that go are replaced by its last ones."""

    def __init__(self, capacity: int) -> None:
        self._dense = np.zeros(capacity, np.int64)
        self._place = np.zeros(capacity, np.int64)  # of a slot in the list
        self._size = 0

    def insert(self, slots: Slots, priorities: Priorities) -> None:
        end = self._size + len(slots)
        self._dense[self._size : end] = slots
        self._place[slots] = np.arange(self._size, end)
        self._size = end

    def update(self, slots: Slots, priorities: Priorities) -> None:
        pass

    def remove(self, slots: Slots) -> None:
        places, left = self._place[slots], self._size - len(slots)
        stays = np.ones(len(slots), bool)  # of the last places in the list: does it hold one that stays?
        stays[places[places >= left] - left] = False
        movers = self._dense[left : self._size][stays]
        holes = places[places < left]
        self._dense[holes] = movers
        self._place[movers] = holes
        self._size = left

    def select(self, count: int, random: np.random.Generator) -> tuple[Slots, Priorities]:
        # not random.integers, which takes three times as long for 256; the bias of 53 bits is below any count of items
        places = random.random(count)
        places *= self._size
        slots = places.astype(np.int64)
        if self._size < len(self._dense):  # else every slot is in use, and any will do
            slots = self._dense.take(slots)
        return slots, np.full(count, 1.0 / self._size)

    def snapshot(self) -> PyTree:
        return {"dense": self._dense[: self._size].copy()}

    def restore(self, snapshot: PyTree, slots: Slots, priorities: Priorities) -> None:
        self.insert(np.asarray(snapshot["dense"]), priorities)


class Ordered:
    """The oldest item first, or the newest. A ring of slots in the order in which they came; what goes leaves a gap."""

    def __init__(self, capacity: int, *, newest: bool = False) -> None:
        self._newest = newest
        self._ring = np.full(2 * capacity + 1, -1, np.int64)
        self._place = np.full(capacity, -1, np.int64)
        self._begin = self._end = 0  # counts that only grow; a place is a count modulo the ring

    def insert(self, slots: Slots, priorities: Priorities) -> None:
        if self._end + len(slots) - self._begin > len(self._ring):
            self._close_gaps()
        counts = np.arange(self._end, self._end + len(slots))
        self._ring[counts % len(self._ring)] = slots
        self._place[slots] = counts
        self._end += len(slots)

    def update(self, slots: Slots, priorities: Priorities) -> None:
        pass

    def remove(self, slots: Slots) -> None:
        self._ring[self._place[slots] % len(self._ring)] = -1
        while self._begin < self._end and self._ring[self._begin % len(self._ring)] < 0:
            self._begin += self._gap(forward=True)
        while self._begin < self._end and self._ring[(self._end - 1) % len(self._ring)] < 0:
            self._end -= self._gap(forward=False)

    def _gap(self, *, forward: bool, look: int = 256) -> int:
        """Count the empty places at this end, among the next `look`."""
        counts = np.arange(self._begin, min(self._end, self._begin + look))
        if not forward:
            counts = np.arange(self._end - 1, max(self._begin, self._end - look) - 1, -1)
        filled = self._ring[counts % len(self._ring)] >= 0
        return int(filled.argmax()) if filled.any() else len(counts)

    def oldest(self, count: int) -> Slots:
        """Return the first `count` slots in this selector's order."""
        found: list[Slots] = []
        missing, begin, end, look = count, self._begin, self._end, max(64, 2 * count)
        while missing and begin < end:
            if self._newest:
                counts = np.arange(end - 1, max(begin, end - look) - 1, -1)
                end -= len(counts)
            else:
                counts = np.arange(begin, min(end, begin + look))
                begin += len(counts)
            slots = self._ring[counts % len(self._ring)]
            found.append(slots[slots >= 0][:missing])
            missing -= len(found[-1])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def select(self, count: int, random: np.random.Generator) -> tuple[Slots, Priorities]:
        return np.repeat(self.oldest(1), count), np.ones(count)

    def _close_gaps(self) -> None:
        counts = np.arange(self._begin, self._end)
        slots = self._ring[counts % len(self._ring)]
        slots = slots[slots >= 0]
        self._ring[:], self._begin, self._end = -1, 0, 0
        self.insert(slots, np.zeros(0))

    def snapshot(self) -> PyTree:
        counts = np.arange(self._begin, self._end)
        slots = self._ring[counts % len(self._ring)]
        return {"order": slots[slots >= 0]}

    def restore(self, snapshot: PyTree, slots: Slots, priorities: Priorities) -> None:
        self.insert(np.asarray(snapshot["order"]), priorities)


class Prioritized:
    """In proportion to p^exponent, by a sum tree (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    Draws are stratified: the sum is cut into n equal ranges and one number is drawn in each; every item is still drawn
    n · p^exponent / sum times on average. A priority of 0 is never drawn while another is above it, even with exponent 0.
    """

    def __init__(self, capacity: int, *, exponent: float = 0.6) -> None:
        self._exponent = exponent
        self._tree = Tree(capacity)
        self._fallback = Uniform(capacity)

    def insert(self, slots: Slots, priorities: Priorities) -> None:
        self._fallback.insert(slots, priorities)
        self.update(slots, priorities)

    def update(self, slots: Slots, priorities: Priorities) -> None:
        weights = np.zeros(len(slots))
        np.power(priorities, self._exponent, out=weights, where=priorities > 0)
        self._tree.set(slots, weights)

    def remove(self, slots: Slots) -> None:
        self._fallback.remove(slots)
        self._tree.clear(slots)

    @property
    def mass(self) -> float:
        return self._tree.root

    def select(self, count: int, random: np.random.Generator) -> tuple[Slots, Priorities]:
        if self._tree.root <= 0.0:
            return self._fallback.select(count, random)
        slots, total = self._tree.find((random.random(count) + np.arange(count)) / count)
        return slots, self._tree.leaves.take(slots) / total

    def snapshot(self) -> PyTree:
        return self._fallback.snapshot()

    def restore(self, snapshot: PyTree, slots: Slots, priorities: Priorities) -> None:
        self._fallback.restore(snapshot, slots, priorities)
        self.update(slots, priorities)


class Heap:
    """The lowest priority, or the highest."""

    def __init__(self, capacity: int, *, highest: bool = False) -> None:
        combine, empty = (np.maximum, -np.inf) if highest else (np.minimum, np.inf)
        self._tree = Tree(capacity, combine=combine, empty=empty)

    def insert(self, slots: Slots, priorities: Priorities) -> None:
        self._tree.set(slots, priorities)

    def update(self, slots: Slots, priorities: Priorities) -> None:
        self._tree.set(slots, priorities)

    def remove(self, slots: Slots) -> None:
        self._tree.clear(slots)

    def select(self, count: int, random: np.random.Generator) -> tuple[Slots, Priorities]:
        return np.full(count, self._tree.extreme()), np.ones(count)

    def snapshot(self) -> PyTree:
        return {}

    def restore(self, snapshot: PyTree, slots: Slots, priorities: Priorities) -> None:
        self.insert(slots, priorities)


def make(kind: str, capacity: int, *, exponent: float = 0.6) -> Selector:
    """Make a selector by its name in the table above."""
    kinds: dict[str, Callable[[], Selector]] = {
        "uniform": lambda: Uniform(capacity),
        "fifo": lambda: Ordered(capacity),
        "lifo": lambda: Ordered(capacity, newest=True),
        "prioritized": lambda: Prioritized(capacity, exponent=exponent),
        "min_heap": lambda: Heap(capacity),
        "max_heap": lambda: Heap(capacity, highest=True),
    }
    if kind not in kinds:
        raise ValueError(f"there is no selector {kind!r}: {', '.join(kinds)}")
    return kinds[kind]()
