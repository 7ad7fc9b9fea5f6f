"""Compare groups of runs: what each scored, with intervals over seeds, and how probable it is that one is above another.

A score is a number per run: the return of the policy that stands for it (`eval`), of its last training episodes (`return`), or
any metric's last value; with `at_steps`, where the curve stands there. Over several environments scores are normalised first,
since a return of CartPole and one of Pendulum have no common unit.

There are no p values: with five seeds they say little, and an interval says how much. Only where every run of one group is
above every run of the other, where a bootstrap cannot vary, the share of orders that would look the same by chance is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from rookery.analysis import statistics
from rookery.analysis.groups import RunGroup
from rookery.analysis.history import EVAL, RETURN, RunHistory
from rookery.analysis.statistics import Interval, Profile
from rookery.run.directory import RunError

AGGREGATES = {"mean": np.mean, "median": np.median, "iqm": statistics.iqm}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is compared, and how surely."""

    metric: str | None = None  # None: `eval` where every run has one, else `return`
    at_steps: int | None = None
    score: float | None = None  # how soon it was reached
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by environment: what becomes 0, and what 1
    confidence: float = statistics.CONFIDENCE
    resamples: int = statistics.RESAMPLES
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How soon runs reached a score: those that never did count as infinitely slow."""

    env: str
    reached: int
    runs: int
    steps: float | None  # median
    seconds: float | None  # median


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """What a group scored."""

    label: str
    scores: dict[str, list[float]]  # by environment, as measured
    normalised: dict[str, list[float]]
    mean: Interval
    median: Interval
    iqm: Interval
    profile: Profile
    seconds: float | None  # median of a run
    steps: float | None  # median of a run
    reached: tuple[Reached, ...] = ()

    @property
    def seeds(self) -> dict[str, int]:
        return {env: len(values) for env, values in self.scores.items()}


@dataclass(frozen=True, kw_only=True)
class GroupPair:
    """Two groups beside each other, in the environments that both have."""

    better: str  # the one that more often scores above the other
    other: str
    probability: Interval  # that a run of `better` is above one of `other`
    difference: Interval  # of their interquartile means
    seeds: tuple[int, int]  # the fewest of each, over environments
    by_chance: float | None = None  # where all are above all: the share of orders that look like it, if both were alike


@dataclass(frozen=True, kw_only=True)
class Comparison:
    question: Question
    metric: str
    envs: tuple[str, ...]
    scale: dict[str, tuple[float, float]]  # empty with one environment: scores stay as measured
    groups: tuple[GroupSummary, ...]
    pairs: tuple[GroupPair, ...]
    notes: tuple[str, ...]


def compare(groups: Sequence[RunGroup], question: Question | None = None, notes: Sequence[str] = ()) -> Comparison:
    """Compare groups of runs. Raises RunError where there is nothing to compare."""
    question = question or Question()
    metric = question.metric or _metric(groups, question.at_steps)
    said, scores = list(notes), {}
    for group in groups:
        scores[group.label] = _scores(group, metric, question.at_steps, said)
    if not (known := {label: by_env for label, by_env in scores.items() if by_env}):
        raise RunError(" ".join([f"no run has {metric!r} to compare.", *said]))
    said += [f"{label}: no {metric}, so it is not compared." for label in scores.keys() - known.keys()]
    envs = tuple(dict.fromkeys(env for by_env in known.values() for env in by_env))
    scale = _scales(known, envs, question.scale)
    normalised = {label: _normalised(by_env, scale) for label, by_env in known.items()}
    taus = _taus(normalised)
    members = {group.label: group for group in groups}
    summaries = [_summary(members[label], known[label], normalised[label], taus, question) for label in known]
    pairs = [pair for a, b in combinations(summaries, 2) if (pair := _pair(a, b, question)) is not None]
    said += [*_uneven(summaries, envs), *_lengths(summaries, question)]
    return Comparison(
        question=question, metric=metric, envs=envs, scale=scale, groups=tuple(summaries), pairs=tuple(pairs), notes=tuple(said)
    )


# ---------------------------------------------------------------------------------------------------------- scores


def score_of(run: RunHistory, metric: str, at_steps: int | None = None) -> float:
    """Return what a run scored, NaN where it did not: at its end, or where its curve stands at `at_steps`."""
    if at_steps is None and metric in (EVAL, "eval_return_mean"):
        return run.final_evaluation
    points = run.series(metric)
    if not len(points.x):
        return math.nan
    if at_steps is None:
        return float(points.y[-1])
    late = float(points.y[-1]) if run.status == "done" else math.nan  # one that reached its target early keeps what it had
    return float(np.interp(at_steps, *points, left=math.nan, right=late))


def _metric(groups: Sequence[RunGroup], at_steps: int | None) -> str:
    """Choose the greedy policy's return where every run has it: at the end, or as a curve."""
    runs = [run for group in groups for run in group.runs]
    return EVAL if runs and all(math.isfinite(score_of(run, EVAL, at_steps)) for run in runs) else RETURN


