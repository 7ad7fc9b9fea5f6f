"""Refined batches: what workers between a table and a learner have made of what they drew. First in, first out.

    table ──batch──▶ refiner × R ──refined batch──▶ Refined (bounded; each is learned from `uses` times) ──▶ learner
      ▲──────────────────────────── priorities, by the keys of the items ───────────────────────────────────────┘

Each refined batch knows the version of the parameters that it was refined with. How old those were then, and how much older
when it is learned from, are metrics: the lag of targets that are computed beside the learner and not in it.

The chunks of a table are sealed when they are full and shared by checkpoints, so that targets are not written back into them:
a refined batch is a copy that lives here until it is used up (QT-Opt's Bellman updaters, MuZero's reanalyze).
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from rookery.data.interface import Part, Taken
from rookery.types import Batch, PyTree

RECENT = 64  # batches that lags are means over


class RefinedBatch(NamedTuple):
    """A batch, refined, and how that went."""

    batch: Batch
    version: int  # of the parameters that it was refined with
    seconds: float
    age: int = 0  # of those parameters when the batch came back, in updates


class _Waiting(NamedTuple):
    number: int
    made: RefinedBatch
    left: int  # uses


class Refined:
    """A Table (interface.py) whose parts are whole batches."""

    discount = 1.0  # the table that they were drawn from has multiplied it in

    def __init__(self, *, slots: int, uses: int = 1) -> None:
        """slots: batches on their way, waiting or being learned from, together; uses: updates that each is learned from."""
        self._slots, self._uses = slots, uses
        self._claimed: set[int] = set()
        self._waiting: deque[_Waiting] = deque()
        self._taken: dict[int, _Waiting] = {}
        self._ages, self._lags = deque[int](maxlen=RECENT), deque[int](maxlen=RECENT)
        self._number = self.refined = self.learned = 0

    def claim(self) -> Part | None:
        """Claim room for one more batch; None: refiners must wait."""
        if len(self._claimed) + len(self._waiting) + len(self._taken) >= self._slots:
            return None
        self._number += 1
        self._claimed.add(self._number)
        return Part(0, self._number, None)

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        """Add a RefinedBatch, which `part` holds in place of a rollout."""
        self._claimed.remove(part.place)
        self._waiting.append(_Waiting(part.place, part.rollout, self._uses))
        self._ages.append(part.rollout.age)
        self.refined += 1

    def abandon(self, part: Part) -> None:
        self._claimed.remove(part.place)

    def take(self) -> Taken | None:
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        self._taken[first.number] = first._replace(left=first.left - 1)
        return Taken(first.number, first.made.batch)

    def used(self, slot: int, version: int) -> None:
        """Note that parameters of this version learned from a batch that was taken."""
        self._lags.append(version - self._taken[slot].made.version)

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        """Count a use of a batch; one with uses left is queued again, behind those that wait."""
        one = self._taken.pop(slot)
        self.learned += 1
        if one.left:
            self._waiting.append(one)

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
        mean = lambda values: sum(values) / max(1, len(values))
        there = [*self._waiting, *self._taken.values()]
        return {
            "refined/batches": float(self.refined),
            "refined/waiting": float(len(self._waiting)),
            "refined/versions": float(len({one.made.version for one in there})),
            "refined/target_age": mean(self._ages),
            "refined/lag_mean": mean(self._lags),
            "refined/lag_max": float(max(self._lags, default=0)),
        }

    def snapshot(self) -> PyTree:
        assert not self._claimed and not self._taken and not self._waiting, "drain the refined batches before a snapshot"
        return {"refined": self.refined, "learned": self.learned}

    def restore(self, snapshot: PyTree) -> None:
        self.refined, self.learned = int(snapshot["refined"]), int(snapshot["learned"])
