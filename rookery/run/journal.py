"""What a run tells while it goes on: rows, episodes and evaluations on file, boards, and a display.

Nothing of it can end the run. What is told before the run's directory may be written to (a run that is to be resumed stays as
it was until its first step has succeeded) is shown, and held back where it would be lost.
"""

from __future__ import annotations

import hashlib
import logging
import numbers
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rookery.envs import Incident
from rookery.envs.processes.memory import sizes_mb
from rookery.run.boards import Boards, grouped, open_boards
from rookery.run.config import Config, ConfigError
from rookery.run.directory import Run
from rookery.run.display import Display, Header, QuietDisplay, Row, open_display
from rookery.run.notebook import NotebookDisplay, in_notebook
from rookery.run.records import plain
from rookery.types import Episode

ROW_SECONDS = 1.0  # between writes of episodes, news for the display and, unless --log-every says so, rows of metrics.jsonl
GROUPS = (  # Rookery's own
    "rollout", "time", "train", "loss", "eval", "health", "replay", "refined", "system", "rss_mb", "return_mean",
    "eval_return_mean",
)  # fmt: skip
UNSAID = 10  # lines
LEFT_OUT = ("phases", "report", "starting", "waiting")  # of a Row: not numbers, or spread out below
_logger = logging.getLogger(__name__)


