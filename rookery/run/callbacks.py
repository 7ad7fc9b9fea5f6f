"""Functions of yours that a run calls: after every step, evaluation and checkpoint, and in the end.

    def patience(event):
        if event.env_steps - best.steps > 50_000:
            return rookery.STOP

    rookery.train("ppo", env="CartPole-v1", eval_every=10, on_evaluation=patience)

Each is given one small value and gives nothing back, or `rookery.STOP`. All are called in the thread that trains, between two
steps of the topology: what they take of the time, training loses. They see the run and do not touch its random numbers, so a
run with callbacks learns what it learns without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from rookery.run.config import ConfigError
from rookery.run.display import Row


class StopRun:
    """What a callback returns to end the run; STOP is the only one."""

    def __repr__(self) -> str:
        return "rookery.STOP"


STOP: Final = StopRun()


@dataclass(frozen=True)
class StepEvent:
    """A step of the topology in which something was collected or learned: at least one update, as a rule."""

    trainer: Any
    progress: Any  # see rookery/topologies/job.py: counters, the newest parameters, the report of the last update

    @property
    def env_steps(self) -> int:
        return int(self.progress.env_steps)

    @property
    def updates(self) -> int:
        return int(self.progress.updates)

    @property
    def episodes(self) -> int:
        return int(self.progress.episodes)

    @property
    def finished(self) -> list[Any]:
        """The episodes that ended in this step: (env_id, total_reward, length) each."""
        return list(self.progress.finished)

    @property
    def report(self) -> dict[str, float]:
        """The numbers of the last update, by the names of docs/metrics.md."""
        return dict(self.progress.report)

    @property
    def return_mean(self) -> float | None:
        """The mean return of the last 100 training episodes; None before the first has ended."""
        mean: float | None = self.trainer.return_mean
        return mean

    @property
    def row(self) -> Row:
        """What the display shows: speed, policy lag, shares of time."""
        row: Row = self.trainer.row()
        return row


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation of the greedy policy."""

    trainer: Any
    env_steps: int
    updates: int
    returns: tuple[float, ...]  # one per episode
    lengths: tuple[int, ...]
    is_best: bool  # of all evaluations of the run

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint that is whole on disk. Those that are written while training goes on are told of afterwards."""

    trainer: Any
    path: Path
    updates: int  # that it holds


@dataclass(frozen=True)
class EndEvent:
    """The run has ended and all of it is on disk."""

    trainer: Any
    result: Any  # rookery.Result


Event = TypeVar("Event")
Callback: TypeAlias = Callable[[Event], StopRun | None]
Some: TypeAlias = Callback[Event] | Sequence[Callback[Event]] | None  # one, several or none
OnStep: TypeAlias = Some[StepEvent]
OnEvaluation: TypeAlias = Some[EvaluationEvent]
OnCheckpoint: TypeAlias = Some[CheckpointEvent]
OnEnd: TypeAlias = Some[EndEvent]


class CallbackError(Exception):
    """A callback raised, or gave back what it may not."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Each as it was given: a function, several, or None."""

    on_step: OnStep = None
    on_evaluation: OnEvaluation = None
    on_checkpoint: OnCheckpoint = None
    on_end: OnEnd = None

    def __post_init__(self) -> None:
        for name in ("on_step", "on_evaluation", "on_checkpoint", "on_end"):
            for function in self.of(name):
                if not callable(function):
                    raise ConfigError(f"{name} must be a function or a list of functions, not {function!r}")

    def of(self, name: str) -> tuple[Callable[[Any], Any], ...]:
        """Return the functions under a name, in the order in which they are called."""
        given = getattr(self, name)
        if given is None:
            return ()
        return tuple(given) if isinstance(given, (list, tuple)) else (given,)

    def call(self, name: str, event: Any) -> str | None:
        """Call all functions under a name; return why the run is to stop, where one of them asked for it."""
        reason = None
        for function in self.of(name):
            who = f"the {name} callback {told(function)}"
            try:
                answer = function(event)
            except Exception as error:
                raise CallbackError(f"{who} raised {type(error).__name__}: {error}.") from error
            if answer is STOP:
                reason = reason or f"stopped by {who}"
            elif answer is not None:
                raise CallbackError(f"{who} returned {answer!r}: return rookery.STOP to end the run, nothing to go on.")
        return reason


def told(function: Any) -> str:
    """Name a function and the place where it is written."""
    inner = getattr(function, "func", function)  # of a partial
    name = getattr(inner, "__qualname__", type(inner).__qualname__).split("<locals>.")[-1]
    code = getattr(inner, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else name
