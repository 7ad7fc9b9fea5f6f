"""A run's directory: found by name, written by one process, never invalid JSON, never a reason to stop training."""

import ast
import fcntl
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rookery
from rookery.run import checkpoint
from rookery.run.directory import Run, RunError
from rookery.run.records import plain, sealed

PACKAGE = Path(rookery.__file__).parent
CONFIG = {"system": "impala", "env": "CartPole-v1", "topology": {"collectors": 2}, "clip": math.inf}


def make(root, name=None, config=CONFIG):
    return Run.create(root, name, config, "rookery train impala CartPole-v1")


@pytest.fixture(autouse=True)
def no_handlers_left():
    yield
    assert not logging.getLogger("rookery").handlers


def test_a_new_run_says_what_it_is_and_how_to_repeat_it(tmp_path):
    with make(tmp_path / "runs") as run:
        assert re.fullmatch(r"impala-CartPole-v1-\d{8}-\d{6}", run.name)
        described = run.config
        assert described["command"] == "rookery train impala CartPole-v1"
        assert described["config"] == {**CONFIG, "clip": "inf"}
        assert described["versions"]["python"] and described["versions"]["jax"]
        assert run.checkpoints.is_dir()


def test_names_never_collide_and_slashes_of_an_environment_are_replaced(tmp_path):
    runs = [make(tmp_path, config={"system": "ppo", "env": "ALE/Pong-v5"}) for _ in range(5)]
    assert len({run.path for run in runs}) == 5
    assert all(run.name.startswith("ppo-ALE-Pong-v5-") and run.path.parent == tmp_path for run in runs)
    for run in runs:
        run.close()


def test_a_name_that_holds_a_run_is_refused_with_the_remedy(tmp_path):
    make(tmp_path, "mine").close()
    with pytest.raises(RunError, match=r"ended before its first checkpoint.* `rm -r .*/mine && rookery train impala CartPole"):
        make(tmp_path, "mine")
    checkpoint.save(checkpoint.path_of(tmp_path / "mine/checkpoints", 5), {}, meta={})
    with pytest.raises(RunError, match=r"rookery resume .*/mine"):
        make(tmp_path, "mine")
    (tmp_path / "empty").mkdir()
    make(tmp_path, "empty").close()


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-rf", "", "x" * 300, "a b", "a\nb"])
def test_a_name_that_is_no_name_is_refused(tmp_path, name):
    with pytest.raises(RunError, match="run name"):
        make(tmp_path / "runs", name)
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--runs"):
        make(tmp_path / "file" / "runs")


def test_a_run_is_found_by_name_path_checkpoint_and_beginning(tmp_path, monkeypatch):
    for name in ("impala-a", "impala-b", "ppo-c"):
        make(tmp_path / "runs", name).close()
    saved = checkpoint.save(checkpoint.path_of(tmp_path / "runs/ppo-c/checkpoints", 5), {}, meta={})
    root = tmp_path / "runs"
    for given in ("ppo-c", "ppo", root / "ppo-c", root / "ppo-c/checkpoints", root / "ppo-c/config.json"):
        run = Run.open(given, root)
        assert run.path == root / "ppo-c" and run.checkpoint is None, given
    for given in (saved, saved / "manifest.json"):
        run = Run.open(given, root)
        assert run.name == "ppo-c" and run.checkpoint == saved
    monkeypatch.chdir(tmp_path)
    assert Run.open("impala-a").shown == Path("runs/impala-a") == Run.open("runs/impala-a/").shown
    found = Run.open("impala-a")
    monkeypatch.chdir(root / "impala-a")
    assert found.path == root / "impala-a" and found.config, "wherever the process goes"
    assert Run.open(".").config["config"]["system"] == "impala"


def test_an_unknown_or_ambiguous_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(RunError, match="there are no runs"):
        Run.open("x", tmp_path)
    for name in ("impala-a", "impala-b", "ppo-c"):
        make(tmp_path, name).close()
    with pytest.raises(RunError, match="nearest: impala-"):
        Run.open("imqala-a", tmp_path)
    with pytest.raises(RunError, match="beginning of 2 runs: impala-a, impala-b"):
        Run.open("impala", tmp_path)
    with pytest.raises(RunError, match="empty"):
        Run.open("", tmp_path)


