"""What becomes of a run that a signal meets: it is saved, or left with its last checkpoint when that takes too long."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from signalled import ENDLESS, SECONDS, Program, end_all, steps
from waiting import wait_for

QUICK = ("train", "a2c", "--env", "identity", "--network.hidden", "8", *ENDLESS)
HURRY = "import slow_env; signals.GRACE_SECONDS = 1.5"


@pytest.fixture(autouse=True)
def _nothing_goes_on():
    yield
    end_all()


@pytest.mark.parametrize("env", ["Slow-v0", "Hanging-v0"])
def test_environments_that_do_not_answer_cannot_hold_up_the_end(tmp_path, env):
    words = ("train", "a2c", "--env", env, "--env-processes", "0", "--rollout-length", "16", "--checkpoint-every", "1")
    program = Program(tmp_path, *words, *ENDLESS, start=HURRY)
    checkpoints = tmp_path / "runs/r/checkpoints"
    wait_for(lambda: checkpoints.exists() and [*checkpoints.glob("update-*")], program=program.popen)
    time.sleep(1)
    ended = program.send(signal.SIGTERM)
    assert ended.status == 143 and ended.seconds < 8, ended
    newest = max(path.name for path in checkpoints.glob("update-*"))
    assert ended.err.count("\n") == 1 and newest in ended.err and ended.err.rstrip().endswith("rookery resume r"), ended.err
    result = json.loads((tmp_path / "runs/r/result.json").read_text())
    assert result["status"] == "stopped" and result["reason"] == "SIGTERM, and no time to save"
    assert program.left() == []


def test_a_second_signal_leaves_at_once_but_the_same_one_sent_twice_is_one(tmp_path):
    words = ("train", "a2c", "--env", "Slow-v0", "--env-processes", "0", "--rollout-length", "200", *ENDLESS)
    program = Program(tmp_path, *words, start="import slow_env")
    wait_for(lambda: (tmp_path / "runs/r/metrics.jsonl").exists(), program=program.popen)
    for _ in range(3):  # as `timeout` does: to the child, and to its group
        os.kill(program.popen.pid, signal.SIGTERM)
        time.sleep(0.01)
    time.sleep(1)
    assert program.popen.poll() is None, "what is in flight is waited for"
    ended = program.send(signal.SIGINT)
    assert ended.status == 130 and ended.seconds < 2, ended
    assert "Traceback" not in ended.err and program.left() == []


def test_what_was_ignored_when_the_command_began_stays_ignored(tmp_path):
    program = Program(tmp_path, *QUICK, nohup=True)
    wait_for(program.watches, program=program.popen)
    os.kill(program.popen.pid, signal.SIGHUP)
    wait_for(lambda: steps(tmp_path / "runs/r") > 0, program=program.popen)
    os.kill(program.popen.pid, signal.SIGHUP)
    before = steps(tmp_path / "runs/r")
    wait_for(lambda: steps(tmp_path / "runs/r") > before, program=program.popen)
    ended = program.send(signal.SIGTERM)
    assert ended.status == 143 and "Stopped after" in ended.out, ended


def test_a_terminal_that_closes_is_like_sigterm(tmp_path):
    program = Program(tmp_path, *QUICK)
    wait_for(lambda: steps(tmp_path / "runs/r") > 0, program=program.popen)
    ended = program.send(signal.SIGHUP)
    assert ended.status == 129 and ended.seconds <= SECONDS and program.left() == [], ended
    assert json.loads((tmp_path / "runs/r/result.json").read_text())["reason"] == "SIGHUP"
