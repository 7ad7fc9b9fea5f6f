"""What a run on Ray does when its Ray is lost, when it is lost itself, and when no Ray is where it is sent (faults 31, 34).

Each Ray is started by the run that the test starts, on this machine. ROOKERY_FAULT_COUNT=10 repeats the kills.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import SMALL, rookery, start
from waiting import wait_for

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
from rookery_bench import process

COUNT = int(os.environ.get("ROOKERY_FAULT_COUNT", "1"))
ON_RAY = ("train", "impala", "--env", "CartPole-v1", "--runtime", "ray", "--groups", "1", *SMALL)
QUICK = {"RAY_worker_niceness": "0"}  # Ray's workers would starve on a machine with other work


@contextmanager
def training(directory: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, str]]]:
    """A run on a Ray of its own that has saved a checkpoint, and all processes of it by what they are."""
    mark = f"ray-losses-{directory.name}"
    program = start(*ON_RAY, "--checkpoint-every", "10", cwd=directory, **QUICK, **{process.MARK: mark})
    try:
        wait_for(lambda: [*(directory / "runs" / "x" / "checkpoints").glob("update-*")], program=program)
        alive = process.marked(mark)
        yield program, {pid: command(pid) for pid in alive}
        wait_for(lambda: not process.marked(mark), seconds=15)  # nothing outlives it
    finally:
        for pid in process.marked(mark):
            os.kill(pid, signal.SIGKILL)
        program.communicate()


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.parametrize("attempt", range(COUNT))
def test_a_lost_raylet_ends_the_run_with_status_7_and_the_command_that_resumes(tmp_path: Path, attempt: int) -> None:
    with training(tmp_path) as (program, processes):
        (raylet,) = (pid for pid, words in processes.items() if words.split(" ")[0].endswith("raylet/raylet"))
        if attempt == 0:
            address = re.search("--gcs-address=([^ ]+)", processes[raylet])
            assert address is not None
            refuses_a_stranger(tmp_path / "other", address.group(1))
        os.kill(raylet, signal.SIGKILL)
        _, err = program.communicate(timeout=60)
        result = json.loads((tmp_path / "runs" / "x" / "result.json").read_text())
        assert program.returncode == 7 and "Traceback" not in err, err
        assert "raylet" in err and "Last good checkpoint" in err and "rookery resume x" in err
        assert result["status"] == "failed" and "ClusterLost" in result["reason"]


def refuses_a_stranger(directory: Path, address: str) -> None:
    """Whoever has another token is told so at once, in words."""
    directory.mkdir()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}
    ended = rookery(*ON_RAY, "--address", address, cwd=directory, **token)
    assert ended.status == 2 and address in ended.err and "does not take our token" in ended.err, ended.err
    times = [(directory / "runs" / "x" / name).stat().st_mtime for name in ("config.json", "result.json")]
    assert times[1] - times[0] < 15


@pytest.mark.parametrize("attempt", range(COUNT))
@pytest.mark.parametrize("victim", ["command", "driver"])
def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path, victim: str, attempt: int) -> None:
    with training(tmp_path) as (program, _):
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        os.kill(program.pid if victim == "command" else int(children[0]), signal.SIGKILL)
    assert not [*Path("/tmp").glob(f"rookery-ray-{children[0]}-*")]


@contextmanager
def listening(*, answers: bool) -> Iterator[str]:
    """An address that nobody accepts connections of, or that says nothing to whoever connects."""
    with socket.socket() as server, socket.socket() as filler:
        server.bind(("127.0.0.1", 0))
        server.listen(8 if answers else 0)
        if not answers:
            filler.connect(server.getsockname())  # its queue is full: what follows is not answered
        yield "{}:{}".format(*server.getsockname())


@pytest.mark.parametrize("kind", ["refuses", "silent", "unanswered"])
def test_an_address_without_a_cluster_is_told_of_within_15_s(tmp_path: Path, kind: str) -> None:
    with listening(answers=kind == "silent") as address:
        there = "127.0.0.1:1" if kind == "refuses" else address
        begin = time.monotonic()
        program = start(*ON_RAY, "--address", there, cwd=tmp_path)
        wait_for(lambda: (tmp_path / "runs" / "x").exists(), program=program)
        begin = time.monotonic()
        _, err = program.communicate(timeout=60)
    assert program.returncode == 7 and there in err and "ray start --head" in err, err
    assert time.monotonic() - begin < 25  # of it 15 s at most to wait, and the end of a process on a busy machine


def test_a_signal_is_answered_while_an_address_is_asked(tmp_path: Path) -> None:
    with listening(answers=True) as address:
        program = start(*ON_RAY, "--address", address, cwd=tmp_path)
        wait_for(lambda: (tmp_path / "runs" / "x").exists(), program=program)
        time.sleep(1)
        program.terminate()
        begin = time.monotonic()
        program.communicate(timeout=60)
    assert time.monotonic() - begin < 20 and program.returncode in (7, 143)