def test_metrics_are_valid_json_whatever_the_numbers_are(tmp_path):
    with make(tmp_path, "r") as run:
        run.write_metrics({"loss": math.nan, "x": np.float32("inf"), "n": np.int64(3), "b": np.bool_(True)})
        run.write_metrics({"phases": {"env": -math.inf}, "a": np.array([1.0, math.nan]), "path": tmp_path})
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert rows[0] == {"loss": None, "x": None, "n": 3, "b": True}
    assert rows[1]["phases"] == {"env": None} and rows[1]["a"] == [1.0, None] and rows[1]["path"] == str(tmp_path)


def test_half_a_line_of_a_killed_writer_is_cut_off_and_a_rewind_drops_later_rows(tmp_path):
    with make(tmp_path, "r") as run:
        for updates in range(5):
            run.write_metrics({"updates": updates})
        run.write_result("failed", {})
    with open(tmp_path / "r/metrics.jsonl", "a") as file:
        file.write('{"updates": 5, "lo')
    run = Run.open("r", tmp_path)
    run.write_metrics({"updates": 6})
    assert [row["updates"] for row in run.metrics.read()] == [0, 1, 2, 3, 4, 6]
    run.rewind(2)
    run.write_metrics({"updates": 3})
    run.close()
    lines = (tmp_path / "r/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["updates"] for line in lines] == [0, 1, 2, 3]
    assert not (tmp_path / "r/result.json").exists()


def test_the_log_goes_to_a_file_until_the_run_is_closed(tmp_path):
    logger = logging.getLogger("rookery")
    with make(tmp_path, "r") as run:
        run.attach_log()
        logger.getChild("somewhere").info("one line")
        ((_, handler),) = run._handlers  # straight to it: pytest-xdist could not send what pytest captures of this one
        handler.handle(logging.makeLogRecord({"name": "rookery", "levelname": "INFO", "levelno": 20, "msg": "odd \ud800"}))
    logger.info("not for the file")
    text = (tmp_path / "r/log.txt").read_text()
    assert "INFO rookery.somewhere: one" in text and "INFO rookery: odd" in text and "not for" not in text


HOLD = """
import sys
from rookery.run.directory import Run
run = Run.open(sys.argv[1]); run.lock(); print("locked", flush=True); sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_is_gone_however_it_ended(tmp_path):
    make(tmp_path, "r").close()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "r"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PACKAGE.parent
    )
    try:
        assert child.stdout.readline() == b"locked\n"
        run = Run.open("r", tmp_path)
        with pytest.raises(RunError, match=f"written by process {child.pid}") as caught:
            run.lock()
        assert caught.value.exit_code == 2
        assert Run.list(tmp_path)[0].status == "running"
    finally:
        child.kill()
        child.wait()
    run.lock()
    run.lock()
    run.close()


def test_the_list_of_runs_tells_how_each_stands(tmp_path):
    make(tmp_path, "killed").close()
    with make(tmp_path, "done") as run:
        run.write_metrics({"env_steps": 10, "return_mean": 1.0})
        assert run.write_result("done", {"env_steps": 20, "return_mean": math.nan, "command": "x"})
        with pytest.raises(ValueError, match="finished"):
            run.write_result("finished", {})
    make(tmp_path, "damaged").close()
    (tmp_path / "damaged/config.json").write_text("[")
    (tmp_path / "no-run").mkdir()
    live = make(tmp_path, "live")
    for steps in range(3):
        live.write_metrics({"env_steps": steps, "return_mean": 2.0 * steps})
    rows = {row.name: row for row in Run.list(tmp_path)}
    live.close()
    assert {name: row.status for name, row in rows.items()} == {
        "killed": "failed", "done": "done", "damaged": "failed", "live": "running"
    }  # fmt: skip
    assert (rows["live"].system, rows["live"].env, rows["live"].env_steps, rows["live"].return_mean) == (
        "impala", "CartPole-v1", 2, 4.0
    )  # fmt: skip
    assert rows["done"].env_steps == 20 and rows["done"].return_mean is None and rows["damaged"].system == "?"
    assert all(0 <= row.age_seconds < 60 for row in rows.values())
    assert Run.list(tmp_path / "none") == []


def test_the_newest_run_is_listed_first_and_a_clock_that_jumped_does_no_harm(tmp_path):
    for name, created in (("old", "2020-01-01"), ("new", "2024-01-01"), ("future", "2999-01-01"), ("odd", "?")):
        make(tmp_path, name).close()
        path = tmp_path / name / "config.json"
        described = json.loads(path.read_text()) | {"created": f"{created}T00:00:00+00:00"}
        path.write_bytes(sealed({name: value for name, value in described.items() if name != "digest"}))
    rows = Run.list(tmp_path)
    assert [row.name for row in rows] == ["future", "odd", "new", "old"] and rows[0].age_seconds == 0


def test_no_environment_variable_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "sentinel-of-a-secret")
    with make(tmp_path, "r") as run:
        run.attach_log()
        run.write_metrics({"x": 1})
        run.write_result("done", {})
        checkpoint.save(checkpoint.path_of(run.checkpoints, 1), {"x": np.ones(3)}, meta={"m": 1})
        assert all(b"sentinel" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for path in (PACKAGE / "run").glob("*.py"):
        if path.name in ("screen.py", "window.py", "two_columns.py", "machine.py", "doctor.py"):
            assert not re.search(r"\b(write_json|RowFile|write_config|write_metrics|write_result)\b", path.read_text()), path
            continue  # these read how to draw, or hand it on to a child; they write nothing of a run
        read = re.findall(r"\benviron\b.{0,24}|\bgetenv\b", path.read_text())
        if path.name == "startup.py":  # XLA's flags and threads, the cache, the key; a config may hold these alone
            read = [use for use in read if not any(name in use for name in ("XLA_FLAGS", "NPROC", "XDG_CACHE", "XDG_STATE"))]
        if path.name == "supervisor.py":  # the mark by which a driver knows that it has one
            read = [use for use in read if "CHILD" not in use]
        assert not read, path


def test_durations_never_come_from_the_wall_clock_and_jax_is_not_imported_here():
    for name in ("checkpoint", "manifest", "directory", "records", "display", "returns", "tensorboard", "versions"):
        text = (PACKAGE / "run" / f"{name}.py").read_text()
        assert "time.time(" not in text, name
        for node in ast.parse(text).body:
            aliases = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in (*aliases, getattr(node, "module", None) or ""):
                assert module.split(".")[0] not in ("jax", "flax", "optax"), name


def test_values_of_a_config_become_plain():
    assert plain({1: (np.float32(0.5), -math.inf, {"a"}), "n": None}) == {"1": [0.5, "-inf", "{'a'}"], "n": None}


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_costs_rows_and_one_warning_but_never_the_run(small_disk, capsys, caplog):
    run = make(small_disk, "r")
    run.attach_log()
    (small_disk / "fill").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 8192))
    row = {"updates": 1, "text": "x" * 700}
    for _ in range(60):
        run.write_metrics(row)
        logging.getLogger("rookery").info("y" * 700)
    assert 0 < run.metrics.lost_rows < 60
    assert run.write_result("done", {"text": "z" * 9000}) is False
    assert sum("rows are being lost" in record.message for record in caplog.records) == 1
    assert capsys.readouterr().err.count("log.txt cannot be written") == 1
    (small_disk / "fill").unlink()
    run.write_metrics({"updates": 2})
    run.close()
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 61 - run.metrics.lost_rows and rows[-1] == {"updates": 2}
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RunError, match="Read-only"):
        Run.open("r", small_disk).lock()
    Run.open("r", small_disk).write_metrics(row)


def test_looking_at_a_run_does_not_stop_another_process_from_starting_it(tmp_path):
    make(tmp_path, "r").close()
    look = open(tmp_path / "r/lock", "rb")  # noqa: SIM115
    fcntl.flock(look, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, look.close)
    timer.start()
    with Run.open("r", tmp_path) as run:
        run.lock()
    timer.join()
