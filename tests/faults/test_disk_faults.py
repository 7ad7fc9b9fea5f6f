"""A disk that fails for a while costs a warning, one that fails at the end status 6, and nothing is written elsewhere.

What needs a disk of its own mounts a small tmpfs, which takes root; the rest injects the failure.
"""

import json
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from small_runs import TINY, typed

from rookery import Trainer
from rookery.commands import train
from rookery.run import checkpoint, saving
from rookery.run.checkpoint import StorageError
from rookery.run.directory import Run

SAVING = TINY | {"env": "identity", "checkpoint_every": 1, "total_steps": 10**7, "keep": 50}
WORDS = ("--num-envs", "4", "--network.hidden", "8", "--eval-episodes", "0", "--total-steps", "400", "--checkpoint-every", "2")


class Disk:
    """A disk of its own that is filled and freed."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self) -> None:
        with open(self._filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if (mounted := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield Disk(place)
    subprocess.run(["umount", "-l", str(place)], check=True)


def until(trainer, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        trainer.advance()


def newest(run):
    return checkpoint.newest(run / "checkpoints")[0]


def test_a_disk_that_is_full_for_3_seconds_does_not_end_the_run(disk, caplog):
    with Trainer("a2c", runs=str(disk.path), run="r", **SAVING) as trainer:
        until(trainer, lambda: trainer.last_checkpoint is not None)
        trainer._saver.settle()
        disk.fill()
        full_at, before = time.monotonic(), newest(trainer.run.path)
        until(trainer, lambda: time.monotonic() > full_at + 3)
        assert newest(trainer.run.path) == before, "the one before stays"
        said = [record.getMessage() for record in caplog.records if "not saved: No space left" in record.getMessage()]
        assert 2 <= len(said) <= 3, "after 0, 1 and 3 seconds"
        disk.free()
        until(trainer, lambda: newest(trainer.run.path) != before)
        trainer.stopped_because = "enough"
        result = trainer.finish()
    assert result.status == "done" and "checkpoints can be written again" in caplog.text
    rows = [json.loads(line) for line in (disk.path / "r/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["updates"] == result.metrics["updates"]
    assert typed(disk.path, "eval", "r", "--runs", ".", "--episodes", "1").status == 0


def test_a_disk_that_is_full_when_the_run_ends_is_waited_for(disk, monkeypatch, capsys):
    save, timers = Trainer._save_last, []

    def full(self):
        disk.fill()
        timers.append(threading.Timer(3, disk.free))
        timers[0].start()
        save(self)

    monkeypatch.setattr(Trainer, "_save_last", full)
    with Trainer("a2c", runs=str(disk.path), run="r", **SAVING | {"total_steps": 200}) as trainer:
        assert train.run_to_the_end(trainer, False) == 0
    timers[0].join()
    out = capsys.readouterr().out
    assert "not saved: No space left on device" in out and "Done in" in out
    assert checkpoint.updates_of(newest(disk.path / "r")) == trainer.progress.updates


# ---------------------------------------------------------------------------------------------------- injected failures


@pytest.fixture
def broken(monkeypatch):
    """A list: while it has something in it, no checkpoint can be written."""
    write, failing = checkpoint.write, []

    def maybe(directory, contents):
        if failing:
            raise StorageError(f"{directory}: not saved: {failing[0]}; earlier checkpoints are intact.")
        return write(directory, contents)

    monkeypatch.setattr(checkpoint, "write", maybe)
    monkeypatch.setattr(saving, "LAST_PAUSES", (0.01, 0.01))
    return failing


def test_only_the_last_checkpoint_decides_on_status_6_and_the_one_before_is_named(tmp_path, broken, monkeypatch):
    schedule = Trainer._schedule

    def failing(self, progress):
        schedule(self, progress)
        if progress.updates == 4:
            self._saver.settle()
            broken.append("the disk is on fire")

    monkeypatch.setattr(Trainer, "_schedule", failing)
    answer = typed(tmp_path, "train", "a2c", "--env", "identity", *WORDS, "--rollout-length", "8", "--run", "r")
    last = checkpoint.path_of(Path("runs/r/checkpoints"), 4)
    assert answer.status == 6 and "on fire" in answer.err and "Traceback" not in answer.err, answer
    assert f"Last good checkpoint: {last}. Go on with: rookery resume r" in answer.err
    assert "Training goes on, and it is tried again" in answer.out
    result = json.loads((tmp_path / "runs/r/result.json").read_text())
    assert result["status"] == "failed" and "on fire" in result["reason"]
    broken.clear()
    monkeypatch.setattr(Trainer, "_schedule", schedule)
    assert typed(tmp_path, "resume", "r").status == 0


def test_after_a_failure_the_pauses_grow_and_a_success_ends_them(tmp_path, broken, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    saver, run = saving.Saver(None, keep=3, tell=print), Run.create(tmp_path, "r", {}, "")
    broken.append("full")
    tried = []
    for second in range(200):
        now[0] = float(second)
        if saver.is_due(second == 0):
            tried.append(second)
            saver.save_behind(run, second, checkpoint.Contents.of({}, {}))
            saver.settle()
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    broken.clear()
    saver.save_behind(run, 200, checkpoint.Contents.of({}, {}))
    saver.settle()
    assert saver.last == checkpoint.path_of(run.checkpoints, 200)
    assert not saver.is_due(False) and saver.is_due(True)
    saver.close()
    run.close()


@pytest.mark.parametrize("when", ["in the middle", "at the end"])
def test_a_run_that_vanishes_ends_with_status_6_and_is_not_made_anew(tmp_path, monkeypatch, when):
    monkeypatch.setattr(saving, "LAST_PAUSES", (0.01, 0.01))
    schedule, judged = Trainer._schedule, Trainer._judged

    def removed(self, *args):
        shutil.rmtree(tmp_path / "runs/r", ignore_errors=True)
        return judged(self)

    def vanishing(self, progress):
        if progress.updates == 3:
            shutil.rmtree(tmp_path / "runs/r", ignore_errors=True)
        schedule(self, progress)

    where = {"in the middle": ("_schedule", vanishing), "at the end": ("_judged", removed)}[when]
    monkeypatch.setattr(Trainer, *where)
    answer = typed(tmp_path, "train", "a2c", "--env", "identity", *WORDS, "--run", "r")
    assert answer.status == 6 and "runs/r" in answer.err and "Traceback" not in answer.err, answer
    assert "rookery eval" not in answer.out + answer.err and "rookery resume" not in answer.out + answer.err
    assert not (tmp_path / "runs/r").exists()


def test_a_resume_on_a_full_disk_ends_with_status_6_and_leaves_the_run_as_it_was(disk):
    assert typed(disk.path, "train", "a2c", "--env", "identity", *WORDS, "--run", "r").status == 0
    run = disk.path / "runs/r"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    disk.fill()
    answer = typed(disk.path, "resume", "r", "--total-steps", "800")
    assert answer.status == 6 and "No space left" in answer.err and "Traceback" not in answer.err, answer
    assert before == {path: path.read_bytes() for path in before}
    disk.free()
    assert typed(disk.path, "resume", "r", "--total-steps", "800").status == 0


# ------------------------------------------------------------------------------------------------------------- places


class Wanders(gymnasium.Env):
    """Changes the working directory of the process that it lives in whenever it is made, reset or stepped."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        os.chdir(os.environ["ELSEWHERE"])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        os.chdir(os.environ["ELSEWHERE"])
        return np.zeros(2, np.float32), {}

    def step(self, action):
        os.chdir(os.environ["ELSEWHERE"])
        return np.zeros(2, np.float32), 0.0, self.np_random.random() < 0.1, False, {}


