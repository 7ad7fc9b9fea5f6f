"""Boards show a run's numbers elsewhere: TensorBoard, and Weights & Biases. What counts is in the run's files.

A board has two methods, `write` and `close`. Whatever it raises is told of once, and the run goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

_logger = logging.getLogger(__name__)
ROLLOUT = ("return_mean", "episodes")
TIME = ("seconds", "env_steps_per_s", "updates_per_s", "learner_idle", "eta_seconds")
PROGRESS = ("env_steps", "trained_steps", "updates")
LEFT_OUT = ("total_steps", "eval_return_mean")  # it never changes; it is written where it is evaluated, as eval/return_mean
SYSTEM = ("rss_mb", "env_failures")


class MissingExtra(Exception):
    """Something that was asked for needs a package that is not installed."""

    exit_code = 2


class MetricsBoard(Protocol):
    """Where numbers are shown. Both may raise; both are called in the thread that trains, about once a second."""

    def write(self, values: Mapping[str, float | None], step: int) -> None:
        """Show numbers at so many environment steps. Names are `group/name`; None is no number."""
        ...

    def close(self) -> None: ...


class Boards:
    """Those of a run, by name; one that raises is dropped."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._boards: dict[str, MetricsBoard] = {}
        self.say = say

    def add(self, name: str, make: Callable[[], MetricsBoard]) -> None:
        """Add the board that `make` gives; MissingExtra is the user's to mend, anything else is told of."""
        try:
            self._boards[name] = make()
        except MissingExtra:
            raise
        except Exception as error:
            self._lost(name, error)

    def write(self, values: Mapping[str, float | None], step: int) -> None:
        """Write to all; `values` have the names of boards (see `grouped`)."""
        for name, board in list(self._boards.items()):
            try:
                board.write(values, step)
            except Exception as error:
                self._boards.pop(name)
                self._lost(name, error)

    def close(self) -> None:
        boards, self._boards = self._boards, {}
        for name, board in boards.items():
            try:
                board.close()
            except Exception as error:
                self._lost(name, error)

    def __bool__(self) -> bool:
        return bool(self._boards)

    def _lost(self, name: str, error: Exception) -> None:
        text = f"{name} shows nothing more of this run: {type(error).__name__}: {error}"
        _logger.warning("%s; training goes on", text)
        self.say(text)


def grouped(row: Mapping[str, Any], workers: Mapping[str, Any]) -> dict[str, float | None]:
    """Give the numbers of a row of metrics.jsonl the names of boards, `group/name`, and leave out what is none.

    Names with a group keep it; what is left of the algorithm's report is in `train`. workers: which numbers count workers.
    """
    groups = {**dict.fromkeys(ROLLOUT, "rollout"), **dict.fromkeys((*TIME, *PROGRESS), "time")}
    groups |= dict.fromkeys((*SYSTEM, *workers), "system")
    found: dict[str, float | None] = {}
    for name, value in row.items():
        if name in LEFT_OUT or not isinstance(value, (int, float)):
            continue
        if name.startswith("rss_mb/"):  # of each process: they come and go
            continue
        if name.startswith("return_mean/"):  # of each seed
            name = f"rollout/{name.replace('/', '_')}"
        found[name if "/" in name else f"{groups.get(name, 'train')}/{name}"] = value
    return found


def require(*, tensorboard: bool, wandb: bool) -> None:
    """Raise MissingExtra where a board was asked for whose package is not installed; imports nothing."""
    for option, package, wanted in (("tensorboard", "tensorboardX", tensorboard), ("wandb", "wandb", wandb)):
        if wanted and find_spec(package) is None:
            raise MissingExtra(missing(option, package))


def missing(option: str, package: str) -> str:
    return f"--{option} needs {package}: pip install 'rookery[{option}]'"


def open_boards(boards: Boards, options: Any, *, path: Path, run_id: str, config: Mapping[str, Any]) -> None:
    """Open the boards that a run's options ask for, in its directory."""
    if options.tensorboard:
        from rookery.run.tensorboard import TensorBoard

        boards.add("TensorBoard", lambda: TensorBoard(path / "tensorboard", config=config))
    if options.wandb:
        from rookery.run.wandb_board import WandbBoard

        boards.add("W&B", lambda: WandbBoard(path, project=options.wandb_project, run_id=run_id, config=config, say=boards.say))
