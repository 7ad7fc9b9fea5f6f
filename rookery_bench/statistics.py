"""The few statistics that the benches need. `None` is a measurement that never came: a target that was not reached."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # 97.5 % of t, by the number of values


def median(values: Sequence[float | None]) -> float | None:
    """Compute the median; a missing value counts as infinitely slow, so failures cannot improve a time; None if it is one."""
    if not values:
        return None
    middle = statistics.median(math.inf if value is None else value for value in values)
    return None if math.isinf(middle) else middle


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the least and the greatest of the values that came."""
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def rotated(arms: Sequence[T], number: int) -> list[T]:
    """Rotate the arms, so that over all rounds none has the advantage of coming first."""
    first = number % len(arms)
    return [*arms[first:], *arms[:first]]


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Compute the 95 % confidence interval of the mean of a few values (Student's t)."""
    if len(values) < 2:
        return None, None
    half = STUDENT.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def iqm(values: Sequence[float]) -> float | None:
    """Compute the mean of the middle half (Agarwal et al. 2021); values at its edges count by the share that lies within."""
    if not values:
        return None
    ordered, quarter = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(ordered) - quarter) - max(i, quarter)) for i in range(len(ordered))]
    return sum(w * v for w, v in zip(weights, ordered)) / sum(weights)


def bootstrap(values: Sequence[float], *, samples: int = 10_000, seed: int = 0) -> tuple[float | None, float | None]:
    """Compute the 95 % interval of the IQM over seeds drawn with replacement (percentile bootstrap)."""
    if len(values) < 2:
        return None, None
    rng = random.Random(seed)
    found = sorted(iqm(rng.choices(values, k=len(values))) or 0.0 for _ in range(samples))
    return found[int(0.025 * samples)], found[int(0.975 * samples) - 1]


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Fit the slope of the least-squares line through the points; None where there are fewer than two different x."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x and {len(y)} y: a slope needs as many of each")
    if len(set(x)) < 2:
        return None
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
