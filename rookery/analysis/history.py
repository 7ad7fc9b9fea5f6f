"""What the files of one run tell of how it learned: nothing here writes, and nothing in a file can make it raise.

    metrics.jsonl       a row every second or so
    episodes.jsonl      a row for each training episode, where the run wrote one: {"episode", "env_steps", "updates", "seconds",
                        "return"}; every second one, or fourth, … of a run with very many
    evaluations.jsonl   a row for each evaluation: {"env_steps", "updates", "seconds", "mean"}
    result.json         how it ended

Curves of the return are what `return_mean` is in every run: the mean of the last 100 training episodes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.run.directory import EPISODES, EVALUATIONS, METRICS, RESULT, Run
from rookery.run.records import RowFile, read_json

AXES = {"steps": "env_steps", "seconds": "seconds", "updates": "updates", "episodes": "episodes"}
RETURN, EVAL = "return", "eval"
METRIC_OF = {RETURN: "return_mean", EVAL: "eval_return_mean"}
WINDOW = 100  # training episodes that a return is averaged over, as in every row and result
# Of the options of a run, those that change what is learned or how fast; those of algorithm and topology all do.
TELLING = ("total_steps", "total_updates", "runtime", "learners", "devices", "on_nan")
Row = Mapping[str, Any]


class Series(NamedTuple):
    """Points of one run, x increasing."""

    x: np.ndarray  # [P]
    y: np.ndarray  # [P]


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """One run, as its files tell it."""

    name: str  # as it would be typed
    path: Path
    system: str
    env: str
    seed: int | None
    status: str  # done, failed, stopped or running
    options: dict[str, Any] = field(default_factory=dict)  # flat, those that change what is learned
    result: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        return _rows(self.path / METRICS)

    @functools.cached_property
    def episodes(self) -> list[dict[str, Any]]:
        """Rows of training episodes; none of a file that holds every second one or fewer, whose last 100 are no last 100."""
        rows = _rows(self.path / EPISODES)
        last = number(rows[-1].get("episode")) if rows else math.nan
        return [] if last > 1.5 * len(rows) else rows

    @functools.cached_property
    def damaged(self) -> int:
        """Lines of its files that are no rows."""
        return sum(_lines(self.path / name) - len(_rows(self.path / name)) for name in (METRICS, EVALUATIONS))

    @property
    def metrics(self) -> list[str]:
        """Names of numbers in its rows."""
        names = dict.fromkeys(name for row in self.rows[-3:] for name, value in row.items() if math.isfinite(number(value)))
        return [*names]

    def series(self, y: str = RETURN, x: str = "steps") -> Series:
        """Return the points of a metric: `return`, `eval` or a name in metrics.jsonl. No points where there are none."""
        if y in (RETURN, METRIC_OF[RETURN]) and self.episodes:
            places = _column(self.episodes, "episode" if x == "episodes" else AXES[x])
            return _series(places, trailing(_column(self.episodes, "return")))
        if y in (EVAL, METRIC_OF[EVAL]):
            return self._evaluations(x)
        return _series(_column(self.rows, AXES[x]), _column(self.rows, METRIC_OF.get(y, y)))

    def _evaluations(self, x: str) -> Series:
        if rows := _rows(self.path / EVALUATIONS):
            steps, means = _column(rows, "env_steps"), _column(rows, "mean")
            if x != "episodes":
                return _series(_column(rows, AXES[x]), means)
            known = _series(_column(self.rows, "env_steps"), _column(self.rows, "episodes"))
            return _series(np.interp(steps, *known), means) if len(known.x) else _series([], [])
        found: list[tuple[float, float]] = []  # every row repeats the last evaluation; it was new where the number changed
        for row in [*self.rows, self.result]:
            value, place = number(row.get(METRIC_OF[EVAL])), number(row.get(AXES[x]))
            if math.isfinite(value) and (not found or found[-1][1] != value):
                found.append((place, value))
        return _series([place for place, _ in found], [value for _, value in found])

    @property
    def final_evaluation(self) -> float:
        """The mean return of the policy that stands for the run; NaN where it was never evaluated."""
        value = number(self.result.get(METRIC_OF[EVAL]))
        points = self.series(EVAL)
        return value if math.isfinite(value) or not len(points.y) else float(points.y[-1])

    @property
    def last_step(self) -> float:
        """Environment steps of its last row or result."""
        ends = [number(row.get("env_steps")) for row in (*self.rows[-1:], self.result)]
        return max((end for end in ends if math.isfinite(end)), default=math.nan)


def read(path: Path | str, root: Path | str = "runs") -> RunHistory:
    """Read a run, by path or name. Raises RunError where there is none, or its config is damaged."""
    run = Run.open(path, root)
    config = run.config["config"]
    options = config.get("run")
    options = options if isinstance(options, dict) else {}
    told = {f"env_options.{name}": value for name, value in _flat(config.get("env_options"))}
    told |= {name: value for part in ("algorithm", "topology") for name, value in _flat(config.get(part))}
    told |= {name: options[name] for name in TELLING if name in options}
    seed = options.get("seed")
    return RunHistory(
        name=str(run.shown), path=run.path, system=str(config.get("system", "?")), env=str(config.get("env", "?")),
        seed=seed if isinstance(seed, int) else None, status=run.status, options=told, result=read_json(run.path / RESULT),
    )  # fmt: skip


def trailing(values: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Average each value with the `window` - 1 before it, or with as many as there are; NaN counts for nothing. [n] -> [n]."""
    known = np.isfinite(values)
    totals = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    first = np.maximum(np.arange(len(values)) + 1 - window, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (totals[1:] - totals[first]) / (counts[1:] - counts[first])


def number(value: Any) -> float:
    """Convert what a file holds to a number; NaN where it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    return math.nan


def _series(x: Iterable[float], y: Iterable[float]) -> Series:
    """Leave out what is no number, order by x and keep the last of those at one place."""
    xs, ys = np.asarray([*x], float), np.asarray([*y], float)
    known = np.isfinite(xs) & np.isfinite(ys)
    order = np.argsort(xs[known], kind="stable")
    xs, ys = xs[known][order], ys[known][order]
    last = np.append(np.diff(xs) > 0, True)[: len(xs)]
    return Series(xs[last], ys[last])


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([number(row.get(name)) for row in rows], float)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return list(RowFile(path).read())
    except OSError:
        return []


def _lines(path: Path) -> int:
    """Count whole lines: the last one may be being written."""
    try:
        with open(path, "rb") as file:
            return sum(line.endswith(b"\n") for line in file)
    except OSError:
        return 0


def _flat(part: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(part, Mapping):
        for name, value in part.items():
            if isinstance(value, Mapping):
                yield from _flat(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value
