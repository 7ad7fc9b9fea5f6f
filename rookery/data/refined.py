"""Refined batches: what workers between a table and a learner have made of what they drew. First in, first out.

    table ──batch──▶ refiner × R ──refined batch──▶ Refined (bounded; each is learned from `uses` times) ──▶ learner
      ▲──────────────────────────── priorities, by the keys of the items ───────────────────────────────────────┘

The chunks of a table are sealed when they are full and shared by checkpoints, so that targets are not written back into them:
a refined batch is a copy that lives here until it is used up (QT-Opt's Bellman updaters, MuZero's reanalyze).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rookery.data.interface import Part, Taken
from rookery.types import Batch, PyTree


class Refined:
    """A Table (interface.py) whose parts are whole batches."""

    discount = 1.0  # the table that they were drawn from has multiplied it in

    def __init__(self, *, slots: int, uses: int = 1) -> None:
        """slots: batches on their way, waiting or being learned from, together; uses: updates that each is learned from."""
        self._slots, self._uses = slots, uses
        self._claimed: set[int] = set()
        self._waiting: deque[tuple[int, Batch, int]] = deque()  # number, batch, uses that are left
        self._taken: dict[int, tuple[Batch, int]] = {}
        self._number = self.refined = self.learned = 0

    def claim(self) -> Part | None:
        """Claim room for one more batch; None: refiners must wait."""
        if len(self._claimed) + len(self._waiting) + len(self._taken) >= self._slots:
            return None
        self._number += 1
        self._claimed.add(self._number)
        return Part(0, self._number, None)

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        """Add a refined batch, which `part` holds in place of a rollout."""
        self._claimed.remove(part.place)
        self._waiting.append((part.place, part.rollout, self._uses))
        self.refined += 1

    def abandon(self, part: Part) -> None:
        self._claimed.remove(part.place)

    def take(self) -> Taken | None:
        if not self._waiting:
            return None
        number, batch, left = self._waiting.popleft()
        self._taken[number] = batch, left - 1
        return Taken(number, batch)

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        """Count a use of a batch; one with uses left is queued again, behind those that wait."""
        batch, left = self._taken.pop(slot)
        self.learned += 1
        if left:
            self._waiting.append((slot, batch, left))

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...

    @property
    def num_full(self) -> int:
        return len(self._waiting)

    settled = True

    def pending(self) -> list[Any]:
        return []

    def serve(self, ready: Any) -> None: ...

    def waiting(self) -> str | None:
        return None

    def metrics(self) -> dict[str, float]:
        return {"refined/batches": float(self.refined), "refined/waiting": float(len(self._waiting))}

    def snapshot(self) -> PyTree:
        assert not self._claimed and not self._taken and not self._waiting, "drain the refined batches before a snapshot"
        return {"refined": self.refined, "learned": self.learned}

    def restore(self, snapshot: PyTree) -> None:
        self.refined, self.learned = int(snapshot["refined"]), int(snapshot["learned"])
