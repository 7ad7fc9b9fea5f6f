"""Learning curves: the runs of a group on a common grid, their middle and a band around it.

A run counts from its first point to its last. One that was done earlier than the others, because it reached its target, keeps
its last value: the policy is no worse for being finished. One that failed or was stopped is missing from there on, and the
number of runs at each point says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.analysis import statistics
from rookery.analysis.history import RETURN, RunHistory, Series

POINTS = 200
MIDDLES: dict[str, Any] = {"mean": np.mean, "iqm": statistics.iqm, "median": np.median}
BANDS = ("auto", "bootstrap", "minmax", "none")
FEW = 5  # seeds from which on a bootstrap says more than the least and the greatest
NEAR = 0.05  # of the length: runs that end within it end together
RESAMPLES = 1_000


class Curve(NamedTuple):
    """A group's learning curve."""

    x: np.ndarray  # [G]
    middle: np.ndarray  # [G]
    low: np.ndarray  # [G], NaN where there is no band
    high: np.ndarray  # [G]
    there: np.ndarray  # [G] how many runs have a value
    runs: np.ndarray  # [N, G], NaN where a run has no value
    died: tuple[bool, ...]  # [N] whether a run ended before the others without being done


def curve(
    runs: Sequence[RunHistory | Series], *, y: str = RETURN, x: str = "steps", middle: str = "mean", band: str = "auto",
    confidence: float = statistics.CONFIDENCE, smooth: int = 1, points: int = POINTS, seed: int = 0,
) -> Curve | None:  # fmt: skip
    """Compute the learning curve of several seeds; None where none of them has a point.

    band: `bootstrap` (percentiles over seeds), `minmax`, `none`, or `auto`: the first from five seeds on, else the second.
    smooth: points of the grid that a centred mean spans. The same seed draws the same bootstrap."""
    given = [(run, True) if isinstance(run, Series) else (run.series(y, x), run.status == "done") for run in runs]
    present = [(series, done) for series, done in given if len(series.x)]
    if not present:
        return None
    series, done = [s for s, _ in present], [is_done for _, is_done in present]
    if max(len(s.x) for s in series) == 1:  # evaluated at the end alone: at a few steps more or less
        series = [Series(np.array([max(s.x[0] for s in series)]), s.y) for s in series]
    grid = common_grid(series, points)
    died = tuple(not is_done and s.x[-1] < grid[-1] for s, is_done in zip(series, done))
    values = np.stack([_smoothed(_on_grid(s, grid, keeps_last=is_done), smooth) for s, is_done in zip(series, done)])
    there = np.isfinite(values)
    ranges = band_of(band, len(values)) if len(values) > 1 else "none"
    found = np.full((3, len(grid)), math.nan)
    for pattern in np.unique(there, axis=1).T:  # stretches with the same runs: a few
        columns = (there == pattern[:, None]).all(0)
        if pattern.any():
            found[:, columns] = _summary(values[np.ix_(pattern, columns)], MIDDLES[middle], ranges, confidence, seed)
    middles, lows, highs = found
    return Curve(grid, middles, lows, highs, there.sum(0), values, died)


def common_grid(series: Sequence[Series], points: int = POINTS) -> np.ndarray:
    """Space points evenly between where the runs begin and end; those that do so nearly together are cut to what they share."""
    firsts, lasts = np.array([s.x[0] for s in series]), np.array([s.x[-1] for s in series])
    slack = NEAR * (lasts.max() - firsts.min())
    first = firsts[firsts <= firsts.min() + slack].max()
    last = lasts[lasts >= lasts.max() - slack].min()
    return np.linspace(first, last, points) if last > first else np.array([last])


def band_of(band: str, runs: int) -> str:
    """Choose the band that suits so many runs."""
    return band if band != "auto" else "bootstrap" if runs >= FEW else "minmax"


def _on_grid(series: Series, grid: np.ndarray, *, keeps_last: bool) -> np.ndarray:
    right = series.y[-1] if keeps_last else math.nan
    return np.interp(grid, series.x, series.y, left=math.nan, right=right)


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Average over `width` points around each, fewer at the ends; what is missing stays missing."""
    known = np.isfinite(values)
    if width <= 1 or not known.any():
        return values
    kernel = np.ones(min(width, len(values)))
    total = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    with np.errstate(invalid="ignore"):
        return np.where(known, total / np.convolve(known, kernel, mode="same"), math.nan)


def _summary(values: np.ndarray, statistic: Any, band: str, confidence: float, seed: int) -> np.ndarray:
    """Summarise the runs [n, g] at each point: middle, low and high, [3, g]."""
    middle = statistic(values, axis=0)
    if band == "minmax":
        return np.stack([middle, values.min(0), values.max(0)])
    if band == "none" or len(values) < 2:
        return np.stack([middle, np.full_like(middle, math.nan), np.full_like(middle, math.nan)])
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(statistic(values[drawn], axis=1), tails, axis=0)  # the same seeds at every point
    return np.stack([middle, low, high])
