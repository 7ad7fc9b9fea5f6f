"""Runs that take seconds, the command typed inside the test process, and what a run's directory holds."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery import Trainer, cli, signals

TINY: dict[str, Any] = {
    "num_envs": 4, "eval_episodes": 0, "total_steps": 400, "checkpoint_every": 1000, "network": {"hidden": (8,)},
}  # fmt: skip


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def typed(directory: Path, *words: str) -> Answer:
    """`rookery WORDS` in `directory`; an error that the command would show with its traceback is raised."""
    out, err = io.StringIO(), io.StringIO()
    patch = pytest.MonkeyPatch()
    try:
        patch.chdir(directory)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with warnings.catch_warnings(), pytest.raises(SystemExit) as left:
            warnings.simplefilter("always")
            cli.main(list(words))
    finally:
        patch.undo()
        signals.unwatch()  # else the next SIGINT in this process is the command's, which leaves
    return Answer(int(left.value.code or 0), out.getvalue(), err.getvalue())


def half_trained(root: Path, system: str, *, env: str = "identity", updates: int = 2, **options: Any) -> Path:
    """A run that was stopped, with checkpoints, in the middle of its budget."""
    with Trainer(system, env=env, runs=str(root), run=system, **TINY | options) as trainer:
        while trainer.advance().updates < updates:
            pass
        trainer.save()
        assert trainer.progress.env_steps < trainer.config.run.total_steps
        return trainer.run.path


def contents(run: Path) -> dict[str, bytes]:
    """Every file but the lock, by its path in the run."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}
