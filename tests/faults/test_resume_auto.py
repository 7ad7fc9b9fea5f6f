"""`rookery train … --resume auto` in a loop of kills ends with the whole run, wherever each kill fell.

What a kill leaves is what lies on the disk at that moment, so most of them are copies of a run's directory while it is
trained. Real kills at random moments, as many as you like:

    ROOKERY_FAULT_COUNT=20 python -m pytest tests/faults/test_resume_auto.py
"""

import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from commands import start
from small_runs import typed

from rookery.run import checkpoint
from rookery.run.directory import Run
from rookery.run.trainer import Trainer

COUNT = int(os.environ.get("ROOKERY_FAULT_COUNT", "1"))
OPTIONS = ("--num-envs", "4", "--rollout-length", "8", "--network.hidden", "4", "--eval-episodes", "0")
BUDGET = ("--total-updates", "30", "--checkpoint-every", "6", "--keep", "2")
COMMAND = ("train", "a2c", "--env", "identity", *OPTIONS, *BUDGET, "--run", "job1", "--resume", "auto")
COUNTS = ("status", "env_steps", "updates", "episodes", "return_mean")


def told(run):
    result = json.loads((run / "result.json").read_text())
    return {name: result[name] for name in COUNTS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody killed, with copies of its directory as kills would have left it: name -> directory of all runs."""
    root, copies = tmp_path_factory.mktemp("whole"), {}

    def copy(name):
        copies[name] = root / name
        shutil.copytree(root / "runs", root / name / "runs")

    patch = pytest.MonkeyPatch()
    advance, write_result = Trainer.advance, Run.write_result

    def watched(trainer):
        progress = advance(trainer)
        trainer._saver.wait()
        if progress.updates in (3, 8, 20):
            copy(f"after {progress.updates} updates")
        return progress

    def ended(run, *words):
        copy("before the result")
        return write_result(run, *words)

    patch.setattr(Trainer, "advance", watched)
    patch.setattr(Run, "write_result", ended)
    try:
        assert typed(root, *COMMAND).status == 0
    finally:
        patch.undo()
    return root, copies


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


MOMENTS = ["after 3 updates", "after 8 updates", "after 20 updates", "before the result"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(whole, tmp_path, moment):
    root, copies = whole
    shutil.copytree(copies[moment] / "runs", tmp_path / "runs")
    answer = typed(tmp_path, *COMMAND)
    assert answer.status == 0, answer
    assert told(tmp_path / "runs" / "job1") == told(root / "runs" / "job1")
    mine, theirs = (checkpoint.load(checkpoint.path_of(at / "runs/job1/checkpoints", 30))[0] for at in (tmp_path, root))
    assert same(mine["topology"]["policies"], theirs["topology"]["policies"]), "bit for bit"
    rows = [json.loads(line) for line in (tmp_path / "runs" / "job1" / "metrics.jsonl").read_text().splitlines()]
    updates = [row["updates"] for row in rows]
    assert updates == sorted(updates), "no row twice"


def test_a_run_that_is_done_says_so_with_its_result_and_trains_nothing(whole, monkeypatch):
    root, _ = whole
    before = (root / "runs" / "job1" / "result.json").read_bytes()
    monkeypatch.setattr(Trainer, "from_config", None)
    answer = typed(root, *COMMAND)
    assert answer.status == 0 and answer.out.startswith("runs/job1 is done: made 30 updates\n")
    assert json.loads(typed(root, *COMMAND, "--json").out)["updates"] == 30
    assert (root / "runs" / "job1" / "result.json").read_bytes() == before
    nameless = [word for word in COMMAND if word not in ("--run", "job1")]
    assert typed(root, *nameless).out.startswith("runs/job1 is done"), "found by its options"


def test_another_budget_goes_on_and_a_form_that_does_not_fit_is_refused(whole, tmp_path):
    shutil.copytree(whole[0] / "runs", tmp_path / "runs")
    more = [word if word != "30" else "33" for word in COMMAND]
    assert typed(tmp_path, *more).status == 0 and told(tmp_path / "runs" / "job1")["updates"] == 33
    answer = typed(tmp_path, *more, "--num-envs", "8")
    assert answer.status == 2 and "is done, and was trained without --num-envs 8 (the run's: 4)" in answer.err, answer
    assert told(tmp_path / "runs" / "job1")["updates"] == 33


def test_a_run_that_is_being_trained_is_refused(whole, tmp_path):
    shutil.copytree(whole[1]["after 8 updates"] / "runs", tmp_path / "runs")
    with Run.open(tmp_path / "runs" / "job1") as run:
        run.lock()
        answer = typed(tmp_path, *COMMAND)
    assert answer.status == 2 and "is being written by process" in answer.err


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_loop_of_real_kills_ends_with_the_whole_run(whole, tmp_path, seed):
    draw, status, kills = random.Random(seed), None, 0
    while status != 0:
        program = start(*COMMAND, cwd=tmp_path)
        deadline, target = time.monotonic() + 120, draw.choice((0, 6, 12))
        while kills <= COUNT and program.poll() is None and time.monotonic() < deadline:
            listed = checkpoint.listed(tmp_path / "runs" / "job1" / "checkpoints")
            if target == 0 or (listed and checkpoint.updates_of(listed[0]) >= target):
                time.sleep(draw.uniform(0, 0.2 if target else 3.0))
                program.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.02)
        out, err = program.communicate(timeout=120)
        status = program.returncode
        assert status in (0, -signal.SIGKILL), (status, out, err)
    assert kills and told(tmp_path / "runs" / "job1") == told(whole[0] / "runs" / "job1")