def test_an_environment_that_changes_the_working_directory_moves_nothing(tmp_path, monkeypatch):
    if "Wanders-v0" not in gymnasium.registry:
        gymnasium.register("Wanders-v0", entry_point=Wanders)
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    words = ("--env", "Wanders-v0", "--env-processes", "0", *WORDS)
    answer = typed(home, "train", "a2c", *words, "--run", "r", "--tensorboard")
    assert answer.status == 0 and "rookery eval r\n" in answer.out, answer
    assert list(elsewhere.iterdir()) == []
    assert {"checkpoints", "config.json", "log.txt", "metrics.jsonl", "result.json", "tensorboard"} <= set(
        os.listdir(home / "runs/r")) | {"log.txt"}  # fmt: skip
    assert newest(home / "runs/r") is not None
    assert typed(home, "resume", "r", "--total-steps", "800").status == 0
    assert typed(home, "eval", "r", "--episodes", "1").status == 0
    recorded = typed(home, "record", "r", "--episodes", "1", "--out", "demos")
    assert recorded.status == 0 and (home / "demos").is_dir() and list(elsewhere.iterdir()) == []


def test_a_failing_log_and_failing_metrics_do_not_end_the_run(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    logging.getLogger("rookery").setLevel(logging.INFO)
    with Trainer("a2c", runs=str(tmp_path), run="r", **SAVING | {"total_steps": 200}) as trainer:
        trainer.advance()
        monkeypatch.setattr(os, "write", refuse)
        for _ in trainer:
            logging.getLogger("rookery.test").warning("x" * 10)
            trainer._log(trainer.seconds)
        monkeypatch.undo()
        assert trainer.finish().status == "done" and trainer.run.metrics.lost_rows > 0
