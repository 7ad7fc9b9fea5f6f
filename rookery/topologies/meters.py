"""Meters: count what the workers of a topology report, and what moves along the edges of its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rookery.envs import Incident
from rookery.topologies.job import Progress, Published
from rookery.topologies.plan import MAIN, Plan
from rookery.types import Episode, PyTree
from rookery.workers.acting.collector import Collected
from rookery.workers.learning.learner import Update

OF_ENVIRONMENTS = ("env_dropped", "env_clipped", "env_recycled")


class Driven(Protocol):
    """What a topology holds while it drives: the newest parameters of each policy, and its workers."""

    @property
    def policies(self) -> Mapping[str, Published]: ...  # the main one first
    def workers(self) -> dict[str, int]: ...
    def inspect(self) -> dict[str, float]: ...  # nothing may be in flight
    def tune(self, values: Mapping[str, float]) -> None: ...


@dataclass
class Meters:
    """Cumulative counters; part of every snapshot."""

    edges: frozenset[str]  # of the plan: nothing else is counted
    env_steps: int = 0
    trained_steps: int = 0
    updates: int = 0  # of the main policy
    episodes: int = 0
    env_failures: int = 0
    env_dropped: int = 0  # episodes cut short for a number that was not finite
    env_clipped: int = 0  # answers whose numbers were made finite
    env_recycled: int = 0  # worker processes that had grown too large
    seconds: dict[str, float] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    finished: list[Episode] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    report: dict[str, float] = field(default_factory=dict)  # of the newest update; of other policies under their names
    health: dict[str, float] = field(default_factory=dict)  # the newest that an update told, which not every one does
    others: dict[str, float] = field(default_factory=dict)  # the reports of other policies than the main one
    lags: list[tuple[float, int]] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)  # what central inference says of its hosts

    def collected(self, rollout: Collected, *, edge: str = "rollouts") -> None:
        """Count a rollout, its episodes and what went wrong in them."""
        self.env_steps += rollout.env_steps
        self.episodes += len(rollout.episodes)
        self.finished += rollout.episodes
        self.count_incidents(rollout.incidents)
        for phase, seconds in rollout.seconds.items():
            self.spend(phase, seconds)
        self.moved(edge)
        if rollout.said is not None:
            self.workers = rollout.said.workers
            for name, count in rollout.said.moved.items():
                self.moved(name, count)

    def count_incidents(self, incidents: Sequence[Incident]) -> None:
        counters = {"dropped": "env_dropped", "clipped": "env_clipped", "recycled": "env_recycled"}
        for one in incidents:
            name = counters.get(one.kind, "env_failures")
            setattr(self, name, getattr(self, name) + one.times)
        self.incidents += [one for one in incidents if one.env_ids]

    def learned(
        self, update: Update, table: Mapping[str, float] | None = None, *, edges: Sequence[str] = (), policy: str = MAIN
    ) -> None:
        """Count an update of a policy. table: metrics of the table; edges: along which its batch and its priorities went."""
        self.trained_steps += update.trained_steps
        self.lags.append((update.lag_mean, update.lag_max))
        self.spend("learn", update.busy_seconds)
        self.spend("learner_idle", update.idle_seconds)
        for edge in edges:
            self.moved(edge)
        if policy != MAIN:
            told = update.report | {"updates": float(update.version)} | dict(table or {})
            self.others |= {f"{policy}/{name}": value for name, value in told.items()}
            self.report = self.report | self.others
            return
        self.updates = update.version
        self.health |= {name: value for name, value in update.report.items() if name.startswith("health/")}
        self.report = update.report | self.health | dict(table or {}) | self.others

    def moved(self, edge: str, count: int = 1) -> None:
        """Count items along an edge. One that the plan does not have is a bug of the topology."""
        if edge not in self.edges:
            raise KeyError(f"{edge!r} is no edge of the plan: {', '.join(sorted(self.edges))}")
        self.items[edge] = self.items.get(edge, 0) + count

    def spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def progress(self, driven: Driven, *, snapshot: Callable[[], PyTree] | None, waiting: str | None = None) -> Progress:
        """Report all of it, and begin anew with what is told once: episodes, incidents, lags."""
        finished, self.finished = self.finished, []
        incidents, self.incidents = self.incidents, []
        lags, self.lags = self.lags, []
        return Progress(
            env_steps=self.env_steps,
            trained_steps=self.trained_steps,
            updates=self.updates,
            episodes=self.episodes,
            finished=finished,
            env_failures=self.env_failures,
            incidents=incidents,
            report=self.report,
            policies=driven.policies,
            lag_mean=sum(mean for mean, _ in lags) / len(lags) if lags else 0.0,
            lag_max=max((peak for _, peak in lags), default=0),
            seconds=dict(self.seconds),
            items=dict(self.items),
            workers=driven.workers() | self.workers | {n: count for n in OF_ENVIRONMENTS if (count := getattr(self, n))},
            snapshot=snapshot,
            waiting=waiting,
            inspect=driven.inspect,
            tune=driven.tune,
        )

    def snapshot(self) -> PyTree:
        names = ("env_steps", "trained_steps", "updates", "episodes", "env_failures", *OF_ENVIRONMENTS)
        finished = np.array(self.finished, np.float64).reshape(-1, 3)  # not told yet: the next Progress does
        return {name: getattr(self, name) for name in names} | {"items": dict(self.items), "finished": finished}

    @staticmethod
    def of(plan: Plan, snapshot: PyTree | None = None) -> Meters:
        """Count along the edges of a plan: from zero, or on from a snapshot of the topology."""
        edges = frozenset(edge.name for edge in plan.edges)
        if snapshot is None:
            return Meters(edges)
        finished = [Episode(int(env), float(total), int(length)) for env, total, length in snapshot["meters"]["finished"]]
        return Meters(edges, **snapshot["meters"] | {"finished": finished, "items": dict(snapshot["meters"]["items"])})
