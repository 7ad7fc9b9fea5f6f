"""A command to type, and a run that was trained by typing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SMALL, Command, Trained


@pytest.fixture
def rookery(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One small run that many tests look at; none may change it."""
    rookery = Command(tmp_path_factory.mktemp("trained"))
    options = (*SMALL, "--total-steps", "640", "--seed", "3", "--run", "first", "--checkpoint-every", "4")
    options += ("--tensorboard", "--json")
    answer = rookery("train", "a2c", "--env", "identity", "--env-options", "symbols=3", *options)
    return Trained(rookery, rookery.directory / "runs" / "first", answer)
