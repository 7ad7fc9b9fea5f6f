"""Returns: `return_mean`, of the last 100 training episodes as they were played, and the interquartile mean of several."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np


class ReturnWindow:
    """The returns of the last `size` episodes, and when their mean first reached `target` with the window full."""

    def __init__(self, size: int = 100, target: float | None = None) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a mean needs at least one episode")
        self.target = target
        self.episodes = 0  # all that ever ended, not only those in the window
        self.seconds_to_target: float | None = None
        self._returns: deque[float] = deque(maxlen=size)
        self._first: list[float] = []

    def add(self, total_rewards: Iterable[float], seconds: float) -> None:
        """Add episodes that ended, in their order, `seconds` after the start of the run."""
        for total_reward in total_rewards:
            self._returns.append(float(total_reward))
            if self.episodes == len(self._first) < (self._returns.maxlen or 0):
                self._first.append(float(total_reward))
            self.episodes += 1
            if self.seconds_to_target is None and self.reached:
                self.seconds_to_target = seconds

    @property
    def return_mean(self) -> float | None:
        """Mean return of the window; None until the first episode has ended."""
        return sum(self._returns) / len(self._returns) if self._returns else None

    @property
    def first_mean(self) -> float | None:
        """Mean return of the first `size` episodes of the run; None where they are not known."""
        return sum(self._first) / len(self._first) if self._first else None

    @property
    def full(self) -> bool:
        return len(self._returns) == self._returns.maxlen

    @property
    def reached(self) -> bool:
        """Is the mean of a full window at the target now? A few lucky episodes at the start do not count."""
        mean = self.return_mean
        return self.target is not None and self.full and mean is not None and mean >= self.target

    def snapshot(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "returns": list(self._returns),
            "first": list(self._first),
            "episodes": self.episodes,
            "target": self.target,
            "seconds_to_target": self.seconds_to_target,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot; the target is that of this window, and was reached before only if it was that of then."""
        self._returns.clear()
        self._returns.extend(snapshot["returns"])
        self._first = list(snapshot.get("first", ()))  # a checkpoint of before has none
        self.episodes = snapshot["episodes"]
        before = snapshot.get("target", self.target)  # a checkpoint of before does not say
        self.seconds_to_target = snapshot["seconds_to_target"] if before == self.target else None


def of_seeds(report: dict[str, float]) -> dict[str, float]:
    """Select the mean return of each seed from the report of a topology that trains several."""
    return {name: value for name, value in report.items() if name.startswith("return_mean/seed_")}


def iqm(values: Any, axis: int = -1) -> Any:
    """Compute the interquartile mean: of the middle half of the values; those at its edges count by the share that is within.

    values [..., n] -> [...]. A float for a plain list."""
    ordered = np.sort(np.asarray(values, float), axis=axis)
    count = ordered.shape[axis]
    if count == 0:
        raise ValueError("no values: there is no mean of none")
    quarter, place = count / 4, np.arange(count)
    weights = np.clip(np.minimum(place + 1, count - quarter) - np.maximum(place, quarter), 0, None)
    found = np.moveaxis(ordered, axis, -1) @ (weights / weights.sum())
    return float(found) if np.ndim(found) == 0 else found
