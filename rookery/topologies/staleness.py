"""How old gradients are when they are applied, in updates, and which of them are too old. A pure state machine."""

from __future__ import annotations

from collections import deque

from rookery.types import PyTree


class Staleness:
    """Of the gradients that arrive: updates between the parameters they were computed with and those they are applied to."""

    def __init__(self, most: int | None = None, snapshot: PyTree | None = None, *, window: int = 100) -> None:
        """most: older ones are discarded, and counted; None: none is."""
        self.most = most
        self.discarded, self.oldest = (int(snapshot[name]) for name in ("discarded", "oldest")) if snapshot else (0, 0)
        self._recent: deque[int] = deque(maxlen=window)

    def admits(self, age: int) -> bool:
        """Is a gradient of that age to be applied?"""
        if self.most is not None and age > self.most:
            self.discarded += 1
            return False
        self._recent.append(age)
        self.oldest = max(self.oldest, age)
        return True

    def report(self) -> dict[str, float]:
        """The mean is of the last gradients that were applied, the maximum of all of them."""
        mean = sum(self._recent) / len(self._recent) if self._recent else 0.0
        return {"staleness_mean": mean, "staleness_max": float(self.oldest), "gradients_discarded": float(self.discarded)}

    def snapshot(self) -> PyTree:
        return {"discarded": self.discarded, "oldest": self.oldest}
