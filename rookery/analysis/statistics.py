"""Statistics of a few seeds: interquartile means, stratified bootstrap, probability of improvement, performance profiles.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice". Scores are those of one
environment, [n], or of several by name, {env: [n]}: each is a stratum, whose seeds are drawn among themselves.

What differs from the paper's library: the interquartile mean counts a value at the edge of the middle half by the share that
lies within, where a trimmed mean of whole values jumps (with multiples of four values both are the same).
Intervals are percentiles of the bootstrap. With few seeds they are too narrow: docs/howto/plots.md has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from rookery.run.boards import MissingExtra
from rookery.run.returns import iqm

Scores = Sequence[float] | np.ndarray | Mapping[str, Sequence[float]]
Statistic = Callable[..., Any]  # (values [..., n], axis=-1) -> [...]
RESAMPLES, CONFIDENCE = 10_000, 0.95
BLOCK = 4_000_000  # numbers drawn at a time: 32 MB


class Interval(NamedTuple):
    """A value, and where it may lie; NaN where there are too few values for an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


class Profile(NamedTuple):
    """For each score, the share of runs above it."""

    score: np.ndarray  # [S]
    share: np.ndarray  # [S]
    low: np.ndarray  # [S]
    high: np.ndarray  # [S]


def bootstrap(
    scores: Scores, statistic: Statistic = iqm, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Compute a statistic of all scores and its percentile bootstrap interval, stratified over environments.

    statistic(values [R, n], axis=-1) -> [R]: `iqm`, `np.mean`, `np.median`. The same seed gives the same interval."""
    parts = strata(scores)
    value = float(statistic(np.concatenate(parts), axis=-1))
    if min(map(len, parts)) < 2:
        return Interval(value)
    return Interval(value, *_percentiles(resampled(parts, statistic, resamples=resamples, seed=seed), confidence))


def difference(
    x: Scores, y: Scores, statistic: Statistic = iqm, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:  # fmt: skip
    """Compute statistic(x) − statistic(y) and its stratified bootstrap interval: the seeds of both are drawn independently."""
    ours, theirs = strata(x), strata(y)
    value = float(statistic(np.concatenate(ours), axis=-1) - statistic(np.concatenate(theirs), axis=-1))
    if min(map(len, [*ours, *theirs])) < 2:
        return Interval(value)
    drawn = [resampled(part, statistic, resamples=resamples, seed=seed + i) for i, part in enumerate((ours, theirs))]
    return Interval(value, *_percentiles(drawn[0] - drawn[1], confidence))


def probability_of_improvement(
    x: Scores, y: Scores, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Compute the probability that a run of x scores above one of y, ties counting half, averaged over environments.

    In each environment it is the share of pairs, the statistic of Mann and Whitney; the bootstrap draws seeds of x and of y."""
    shared = [(a, b) for a, b in zip(*aligned(x, y))]
    wins = [(a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :]) for a, b in shared]  # [n, m] each
    value = float(np.mean([share.mean() for share in wins]))
    if min(min(share.shape) for share in wins) < 2:
        return Interval(value)
    rng, total = np.random.default_rng(seed), np.zeros(resamples)
    for share in wins:
        ours, theirs = (_weights(rng, n, resamples) for n in share.shape)
        total += np.einsum("rn,nm,rm->r", ours, share, theirs, optimize=True)
    return Interval(value, *_percentiles(total / len(wins), confidence))


def profile(
    scores: Scores, taus: Sequence[float] | np.ndarray | None = None, *, confidence: float = CONFIDENCE,
    resamples: int = 2_000, seed: int = 0,
) -> Profile:  # fmt: skip
    """Compute the performance profile: the share of runs that score above each tau, averaged over environments.

    taus: 101 scores from the least to the greatest, by default. The band is pointwise, of the stratified bootstrap."""
    parts = strata(scores)
    everything = np.concatenate(parts)
    grid = np.linspace(everything.min(), everything.max(), 101) if taus is None else np.asarray(taus, float)
    above = [np.asarray(part[:, None] > grid[None, :], float) for part in parts]  # [n, S] each
    share = np.mean([part.mean(0) for part in above], axis=0)
    if min(map(len, parts)) < 2:
        return Profile(grid, share, np.full(grid.shape, math.nan), np.full(grid.shape, math.nan))
    rng = np.random.default_rng(seed)
    drawn = np.mean([_weights(rng, len(part), resamples) @ part for part in above], axis=0)
    low, high = np.quantile(drawn, _tails(confidence), axis=0)
    return Profile(grid, share, low, high)


def student(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """Compute the mean and Student's t interval, which holds for values that are about normal. Needs scipy."""
    known = np.asarray(values, float)
    if len(known) < 2:
        return Interval(float(known.mean()) if len(known) else math.nan)
    require_scipy("an interval by Student's t")
    from scipy import stats

    half = stats.t.ppf(0.5 + confidence / 2, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
    return Interval(float(known.mean()), float(known.mean() - half), float(known.mean() + half))


def require_scipy(what: str) -> None:
    """Raise MissingExtra where scipy is not installed; imports nothing."""
    if find_spec("scipy") is None:
        raise MissingExtra(f"{what} needs scipy: pip install 'rookery[plot]'")


# ----------------------------------------------------------------------------------------------------------- parts


def strata(scores: Scores) -> list[np.ndarray]:
    """List the scores of each environment; ValueError where one has none, or holds what is no finite number."""
    parts = [np.asarray(part, float).ravel() for part in (scores.values() if isinstance(scores, Mapping) else [scores])]
    if not parts or min(map(len, parts)) == 0:
        raise ValueError("no scores: every environment needs one at least")
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError("scores must be finite numbers")
    return parts


def aligned(x: Scores, y: Scores) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """List the scores of both in the environments that both have, in one order; ValueError where there are none."""
    if not isinstance(x, Mapping) or not isinstance(y, Mapping):
        return strata(x), strata(y)
    names = [name for name in x if name in y]
    if not names:
        raise ValueError(f"no environment in common: {', '.join(x)} and {', '.join(y)}")
    return strata({name: x[name] for name in names}), strata({name: y[name] for name in names})


def resampled(parts: Sequence[np.ndarray], statistic: Statistic, *, resamples: int, seed: int) -> np.ndarray:
    """Draw each stratum with replacement, `resamples` times: the statistic of all that was drawn, [R]."""
    rng, found, width = np.random.default_rng(seed), [], sum(map(len, parts))
    while resamples > 0:
        rows = min(resamples, max(1, BLOCK // width))
        drawn = [part[rng.integers(len(part), size=(rows, len(part)))] for part in parts]
        found.append(np.asarray(statistic(np.concatenate(drawn, axis=1), axis=-1)))
        resamples -= rows
    return np.concatenate(found)


def _weights(rng: np.random.Generator, count: int, resamples: int) -> np.ndarray:
    """Draw how much each of `count` values weighs in each resample, [R, n]: the share of draws that fell on it."""
    return rng.multinomial(count, np.full(count, 1 / count), size=resamples) / count


def _tails(confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence:g}: it must be more than 0 and less than 1")
    return (1 - confidence) / 2, (1 + confidence) / 2


def _percentiles(drawn: np.ndarray, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, _tails(confidence))
    return float(low), float(high)
