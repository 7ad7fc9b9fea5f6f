"""A tree of numbers over the slots of a table: sums to sample in proportion, minima and maxima to find the extremes.

Every node is recomputed from its two children, never corrected by a difference: what it holds depends on the leaves alone,
so no rounding error builds up, and a restored tree is the tree that was saved, bit for bit.

The tree is cut where a level has at most `CROWN` nodes; above that one cumulative sum and a binary search are faster than
descending. In numpy the number of calls decides, not the work in them: with a million leaves, sampling 256 of them takes 8
levels instead of 20.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CROWN = 4096


class Tree:
    """combine: np.add, np.minimum or np.maximum; empty: the value of a leaf that holds nothing."""

    def __init__(self, capacity: int, *, combine: np.ufunc = np.add, empty: float = 0.0) -> None:
        self._combine, self._empty = combine, empty
        size = 1 << max(0, capacity - 1).bit_length()
        self._levels = [np.full(size, empty, np.float64)]  # from the leaves upwards; children of i: 2 i and 2 i + 1
        while len(self._levels[-1]) > CROWN:
            self._levels.append(np.full(len(self._levels[-1]) // 2, empty, np.float64))
        self._pairs = [level.reshape(-1, 2) for level in self._levels[:-1]]
        self.leaves = self._levels[0][:capacity]

    @property
    def root(self) -> float:
        """All leaves, combined."""
        return float(self._combine.reduce(self._levels[-1]))

    def set(self, slots: np.ndarray, values: Any) -> None:
        """Set the leaves at `slots` to `values`; of a slot given twice the last value stays."""
        self._levels[0][slots] = values
        for level, pairs in zip(self._levels[1:], self._pairs):
            slots = slots >> 1
            children = pairs.take(slots, axis=0)
            level[slots] = self._combine(children[:, 0], children[:, 1])

    def clear(self, slots: np.ndarray) -> None:
        self.set(slots, self._empty)

    def find(self, fractions: np.ndarray) -> tuple[np.ndarray, float]:
        """Find, in a sum tree, for each fraction in [0, 1) the first slot at which the running sum of the leaves exceeds that
        fraction of the total; return the total too, which must be more than 0."""
        crown = self._levels[-1]
        running = np.empty(len(crown) + 1)
        running[0] = 0.0
        np.cumsum(crown, out=running[1:])
        total = float(running[-1])
        targets = fractions * total
        nodes = running[1:].searchsorted(targets, side="right")
        if nodes.max() == len(crown):  # by rounding: the last that holds anything is meant
            nodes = np.minimum(nodes, np.flatnonzero(crown)[-1])
        targets -= running.take(nodes)
        for level in reversed(self._levels[:-1]):
            nodes = nodes << 1
            left = level.take(nodes)
            right = targets >= left
            targets -= left * right
            nodes += right
        empty = self._levels[0].take(nodes) <= 0.0
        if empty.any():  # by rounding, too
            nodes[empty] = [self._before(int(slot)) for slot in nodes[empty]]
        return nodes, total

    def _before(self, slot: int) -> int:
        """Find the nearest slot before this one, or else after it, that holds anything."""
        filled = np.flatnonzero(self._levels[0])
        return int(filled[max(0, int(filled.searchsorted(slot)) - 1)])

    def extreme(self) -> int:
        """Find the slot of the extreme, in a tree of minima or maxima; the lowest where several are equal."""
        node = int(np.argmax(self._levels[-1] == self.root))
        for level in reversed(self._levels[:-1]):
            node = 2 * node + int(level[2 * node] != self._combine(level[2 * node], level[2 * node + 1]))
        return node
