"""Rates and shares of time, from the cumulative counters that a topology reports."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from rookery.topologies.plan import Plan

PHASES = ("env", "inference", "transfer", "learn")


class Point(NamedTuple):
    seconds: float
    env_steps: int
    updates: int
    spent: dict[str, float]  # cumulative, as in Progress.seconds
    lag_sum: float  # over progress reports
    lag_count: int
    lag_max: int


class Rates(NamedTuple):
    """What happened between two points."""

    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    lag_mean: float = 0.0
    lag_max: int = 0
    learner_idle: float = 0.0  # share of the learner's time
    phases: dict[str, float] = {}  # noqa: RUF012  shares of time: env, inference, transfer, learn, wait; they sum to 1


class Meter:
    """Fed with every Progress; `recent` covers the last seconds, `total` everything since the first update was done.

    Start-up and compilation end with the first update after `updates`, so neither counts them.
    """

    def __init__(self, plan: Plan, *, overlaps: bool, updates: int = 0, window_seconds: float = 5.0) -> None:
        """overlaps: do collectors work while the learner learns?"""
        acting = [node.most for node in plan.nodes if node.hosted and node.envs and node.role != "host"]
        self._collectors = max(acting, default=1)  # one worker acts for all hosts
        self._overlaps, self._updates = overlaps, updates
        self._window = window_seconds
        self._first: Point | None = None
        self._last: Point | None = None
        self._points: deque[Point] = deque()

    def add(self, seconds: float, progress: Any) -> None:
        before = self._last
        if progress.updates == self._updates or (before is not None and seconds <= before.seconds):
            return
        news = before is None or progress.updates > before.updates
        self._last = Point(
            seconds,
            progress.env_steps,
            progress.updates,
            progress.seconds,
            (before.lag_sum if before else 0.0) + (progress.lag_mean if news else 0.0),
            (before.lag_count if before else 0) + news,
            max(before.lag_max if before else 0, progress.lag_max),
        )
        self._first = self._first or self._last
        if not self._points or seconds - self._points[-1].seconds >= 0.2:
            self._points.append(self._last)
            while len(self._points) > 2 and seconds - self._points[1].seconds > self._window:
                self._points.popleft()

    @property
    def started_at(self) -> float | None:
        """Seconds at which the first update was done; None before."""
        return self._first.seconds if self._first else None

    @property
    def recent(self) -> Rates:
        return self._between(self._points[0] if self._points else None, self._last)

    @property
    def total(self) -> Rates:
        return self._between(self._first, self._last)

    def _between(self, a: Point | None, b: Point | None) -> Rates:
        if a is None or b is None or b.seconds <= a.seconds:
            return Rates()
        wall = b.seconds - a.seconds
        spent = {name: b.spent.get(name, 0.0) - a.spent.get(name, 0.0) for name in (*PHASES, "learner_idle")}
        learner = spent["learn"] + spent["learner_idle"]
        return Rates(
            env_steps_per_s=(b.env_steps - a.env_steps) / wall,
            updates_per_s=(b.updates - a.updates) / wall,
            lag_mean=(b.lag_sum - a.lag_sum) / max(1, b.lag_count - a.lag_count),
            lag_max=b.lag_max,
            learner_idle=spent["learner_idle"] / learner if learner > 0 else 0.0,
            phases=self._shares(spent, wall),
        )

    def _shares(self, spent: dict[str, float], wall: float) -> dict[str, float]:
        """Divide the time into phases: of all workers' time where collectors and learner overlap, else of the clock's."""
        n = self._collectors
        total = wall * (n + 1) if self._overlaps else wall
        shares = {name: spent[name] / total / (1 if self._overlaps or name == "learn" else n) for name in PHASES}
        return shares | {"wait": max(0.0, 1.0 - sum(shares.values()))}
