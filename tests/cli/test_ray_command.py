"""`rookery train --runtime ray` with a Ray of its own: guarded, restarted, stopped and cleaned up like any other run."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from rookery_bench import process

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")


def named(pids: list[int], name: bytes) -> list[int]:
    found = []
    for pid in pids:
        try:
            found += [pid] if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name) else []
        except OSError:
            continue
    return found


def steps(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(lines[-1])["env_steps"] if lines else 0


def test_a_run_on_its_own_ray_survives_a_kill_saves_on_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    mark = f"ray-command-{os.getpid()}"
    words = ["train", "impala", "--env", "CartPole-v1", "--runtime", "ray", "--collectors", "2", "--run", "r"]
    words += ["--total-steps", "1000000000", "--runs"]
    command = [sys.executable, "-m", "rookery.cli", *words, str(tmp_path)]
    env = dict(os.environ) | {process.MARK: mark}
    how: Any = dict(env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    program = subprocess.Popen(command, **how)
    try:
        run = tmp_path / "r"
        wait_for(lambda: steps(run) > 0, program=program)
        own = [path for pid in process.tree(program.pid) for path in Path("/tmp").glob(f"rookery-ray-{pid}-*")]
        assert len(own) == 1 and stat.S_IMODE(own[0].stat().st_mode) == 0o700
        assert stat.S_IMODE((own[0] / "token").stat().st_mode) == 0o600
        os.kill(named(process.tree(program.pid), b"ray::WorkerActor")[0], signal.SIGKILL)
        log = run / "log.txt"
        wait_for(lambda: log.exists() and "is gone with" in log.read_text())
        before = steps(run)
        wait_for(lambda: steps(run) > before)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to everyone
        out, _ = program.communicate(timeout=60)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)  # the driver dies with its supervisor
    assert program.returncode == 130 and "rookery resume" in out and "(raylet)" not in out, out
    assert list((run / "checkpoints").iterdir()) and not own[0].exists()
    wait_for(lambda: not process.marked(mark), 10)
