"""Which gradients are applied: how old they are, in updates, and whether their loss is an outlier. Pure state machines."""

from __future__ import annotations

import math
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
        """Decide whether a gradient of that age is applied."""
        if self.most is not None and age > self.most:
            self.discarded += 1
            return False
        self._recent.append(age)
        self.oldest = max(self.oldest, age)
        return True

    def report(self) -> dict[str, float]:
        """Report the staleness: the mean of the last gradients that were applied, the maximum of all of them."""
        mean = sum(self._recent) / len(self._recent) if self._recent else 0.0
        return {"staleness_mean": mean, "staleness_max": float(self.oldest), "gradients_discarded": float(self.discarded)}

    def snapshot(self) -> PyTree:
        return {"discarded": self.discarded, "oldest": self.oldest}


class Outliers:
    """Losses far above the running mean, whose gradients are discarded and counted (GORILA's second safeguard).

    Mean and variance forget with `decay`, and an outlier counts there as the bound that it exceeded: one of any size moves
    them little, and a loss that has risen for good is soon admitted again.
    """

    def __init__(
        self, deviations: float | None, snapshot: PyTree | None = None, *, decay: float = 0.99, warm_up: int = 100
    ) -> None:
        """deviations: standard deviations above the mean; None: nothing is an outlier; warm_up: losses seen before any is."""
        self._deviations, self._decay, self._warm_up = deviations, decay, warm_up
        names = ("discarded", "seen", "mean", "variance")
        values = [float(snapshot[name]) for name in names] if snapshot else [0.0] * 4
        self.discarded, self._seen, self._mean, self._variance = int(values[0]), int(values[1]), values[2], values[3]

    def admits(self, report: dict[str, float]) -> bool:
        """Decide whether a gradient is applied. report: that of its loss, which is the sum of all terms named loss…."""
        if self._deviations is None:
            return True
        value = abs(sum(value for name, value in report.items() if name.startswith("loss")))
        bound = self._mean + self._deviations * math.sqrt(self._variance)
        outlier = self._seen >= self._warm_up and value > bound
        self._seen += 1
        step = max(1.0 - self._decay, 1.0 / self._seen)  # at first the plain mean of what was seen
        apart = (bound if outlier else value) - self._mean
        self._mean += step * apart
        self._variance = (1.0 - step) * (self._variance + step * apart * apart)
        self.discarded += outlier
        return not outlier

    def report(self) -> dict[str, float]:
        return {"outliers_discarded": float(self.discarded)}

    def snapshot(self) -> PyTree:
        return {"discarded": self.discarded, "seen": self._seen, "mean": self._mean, "variance": self._variance}