class Journal:
    """Told by a Trainer how the run stands; decides what of it is due where."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._every = config.run.log_every
        self.display: Display = QuietDisplay()
        self._unsaid: deque[str] = deque(maxlen=UNSAID)  # while nothing was drawn
        self.boards = Boards(self.say)
        self._run: Run | None = None  # once it may be written to
        self._early: list[tuple[Any, ...]] = []  # episodes that were told before
        self._mine: dict[str, float] = {}  # of the user's
        self._told_at = 0.0  # when the display was told last
        self._steps = 0  # at the last look whether a row is due
        self._sizes: tuple[float, dict[str, float]] | None = None

    def open(self, run: Run) -> None:
        """Write to that run from now on, and open the boards of its options."""
        if self._run is not None:
            return
        self._run = run
        config = {name: plain(part) for name, part in self._config.to_dict().items() if name != "machine"}
        open_boards(self.boards, self._config.run, path=run.path, run_id=run_id(run), config=config)
        early, self._early = self._early, []
        for before, finished, where in early:
            run.episodes.add(before, finished, **where)

    def draw(self, run: Run, num_params: int, *, wanted: bool | None) -> None:
        """Draw from now on: in place in a terminal or a notebook, else as lines. wanted: False: nothing; None: in place or
        not at all."""
        name, env = self._config.system, self._config.env_name
        header = Header(name=run.name, system=name, env=env, path=run.shown, num_params=num_params)
        if wanted is None and not in_notebook() and not in_terminal():
            wanted = False
        if wanted is not False and in_notebook():
            self.display = NotebookDisplay(header)
        else:
            self.display = open_display(header, json=wanted is False)
        while self.draws and self._unsaid:
            self.say(self._unsaid.popleft())

    @property
    def draws(self) -> bool:
        return not isinstance(self.display, QuietDisplay)

    def say(self, text: str) -> None:
        """Show a line of its own in the display, where there is one; else in the one that comes."""
        if self.draws:
            self.display.message(text)
        else:
            self._unsaid.append(text)

    def warn(self, text: str) -> None:
        """Show a line, and write it to the run's log."""
        _logger.warning("%s", text)
        self.say(text)

    def incident(self, incident: Incident) -> None:
        """Show the first line of what happened to an environment, and write all of it to the run's log."""
        many = f"{len(incident.env_ids)} environments were" if len(incident.env_ids) > 1 else "it was"
        _logger.warning("%s rebuilt (%s): %s", many, incident.kind, incident.message)
        self.say(f"{incident.message.splitlines()[0]}; {many} rebuilt, see log.txt")

    # ------------------------------------------------------------------------------------------------ what is due

    def begin_at(self, env_steps: int) -> None:
        """Count the steps between rows from here, as a run does that was not interrupted."""
        self._steps = env_steps

    def row_is_due(self, now: float, env_steps: int) -> bool:
        """Say whether to tell a row of the metrics: every so many steps, at the first progress beyond each, or every second."""
        before, self._steps = self._steps, env_steps
        if self._every is None:
            return self.display_is_due(now)
        return env_steps // self._every > before // self._every

    def display_is_due(self, now: float) -> bool:
        return now - self._told_at >= ROW_SECONDS

    # ------------------------------------------------------------------------------------------------ what is told

    def log(self, values: Mapping[str, Any]) -> None:
        """Take numbers of the user's: they are in the next row and in all after it, until they are told anew."""
        checked = {name: _number(name, value) for name, value in values.items()}
        self._mine |= checked

    def row(self, row: Row, counts: Mapping[str, Any], workers: Mapping[str, Any]) -> None:
        """Write a row of the metrics to file and boards. counts, workers: what else is known of environments and workers."""
        values: dict[str, Any] = {name: getattr(row, name) for name in row.__dataclass_fields__ if name not in LEFT_OUT}
        values |= {f"time/{name}": share for name, share in row.phases.items()} | row.report
        values |= self._memory(row.seconds) | dict(counts) | dict(workers) | self._mine
        if self._run is not None:
            self._run.write_metrics(values)
        if self.boards:
            self.boards.write(grouped(values, workers), row.env_steps)

    def show(self, row: Row) -> None:
        """Draw a row."""
        self._told_at = row.seconds
        self.display.update(row)
        if self._run is not None:
            self._run.episodes.flush()

    def episodes(self, before: int, finished: Sequence[Episode], *, env_steps: int, updates: int, seconds: float) -> None:
        """Write the episodes that ended after `before` others had."""
        if not finished:
            return
        where = {"env_steps": env_steps, "updates": updates, "seconds": seconds}
        if self._run is None:
            self._early.append((before, list(finished), where))
        else:
            self._run.episodes.add(before, finished, env_steps=env_steps, updates=updates, seconds=seconds)

    def evaluation(
        self, returns: Sequence[float], lengths: Sequence[int], *, env_steps: int, updates: int, seconds: float
    ) -> None:
        """Write an evaluation of the main policy."""
        spread = {"mean": np.mean(returns), "std": np.std(returns), "min": np.min(returns), "max": np.max(returns)}
        if self._run is not None:
            where = {"env_steps": env_steps, "updates": updates, "seconds": round(seconds, 3)}
            self._run.evaluations.append(where | spread | {"returns": list(returns), "lengths": list(lengths)})
        if self.boards:
            shown = {f"eval/return_{name}": float(value) for name, value in spread.items()}
            self.boards.write(shown | {"eval/length_mean": float(np.mean(lengths))}, env_steps)

    def flush(self) -> None:
        """Put on disk what is held in memory: a checkpoint that is written now must not be ahead of the rows."""
        if self._run is not None:
            self._run.episodes.flush()

    def close(self) -> None:
        """Give the display and the boards back; the run's files are closed with the run."""
        self.display.close()
        self.boards.close()

    def _memory(self, now: float) -> dict[str, float]:
        """Measure the processes, once a second at most: it reads a file of each."""
        if self._sizes is None or now - self._sizes[0] >= ROW_SECONDS:
            self._sizes = (now, sizes_mb())
        return self._sizes[1]


def in_terminal() -> bool:
    """Say whether standard output is a terminal in which a panel can be drawn."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    return console.is_terminal and not console.is_dumb_terminal


def run_id(run: Run) -> str:
    """Return what a board knows a run by, the same when it is resumed: of its name and of when it was created."""
    return hashlib.sha256(f"{run.name} {run.config['created']}".encode()).hexdigest()[:12]


def _number(name: Any, value: Any) -> float:
    """Check a number of the user's, and its name."""
    group, slash, rest = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not (group and slash and rest):
        raise ConfigError(f"log: the name {name!r} needs a group of yours before a slash, as in 'my/{rest or name}'")
    if group in GROUPS:
        raise ConfigError(f"log: {name!r}: the group {group!r} is Rookery's own; choose another, as in 'my/{rest}'")
    if isinstance(value, numbers.Real) or (hasattr(value, "item") and getattr(value, "size", 0) == 1):
        return float(value)
    raise ConfigError(f"log: {name!r} is {value!r}, which is no number")
