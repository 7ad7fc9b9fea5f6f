"""The command, run inside the test process, in a directory of its own."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from rookery import cli, signals

SMALL = ("--num-envs", "8", "--rollout-length", "8", "--network.hidden", "8", "--eval-episodes", "2")


class Answer(NamedTuple):
    status: int
    out: str
    err: str


class Command:
    """`rookery(...)` as if it were typed in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *words: str) -> Answer:
        capture = pytest.MonkeyPatch()
        try:
            return self._run(words, capture)
        finally:
            capture.undo()
            signals.unwatch()

    def _run(self, words: tuple[str, ...], patch: pytest.MonkeyPatch) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        patch.chdir(self.directory)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with warnings.catch_warnings(), pytest.raises(SystemExit) as left:
            cli.main(list(words))
        return Answer(int(left.value.code or 0), out.getvalue(), err.getvalue())

    @property
    def files(self) -> list[str]:
        """All that was left behind."""
        return sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob("*"))


class Trained(NamedTuple):
    rookery: Command
    run: Path
    answer: Answer
