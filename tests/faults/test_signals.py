"""Ctrl-C and SIGTERM at any moment, from the first millisecond: status 130 or 143, soon, no traceback, and nothing is left.

Moments are drawn from a seed, a few here. As many as were promised, each of both signals at every command:

    ROOKERY_FAULT_COUNT=30 python -m pytest tests/faults/test_signals.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import time

import pytest
from signalled import CARTPOLE, ENDLESS, SECONDS, Program, end_all
from waiting import wait_for

COUNT = int(os.environ.get("ROOKERY_FAULT_COUNT", "0"))
COMMANDS = {
    "here": CARTPOLE,
    "processes": ("train", "a2c", "--env", "Acrobot-v1", "--env-processes", "2", "--checkpoint-every", "20", *ENDLESS),
    "slow": ("train", "a2c", "--env", "Slow-v0", "--env-processes", "0", "--rollout-length", "200", *ENDLESS),
    "ray": ("train", "impala", "--env", "CartPole-v1", "--runtime", "ray", "--collectors", "2", *ENDLESS),
}
LAST = {"here": 12.0, "processes": 12.0, "slow": 15.0, "ray": 20.0}  # seconds until the last of the moments
FEW, EARLY = {"here": 3, "processes": 1}, 5.0  # in a suite that must be quick
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'rookery[ray]'")


@pytest.fixture(autouse=True)
def _nothing_goes_on():
    yield
    end_all()


def moments(case: str, number: int) -> list[float]:
    """A third of them in the first second, where everything is imported."""
    draw, count = random.Random(f"{case} {number}"), COUNT or FEW.get(case, 0)
    return [draw.uniform(0.001, (LAST[case] if COUNT else EARLY) if i % 3 else 1.0) for i in range(count)]


STRIKES = [
    pytest.param(case, number, after, marks=[RAY] if case == "ray" else [], id=f"{case}-{number.name}-{after:.3f}")
    for case in COMMANDS
    for number in (signal.SIGINT, signal.SIGTERM)
    for after in moments(case, number)
]


@pytest.mark.parametrize("case, number, after", STRIKES)
def test_a_signal_at_any_moment_ends_the_command_soon_and_leaves_nothing(tmp_path, case, number, after):
    program = Program(tmp_path, *COMMANDS[case], start="import slow_env" if case == "slow" else "")
    time.sleep(after)
    ended = program.send(number)
    if ended.begun:
        assert ended.status == 128 + number, ended
        assert "Traceback" not in ended.err and "Error" not in ended.err, ended
    else:  # an interpreter that is still starting ends by itself, with 1 where Ctrl-C meets its imports
        assert ended.status in (128 + number, -number, 1), ended
    assert ended.seconds <= SECONDS, ended
    assert program.left() == [], ended
    result = tmp_path / "runs/r/result.json"
    if result.exists():
        assert json.loads(result.read_text())["status"] == "stopped"


def test_signals_are_watched_before_anything_that_takes_time_is_imported(tmp_path):
    program = Program(tmp_path, *CARTPOLE)
    wait_for(program.has_begun, program=program.popen)
    assert program.watches()
    assert program.send(signal.SIGTERM).status == 143
