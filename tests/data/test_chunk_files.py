"""Sealed chunks are written once, checkpoints share them, a flipped bit is found, and a kill leaves the checkpoint before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.data import arrays
from rookery.data.config import ReplayConfig, TableSpec
from rookery.data.replay import Replay
from rookery.run import checkpoint
from rookery.run.checkpoint import CheckpointError
from rookery.trees import ArraySpec, tree_map
from rookery.types import Rollout

T, WIDTH, PIXELS = 8, 2, 500
CHUNK = "chunk-*.bin"


def specs() -> Rollout:
    at = lambda *shape, dtype=np.float32: ArraySpec(shape, np.dtype(dtype))
    return Rollout(
        observation=at(T + 1, WIDTH, PIXELS, dtype=np.uint8), action=at(T, WIDTH, dtype=np.int32), reward=at(T, WIDTH),
        discount=at(T, WIDTH), valid=at(T, WIDTH), extras={}, memory=(), version=at(T, WIDTH, dtype=np.int32),
        stream=at(WIDTH, dtype=np.int64), step=at(WIDTH, dtype=np.int64),
    )  # fmt: skip


class Subject:
    """A table that is too large to be copied, and what is written to it."""

    def __init__(self, capacity: int = 1000, **options: Any) -> None:
        config = ReplayConfig(capacity=capacity, min_size=10, save_megabytes=0, selector="prioritized", **options)
        table = TableSpec(config, batch_size=16, n_step=3)
        self.replay = Replay(specs(), table, discount=0.9, collectors=1, writers=1, slots=1, seed=0)
        self.step, self._random = 0, np.random.default_rng(0)

    def write(self, rollouts: int) -> None:
        for _ in range(rollouts):
            rollout = arrays.allocate(specs())
            rollout.observation[:] = self._random.integers(0, 255, rollout.observation.shape)
            rollout.reward[:] = self._random.random(rollout.reward.shape)
            rollout.valid[:] = rollout.discount[:] = 1.0
            rollout.stream[:], rollout.step[:] = np.arange(WIDTH) << 32, self.step
            self.replay.insert(rollout)
            self.step += T

    def save(self, directory: Path, number: int) -> Path:
        return checkpoint.save(checkpoint.path_of(directory, number), {"queue": self.replay.snapshot()}, meta={})


def files(path: Path) -> dict[str, os.stat_result]:
    return {file.name: file.stat() for file in path.glob(CHUNK)}


def assert_same_table(one: Replay, two: Replay) -> None:
    wanted, found = one.store.snapshot(), two.store.snapshot()
    tree_map(np.testing.assert_array_equal, wanted["columns"], found["columns"])
    for _ in range(5):
        a, b = one.take(), two.take()
        assert a is not None and b is not None
        tree_map(np.testing.assert_array_equal, a.batch.rollout, b.batch.rollout)
        one.release(a.slot, np.arange(16.0)), two.release(b.slot, np.arange(16.0))


def test_a_large_table_comes_back_from_its_files_bit_for_bit_and_goes_on_alike(tmp_path: Path) -> None:
    subject, again = Subject(), Subject()
    subject.write(30)
    path = subject.save(tmp_path, 1)
    stored = sum(stat.st_size for stat in files(path).values())
    assert stored > 0.4 * subject.replay.store.used_bytes
    tree, _ = checkpoint.load(path)
    again.replay.restore(tree["queue"])
    assert_same_table(subject.replay, again.replay)
    again.step, again._random = subject.step, np.random.default_rng(7)
    subject._random = np.random.default_rng(7)
    subject.write(150), again.write(150)  # everything that was restored is overwritten meanwhile
    assert_same_table(subject.replay, again.replay)


def test_the_second_checkpoint_writes_only_what_is_new_and_links_the_rest(tmp_path: Path) -> None:
    subject = Subject()
    subject.write(60)
    first = files(subject.save(tmp_path, 1))
    subject.write(12)
    second = files(subject.save(tmp_path, 2))
    shared = {name for name in second if name in first and second[name].st_ino == first[name].st_ino}
    new = {name for name in second if name not in first}
    assert shared == set(second) & set(first) and len(shared) > 0.6 * len(first)
    rows = subject.replay.store.chunk_rows
    assert 0 < len(new) <= 12 * T * WIDTH // rows + WIDTH, "as many chunks as were filled since"
    written = sum(second[name].st_size for name in new)
    assert written < 0.3 * sum(stat.st_size for stat in second.values())
    checkpoint.verify(checkpoint.path_of(tmp_path, 2))


def test_a_chunk_is_not_sealed_before_its_last_rows_are_folded(tmp_path: Path) -> None:
    subject = Subject(capacity=1024)  # a chunk ends with a rollout, so the folds of its last rows wait for the next
    for number in range(1, 25):
        subject.write(1)
        subject.save(tmp_path, number)  # links what the ones before it have written
    again = Subject(capacity=1024)
    again.replay.restore(checkpoint.load(checkpoint.path_of(tmp_path, 24))[0]["queue"])
    assert_same_table(subject.replay, again.replay)


def test_a_chunk_that_left_the_table_goes_with_the_last_checkpoint_that_links_it(tmp_path: Path) -> None:
    subject = Subject(capacity=300)
    subject.write(20)
    gone = set(files(subject.save(tmp_path, 1)))
    subject.write(60)
    kept = files(subject.save(tmp_path, 2))
    assert gone.isdisjoint(kept), "all of them were overwritten"
    checkpoint.prune(tmp_path, keep=1)
    assert {file.name for file in tmp_path.rglob(CHUNK)} == set(kept)
    subject.write(1)
    subject.save(tmp_path, 3)
    checkpoint.prune(tmp_path, keep=1)
    assert all(stat.st_nlink == 1 for stat in files(checkpoint.path_of(tmp_path, 3)).values())
    checkpoint.verify(checkpoint.path_of(tmp_path, 3))


def test_names_are_never_used_again_for_other_bytes_after_resuming_from_an_older_checkpoint(tmp_path: Path) -> None:
    subject = Subject()
    subject.write(30)
    first = subject.save(tmp_path, 1)
    subject.write(30)
    second = set(files(subject.save(tmp_path, 2)))
    tree, _ = checkpoint.load(first)
    other = Subject()
    other.replay.restore(tree["queue"])
    other.step, other._random = subject.step - 30 * T, np.random.default_rng(99)  # it goes on otherwise
    other.write(30)
    third = set(files(other.save(tmp_path, 3)))
    assert third & second == set(files(first)), "what was restored keeps its name; what is new has a new one"
    back = Subject()
    back.replay.restore(checkpoint.load(checkpoint.path_of(tmp_path, 3))[0]["queue"])
    assert_same_table(other.replay, back.replay)


def test_a_flipped_bit_in_a_chunk_is_found(tmp_path: Path) -> None:
    subject = Subject()
    subject.write(30)
    path = subject.save(tmp_path, 1)
    victim = sorted(path.glob(CHUNK))[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{victim.name} does not match its digest"):
        checkpoint.load(path)
    assert checkpoint.newest(tmp_path)[0] is None


def test_a_snapshot_that_is_read_too_late_is_refused() -> None:
    subject = Subject(capacity=300)
    subject.write(20)
    saved = subject.replay.snapshot()
    subject.write(60)
    with pytest.raises(RuntimeError, match="overwritten before its snapshot was saved"):
        [np.asarray(sealed) for sealed in saved["store"]["sealed"]["files"]]


def test_without_files_a_large_table_is_left_out() -> None:
    subject = Subject(save_files=False)
    subject.write(20)
    assert subject.replay.snapshot()["store"] is None


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_chunk_files import Subject
subject = Subject(capacity=3000)
subject.write(200)
number = 0
while True:
    number += 1
    subject.save(Path({directory!r}), number)
    print(number, flush=True)
    subject.write(20)
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before_it_whole(tmp_path: Path) -> None:
    code = KILLED.format(folder=str(Path(__file__).parent), directory=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "2":
            break
    deadline = time.monotonic() + 20
    while not [*tmp_path.glob(".tmp-*/chunk-*.bin")] and time.monotonic() < deadline:
        pass  # the third is being written
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    path, skipped = checkpoint.newest(tmp_path)
    assert path is not None and int(path.name[-10:]) >= 2 and not skipped
    again = Subject(capacity=3000)
    again.replay.restore(checkpoint.load(path)[0]["queue"])
    assert len(again.replay.table) > 2000
    again.save(tmp_path, 50)
    assert not [*tmp_path.glob(".tmp-*")], "what the kill left behind is swept"
