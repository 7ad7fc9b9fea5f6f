"""Every training episode of a run on file: `episodes.jsonl`, a row each.

    {"episode": 17, "env_steps": 2048, "updates": 1, "seconds": 3.2, "return": 21.0, "length": 21}

Rows are kept in memory for a second at most: CartPole ends thousands of episodes a second, and a call of the system for each
would be what the run spends its time on. Whoever saves flushes first, so a checkpoint never knows of an episode that is not on
disk.

The file has MOST_ROWS rows at most, about 10 MB. Of a run with more episodes it holds every second one, then every fourth, and
so on: number n is there if it is a multiple of `stride_at(last)`, which depends on the number of episodes alone. So a run that
was resumed has the rows of one that was not.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rookery.run.records import RowFile, replace
from rookery.types import Episode

MOST_ROWS = 100_000
HELD_ROWS = 1_000  # in memory, at most
_NUMBER = len('{"episode": ')
_logger = logging.getLogger(__name__)


def stride_at(episode: int) -> int:
    """Return the distance between the rows of a file whose run has had so many episodes: a power of two."""
    stride = 1
    while episode // stride > MOST_ROWS:
        stride *= 2
    return stride


class EpisodeFile:
    """Appends rows and thins them out. Opened at the first write; it never raises for the disk (see RowFile)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = RowFile(path)
        self._lines: list[str] = []
        self._stride = 1

    def add(self, before: int, finished: Sequence[Episode], *, env_steps: int, updates: int, seconds: float) -> None:
        """Add the episodes that ended after `before` others had, and where the run stood when it was told of them."""
        stride = stride_at(before + len(finished))
        if stride > self._stride:
            self._thin(stride)
        where = f'"env_steps": {env_steps}, "updates": {updates}, "seconds": {round(seconds, 3)}'
        first = stride - 1 - before % stride  # of those that are written
        for number, (_, total, length) in enumerate(finished[first::stride]):
            value = repr(float(total)) if math.isfinite(total) else "null"  # three times as fast as json
            episode = before + first + number * stride + 1
            self._lines.append(f'{{"episode": {episode}, {where}, "return": {value}, "length": {length}}}\n')
        if len(self._lines) >= HELD_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory."""
        lines, self._lines = self._lines, []
        if lines:
            self.rows.write("".join(lines).encode(), len(lines))

    def rewind(self, episodes: int) -> None:
        """Drop the rows of later episodes, those in memory too. Raises OSError."""
        self._lines = [line for line in self._lines if _number(line) <= episodes]
        self._stride = stride_at(episodes)
        self._keep(lambda number: number <= episodes)

    def _thin(self, stride: int) -> None:
        """Keep the multiples of `stride`; a disk that fails is tried again when the file has doubled."""
        self.flush()
        self._stride = stride
        try:
            self._keep(lambda number: number % stride == 0)
        except OSError as error:
            _logger.warning("%s: cannot be thinned out: %s", self.path, error.strerror)

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        self.rows.close()
        with contextlib.suppress(FileNotFoundError):
            lines = self.path.read_text(errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and wanted(_number(line))]
            if len(kept) < len(lines):
                replace(self.path, "".join(kept).encode())

    def close(self) -> None:
        self.flush()
        self.rows.close()


def _number(line: str) -> int:
    """Read the number of an episode from its row; a line that is none of ours is the last to be dropped."""
    try:
        return int(line[_NUMBER : line.index(",")])
    except ValueError:
        return 0
