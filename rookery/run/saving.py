"""Write the checkpoints of a run in the background, one at a time, with back-off while the disk fails.

A checkpoint that cannot be written costs a warning: the one before it stays, training goes on, and another is tried soon,
after 1 s, then 2 s, up to a minute. Only the last one of a run must succeed; it is tried for some seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.run import checkpoint
from rookery.run.checkpoint import Contents, StorageError
from rookery.run.directory import Run
from rookery.run.kept import BestPolicy

HELD_BYTES = 256 << 20  # of a checkpoint that is written while training goes on: one that needs more stops it meanwhile
AGAIN_SECONDS, LONGEST_SECONDS = 1.0, 60.0  # from a failure to the next attempt, doubled each time
LAST_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds between the attempts at the last one
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Milestones:
    """Checkpoints at equal distances over a run of `planned` updates: they are marked as such, and never removed."""

    count: int = 0
    planned: int = 1

    def passed(self, updates: float) -> int:
        """Count those that a run has come to after so many updates; it goes on counting beyond its plan."""
        return int(updates) * self.count // self.planned


class Saver:
    """tell: a line to the user."""

    def __init__(
        self, best: BestPolicy, *, keep: int, tell: Callable[[str], None], milestones: Milestones | None = None
    ) -> None:
        self.last: Path | None = None  # the last one written
        self.written: list[Path] = []  # those since whoever looks took them
        self._best, self._keep, self._tell = best, keep, tell
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._writing_best: Future[None] | None = None
        self._failures = 0  # in a row
        self._again_at = 0.0
        self._milestones = milestones or Milestones()
        self._marked: int | None = None  # milestones that are on disk, or lie before the checkpoint that was resumed

    def is_due(self, period_is_over: bool) -> bool:
        """Return whether to save now: when the period is over or, after a failure, when the back-off is."""
        if not self._failures:
            return period_is_over
        return self._writing is None and time.monotonic() >= self._again_at

    def comes_to_milestone(self, updates: int, *, since: float) -> bool:
        """Return whether there is a milestone between the last save, after `since` updates, and now."""
        if self._marked is None:
            self._marked = self._milestones.passed(since)
        return self._milestones.passed(updates) > self._milestones.passed(since)

    def save(self, run: Run, updates: int, contents: Contents) -> None:
        """Write at once. Raises StorageError; the checkpoints before are intact then."""
        self.settle()
        self.last = self._write(run, updates, contents)
        self._succeeded()

    def save_behind(self, run: Run, updates: int, contents: Contents) -> None:
        """Write while training goes on, if there is memory for a copy of what is new in it, else at once; never raises for
        the disk."""
        self.settle()
        if (held := contents.held(run.checkpoints, HELD_BYTES)) is not None:
            self._writing = self._writer.submit(self._write, run, updates, held)
            return
        try:
            self.save(run, updates, contents)
        except StorageError as error:
            self._failed(error)

    def _write(self, run: Run, updates: int, contents: Contents) -> Path:
        _check_there(run)
        passed = self._milestones.passed(updates)
        if passed > (self._marked or 0):
            contents = contents._replace(meta=contents.meta | {checkpoint.MILESTONE: passed})
        written = checkpoint.write(checkpoint.path_of(run.checkpoints, updates), contents)
        self._marked = max(passed, self._marked or 0)
        checkpoint.prune(run.checkpoints, keep=self._keep)
        return written

    def save_best(self, run: Run) -> None:
        """Write the best policy, in the thread that writes checkpoints: never two at a time in one directory."""
        if self._writing_best is not None and self._writing_best.cancel():  # it still waits for a checkpoint: this one does
            self._writing_best = None
        self._settle_best()
        self._writing_best = self._writer.submit(self._write_best, run)

    def _write_best(self, run: Run) -> None:
        _check_there(run)
        self._best.write(run.checkpoints)

    def poll(self) -> None:
        """Take note of what has been written, or was not, without a wait."""
        if self._writing is not None and self._writing.done():
            self.settle()
        if self._writing_best is not None and self._writing_best.done():
            self._settle_best()

    def settle(self) -> None:
        """Wait for what is being written."""
        self._settle_best()
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                self.last = writing.result()
                self._succeeded()
            except StorageError as error:
                self._failed(error)

    def _settle_best(self) -> None:
        writing, self._writing_best = self._writing_best, None
        if writing is not None:
            try:
                writing.result()
            except StorageError as error:
                _logger.warning("the best policy so far is in memory only: %s", error)
                self._tell(f"the best policy so far is not saved, see log.txt: {error}")

    def _failed(self, error: StorageError) -> None:
        pause = min(AGAIN_SECONDS * 2**self._failures, LONGEST_SECONDS)
        self._failures, self._again_at = self._failures + 1, time.monotonic() + pause
        _logger.warning("%s Training goes on; the next attempt is in %g s", error, pause)
        if self._failures == 1:
            self._tell(f"{error} Training goes on, and it is tried again.")

    def _succeeded(self) -> None:
        if self.last is not None:
            self.written.append(self.last)
        if self._failures:
            _logger.warning("checkpoints can be written again, after %d attempts", self._failures)
            self._tell("checkpoints can be written again")
        self._failures = 0

    def wait(self) -> None:
        """Wait until nothing is being written, however that ended."""
        writing: list[Future[Any]] = [one for one in (self._writing, self._writing_best) if one is not None]
        wait(writing)

    def close(self) -> None:
        self._writer.shutdown()
        try:
            self.settle()
        except Exception:  # the rest must be closed too
            _logger.exception("the last checkpoint was not written")


def insist(attempt: Callable[[], Path], tell: Callable[[str], None]) -> Path:
    """Retry, with pauses, a save that must succeed: a disk may be full for a moment. Raises the last StorageError."""
    for pause in LAST_PAUSES:
        try:
            return attempt()
        except StorageError as error:
            tell(f"{error} The next attempt is in {pause:g} s.")
            time.sleep(pause)
    return attempt()


def _check_there(run: Run) -> None:
    """Refuse to save into a run that somebody has removed: nobody would find it."""
    if not run.is_there:
        raise StorageError(f"{run.shown} is gone, or its config.json is: nothing can be saved there.")
