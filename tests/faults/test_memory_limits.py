"""Memory: what does not fit is refused before it is made, a checkpoint holds what is stored, a leak is seen (faults 28, 29)."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import SMALL, rookery
from looping_envs import Leaking

from rookery import envs
from rookery.data import memory
from rookery.envs import Restarts
from rookery.envs.processes import fork_server, supervisor
from rookery.envs.processes.memory import sizes_mb

HOST = 8 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A machine of 8 GB with these control groups."""
    for name, text in {"proc/meminfo": f"MemAvailable: {HOST >> 10} kB\n", "proc/self/cgroup": cgroup, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


JOB = "memory/docker/abc/job"
V1, V2 = "9:name=systemd:/\n4:cpu,memory:/docker/abc/job\n", "0::/user.slice/job.scope\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        (V1, {f"{JOB}/memory.limit_in_bytes": "1000", f"{JOB}/memory.usage_in_bytes": "400"}, 600),
        (V1, {"memory/docker/memory.limit_in_bytes": "900", "memory/docker/memory.usage_in_bytes": "400"}, 500),
        (V1, {"memory/memory.limit_in_bytes": "800", "memory/memory.usage_in_bytes": "100"}, 700),
        (V2, {"user.slice/job.scope/memory.max": "1000", "user.slice/job.scope/memory.current": "300"}, 700),
        (V2, {"user.slice/memory.max": "1000", "user.slice/memory.current": "100", "memory.max": "max"}, 900),
        (V2, {"memory.max": "500", "memory.current": "100", "memory.stat": "anon 3\ninactive_file 50\n"}, 450),
        (V1, {"memory/docker/memory.limit_in_bytes": str(2**63 - 4096), "memory/docker/memory.usage_in_bytes": "1"}, HOST),
        ("nonsense\n", {}, HOST),
    ],
)
def test_the_tightest_group_around_a_process_decides(tmp_path: Path, cgroup: str, files: dict[str, str], left: int) -> None:
    root = machine(tmp_path, cgroup, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert memory.available_bytes(root) == left


def test_a_replay_beyond_the_limit_of_its_group_is_refused_before_it_is_made(tmp_path: Path) -> None:
    group = Path(f"/sys/fs/cgroup/memory/rookery-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups of version 1 cannot be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(1200 << 20))
        (group / "memory.swappiness").write_text("0")
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid()))"
        ended = rookery(
            "train", "dqn", "--env", "CartPole-v1", *SMALL, "--replay.capacity", "40000000", cwd=tmp_path, before=join
        )
        assert ended.status == 2 and "a replay of 40,000,000 steps needs" in ended.err and "--replay.capacity" in ended.err
        assert not (tmp_path / "runs").exists()
    finally:
        with suppress(OSError):
            group.rmdir()


def test_a_checkpoint_of_a_nearly_empty_table_is_small(tmp_path: Path) -> None:
    words = ("train", "dqn", "--env", "CartPole-v1", *SMALL, "--replay.capacity", "4000000", "--total-steps", "64")
    ended = rookery(*words, "--replay.min-size", "32", cwd=tmp_path)
    assert ended.status == 0, ended.err
    for checkpoint in (tmp_path / "runs" / "x" / "checkpoints").glob("update-*"):
        assert sum(file.stat().st_size for file in checkpoint.rglob("*")) < 2 << 20


@pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")
def test_a_worker_that_leaks_is_seen_and_replaced_at_the_end_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "WEIGH_SECONDS", 0.0)
    pool = envs.make(partial(Leaking, 2.0), 1, processes=1, max_mb=200.0)
    restarts, seen = Restarts(pool, allowed=0), []
    restarts.reset(0)
    try:
        before = sizes_mb()
        while len({pid for pid, _, _ in seen}) < 3:
            pool.send(np.zeros(1, int))
            step = restarts.recv()
            seen.append((int(step.observation[0, 0]), int(step.observation[0, 1]), bool(step.first[0])))
            assert len(seen) < 20_000
        grown = sizes_mb()
    finally:
        pool.close()
    recycled = restarts.take()
    assert {incident.kind for incident in recycled} == {"recycled"} and "--env-max-mb 200" in recycled[0].message
    for (old, step, _), (new, _, first) in pairwise(seen):
        assert old == new or (step in (0, 10) and first), "only between episodes"
    episodes = pool.take_episodes()
    assert {episode.length for episode in episodes} == {10} and {episode.total_reward for episode in episodes} == {10.0}
    assert before["rss_mb"] > before["rss_mb/driver"] and grown["rss_mb"] == pytest.approx(sum(
        size for name, size in grown.items() if name != "rss_mb"
    ))  # fmt: skip


@pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")
def test_a_run_whose_environments_leak_stays_small_and_counts_what_it_replaced(tmp_path: Path) -> None:
    options = ("--env-processes", "1", "--env-max-mb", "150", "--env-options", "megabytes=1.0", "--total-steps", "3000")
    ended = rookery("train", "a2c", "--env", "Leaking-v0", *options, *SMALL, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "x" / "metrics.jsonl").read_text().splitlines()]
    assert ended.status == 0 and rows[-1]["env_recycled"] >= 2 and rows[-1]["env_failures"] == 0, ended.err
    workers = [size for row in rows for name, size in row.items() if name.startswith("rss_mb/") and name != "rss_mb/driver"]
    assert workers and max(workers) < 3000
