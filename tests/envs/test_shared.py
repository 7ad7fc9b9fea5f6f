"""Shared arrays and the cores there are: what is asked of the machine is asked before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from bad_envs import Checked, Counter

from rookery.envs.processes import fork_server, shared_memory
from rookery.envs.processes.cores import usable_cores
from rookery.envs.processes.process_pool import ProcessPool
from rookery.trees import tree_leaves

pytestmark = pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")


def described(num_envs=3):
    return shared_memory.describe(Checked.observation_space, Checked.action_space, num_envs)


def test_what_one_mapping_writes_another_reads_and_no_two_arrays_overlap():
    board = described()
    fd = shared_memory.allocate(shared_memory.nbytes(board))
    ours, theirs = shared_memory.attach(fd, board), shared_memory.attach(fd, board)
    for number, leaf in enumerate(tree_leaves(ours)):
        leaf[...] = number % 100
    for number, leaf in enumerate(tree_leaves(theirs)):
        assert (leaf == np.asarray(number % 100).astype(leaf.dtype)).all()
        assert leaf.ctypes.data % 64 == 0
    os.close(fd)


def test_too_little_memory_is_found_before_the_start_with_the_remedy(monkeypatch):
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: 100)
    said = r"need .* MB of shared memory, but only 0.0 MB are.*--env-processes 0"
    with pytest.raises(shared_memory.NoSharedMemory, match=said):
        ProcessPool(Counter, 4, id="big", processes=1)


def test_without_anonymous_memory_a_small_dev_shm_falls_back_to_a_file(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(shared_memory, "_room_in", lambda folder: 64 if folder == shared_memory.SHM else 1 << 30)
    monkeypatch.setattr(shared_memory.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.warns(UserWarning, match=r"/dev/shm has 0.0 MB free.*--shm-size=\d+m"):
        pool = ProcessPool(Counter, 2, id="small", processes=1)
    pool.reset(0)
    pool.send([0, 0])
    assert pool.recv().reward.tolist() == [1, 1] and not list(tmp_path.iterdir())
    pool.close()
    monkeypatch.setattr(shared_memory, "_room_in", lambda folder: 64)
    with pytest.raises(shared_memory.NoSharedMemory, match="neither /dev/shm"), pytest.warns(UserWarning):
        ProcessPool(Counter, 2, id="small", processes=1)


SMALL = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", "/dev/shm"], check=True)
sys.path[:0] = {path!r}
from bad_envs import Checked, whole
from rookery.envs.processes.process_pool import ProcessPool
pool = ProcessPool(Checked, 64, id="Checked", processes=1)
assert whole(pool.reset(0).observation)
pool.close()
print("fine")
"""


def test_a_container_with_a_tiny_dev_shm_is_no_problem():
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/dev/shm"], capture_output=True)
    if probe.returncode:
        pytest.skip("no right to make a mount namespace here")
    answer = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", SMALL.format(path=sys.path)], capture_output=True, text=True
    )
    assert answer.stdout == "fine\n", answer.stderr


V1 = "cpu,cpuacct/job/cpu.cfs_"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("4:cpu,cpuacct:/job\n", {f"{V1}quota_us": "100000", f"{V1}period_us": "100000"}, 1),
        ("4:cpu,cpuacct:/job\n", {f"{V1}quota_us": "-1", f"{V1}period_us": "100000"}, None),
        ("garbage", {}, None),
    ],
)  # fmt: skip
def test_cores_respect_quotas(tmp_path, monkeypatch, group, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cgroup").write_text(group)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cores(proc=tmp_path / "cgroup", mount=tmp_path / "mount") == (cores or 4)


def test_cores_respect_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores() == 1
