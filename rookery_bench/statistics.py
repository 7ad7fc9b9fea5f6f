"""The few statistics that the benches need beside those of `rookery.analysis`.

`None` is a measurement that never came: a target that was not reached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeVar

from rookery.analysis import statistics as analysis

T = TypeVar("T")


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
    """Compute the 95 % confidence interval of the mean of a few values (Student's t). Needs the extra `plot`."""
    if len(values) < 2:
        return None, None
    found = analysis.student(values)
    return found.low, found.high


def iqm(values: Sequence[float]) -> float | None:
    """Compute the mean of the middle half (Agarwal et al. 2021); None of nothing."""
    return analysis.iqm(values) if values else None


def bootstrap(values: Sequence[float], *, samples: int = 10_000, seed: int = 0) -> tuple[float | None, float | None]:
    """Compute the 95 % interval of the IQM over seeds drawn with replacement (percentile bootstrap)."""
    if len(values) < 2:
        return None, None
    found = analysis.bootstrap(values, resamples=samples, seed=seed)
    return found.low, found.high


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