def _scores(group: RunGroup, metric: str, at_steps: int | None, notes: list[str]) -> dict[str, list[float]]:
    """Collect the scores of a group by environment; `notes` is told of runs without one."""
    found: dict[str, list[float]] = {}
    missing = []
    for run in group.runs:
        value = score_of(run, metric, at_steps)
        if math.isfinite(value):
            found.setdefault(run.env, []).append(value)
        else:
            missing.append(run)
    if missing:
        where = f" at {at_steps:,} steps" if at_steps is not None else ""
        told = ", ".join(f"{run.name} ({run.status}, {run.last_step:,.0f} steps)" if math.isfinite(run.last_step)
                         else f"{run.name} ({run.status}, no rows)" for run in missing[:4])  # fmt: skip
        told += f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        count = len(group.runs) - len(missing)
        notes.append(f"{group.label}: no {metric}{where} of {told}: left out, {count} of {len(group.runs)} runs count. "
                     "If they failed for being bad, that flatters the group.")  # fmt: skip
    return found


def _scales(
    scores: Mapping[str, Mapping[str, list[float]]], envs: Sequence[str], given: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Choose what becomes 0 and 1 in each environment: what was given, else the least and the greatest score of all runs."""
    if unknown := [env for env in given if env not in envs]:
        raise RunError(f"--scale {unknown[0]}: no run is on it. Environments: {', '.join(envs)}.")
    if len(envs) == 1 and not given:
        return {}
    found = {}
    for env in envs:
        values = [value for by_env in scores.values() for value in by_env.get(env, [])]
        found[env] = given.get(env, (min(values), max(values)))
    return found


def _normalised(scores: Mapping[str, list[float]], scale: Mapping[str, tuple[float, float]]) -> dict[str, list[float]]:
    if not scale:
        return {env: list(values) for env, values in scores.items()}
    ends = {env: (low, high if high > low else low + 1.0) for env, (low, high) in scale.items()}  # all alike: all are 0
    return {env: [(value - ends[env][0]) / (ends[env][1] - ends[env][0]) for value in values] for env, values in scores.items()}


def _taus(normalised: Mapping[str, Mapping[str, list[float]]]) -> np.ndarray:
    values = [value for by_env in normalised.values() for part in by_env.values() for value in part]
    low, high = min(values), max(values)
    return np.linspace(low, high if high > low else low + 1, 101)


# ------------------------------------------------------------------------------------------------------- summaries


def _summary(
    group: RunGroup, scores: dict[str, list[float]], normalised: dict[str, list[float]], taus: np.ndarray, question: Question
) -> GroupSummary:
    settings = {"confidence": question.confidence, "resamples": question.resamples, "seed": question.seed}
    found = {name: statistics.bootstrap(normalised, statistic, **settings) for name, statistic in AGGREGATES.items()}  # type: ignore[arg-type]
    shape = statistics.profile(normalised, taus, confidence=question.confidence, seed=question.seed)
    seconds = [number for run in group.runs if math.isfinite(number := _seconds(run))]
    steps = [run.last_step for run in group.runs if math.isfinite(run.last_step)]
    reached = tuple(_reached(group, env, question.score) for env in group.envs) if question.score is not None else ()
    return GroupSummary(
        label=group.label, scores=scores, normalised=normalised, profile=shape, reached=reached, **found,
        seconds=float(np.median(seconds)) if seconds else None, steps=float(np.median(steps)) if steps else None,
    )  # fmt: skip


def _seconds(run: RunHistory) -> float:
    points = run.series("env_steps", "seconds").x
    said = run.result.get("seconds")
    return float(said) if isinstance(said, (int, float)) else float(points[-1]) if len(points) else math.nan


def _reached(group: RunGroup, env: str, score: float) -> Reached:
    """Find when the curves of the training return first reached a score."""
    ends: dict[str, list[float]] = {"steps": [], "seconds": []}
    for run in group.on(env):
        for axis, found in ends.items():
            points = run.series(RETURN, axis)
            there = np.flatnonzero(points.y >= score)
            found.append(float(points.x[there[0]]) if len(there) else math.inf)
    middle = {axis: float(np.median(found)) for axis, found in ends.items()}
    return Reached(
        env=env, runs=len(group.on(env)), reached=sum(map(math.isfinite, ends["steps"])),
        steps=middle["steps"] if math.isfinite(middle["steps"]) else None,
        seconds=middle["seconds"] if math.isfinite(middle["seconds"]) else None,
    )  # fmt: skip


def _pair(a: GroupSummary, b: GroupSummary, question: Question) -> GroupPair | None:
    """Compare two groups where both have runs; None where they share no environment."""
    envs = [env for env in a.normalised if env in b.normalised]
    if not envs:
        return None
    settings = {"confidence": question.confidence, "resamples": question.resamples, "seed": question.seed}
    of = lambda summary: {env: summary.normalised[env] for env in envs}
    if statistics.probability_of_improvement(of(a), of(b), resamples=1).value < 0.5:
        a, b = b, a
    probability = statistics.probability_of_improvement(of(a), of(b), **settings)  # type: ignore[arg-type]
    gap = statistics.difference(of(a), of(b), **settings)  # type: ignore[arg-type]
    fewest = tuple(min(len(summary.normalised[env]) for env in envs) for summary in (a, b))
    orders = math.prod(math.comb(len(a.normalised[env]) + len(b.normalised[env]), len(a.normalised[env])) for env in envs)
    return GroupPair(
        better=a.label, other=b.label, probability=probability, difference=gap, seeds=(fewest[0], fewest[1]),
        by_chance=1 / orders if probability.value == 1.0 else None,
    )  # fmt: skip


def _uneven(summaries: Sequence[GroupSummary], envs: Sequence[str]) -> list[str]:
    """Say where groups lack environments or have unlike numbers of seeds in them."""
    notes = []
    for group in summaries:
        if missing := [env for env in envs if env not in group.scores]:
            notes.append(f"{group.label} has no run on {', '.join(missing)}: its mean, median and IQM are over fewer "
                         "environments, and not to be held against those of the others.")  # fmt: skip
        if len(set(group.seeds.values())) > 1:
            shown = ", ".join(f"{count} on {env}" for env, count in group.seeds.items())
            notes.append(f"{group.label} has {shown} seeds: environments with more count for more in its mean, median and IQM.")
    return notes


def _lengths(summaries: Sequence[GroupSummary], question: Question) -> list[str]:
    """Say where groups were trained for unlike numbers of steps."""
    steps = {group.label: group.steps for group in summaries if group.steps}
    if question.at_steps is not None or len(steps) < 2 or max(steps.values()) <= 1.05 * min(steps.values()):
        return []
    shown = ", ".join(f"{label} {count:,.0f}" for label, count in steps.items())
    where = _round(min(steps.values()))
    return [f"They were trained for unlike numbers of steps ({shown}): --at-steps {where} compares them where all have been."]


def _round(steps: float) -> int:
    """Round down to two digits."""
    power = 10 ** max(int(math.log10(steps)) - 1, 0)
    return int(steps // power * power)
