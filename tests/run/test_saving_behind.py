"""Checkpoints of a training are written while it goes on: whole, as things stood, one at a time.

What a failing disk does to them is in tests/faults/test_disk_faults.py.
"""

import threading
from pathlib import Path

import numpy as np

from rookery import Trainer
from rookery.data.files import Sealed
from rookery.run import checkpoint, saving

OPTIONS = {
    "env": "catch", "num_envs": 4, "rollout_length": 4, "minibatches": 1, "epochs": 1, "network": {"hidden": (8,)},
    "checkpoint_every": 2, "total_steps": 10**6, "eval_episodes": 0,
}  # fmt: skip
NAME = "chunk-0123456789abcdef-{}-0.bin"


def sealed(number, data):
    return Sealed(NAME.format(number), data.nbytes, lambda: data)


def until(run, updates):
    while run.advance().updates < updates:
        pass


def written(path):
    return path.exists() and checkpoint.verify(path) is None


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    go_on, write = threading.Event(), checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: go_on.wait(60) and write(*args))
    with Trainer("ppo", runs=str(tmp_path), run="r", **OPTIONS) as run:
        until(run, 3)  # it was time to save at 2, and the disk is slow
        checkpoints = run.run.checkpoints
        assert run.progress.updates == 3 and checkpoint.listed(checkpoints) == []
        go_on.set()
        run.save()
        assert run.last_checkpoint == checkpoint.path_of(checkpoints, 3)
        tree, _ = checkpoint.load(checkpoint.path_of(checkpoints, 2))
        assert int(tree["topology"]["meters"]["updates"]) == 2 == int(tree["topology"]["policies"]["main"]["version"])


def test_a_run_that_is_closed_has_written_what_it_began_to(tmp_path):
    with Trainer("ppo", runs=str(tmp_path), run="r", **OPTIONS) as run:
        until(run, 2)
        checkpoints = run.run.checkpoints
    assert written(checkpoint.path_of(checkpoints, 2))


def test_one_that_would_take_too_much_memory_is_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "HELD_BYTES", 1000)
    threads = []
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: threads.append(threading.current_thread()) or write(*args))
    with Trainer("ppo", runs=str(tmp_path), run="r", **OPTIONS) as run:
        until(run, 2)
        assert written(checkpoint.path_of(run.run.checkpoints, 2)) and threads == [threading.main_thread()]


def test_what_is_held_does_not_change_with_what_it_was_taken_from(tmp_path):
    array, old, new = np.arange(6), np.zeros(100, np.uint8), np.ones(100, np.uint8)
    checkpoint.save(checkpoint.path_of(tmp_path, 1), {"array": array, "files": [sealed(0, old)]}, meta={})
    now = checkpoint.Contents.of({"array": array, "files": [sealed(0, old), sealed(1, new)]}, {})
    assert now.held(tmp_path, array.nbytes + new.nbytes - 1) is None  # what is linked needs no memory
    held = now.held(tmp_path, array.nbytes + new.nbytes)
    array[:], old[:], new[:] = -1, 7, 8
    tree, _ = checkpoint.load(checkpoint.write(checkpoint.path_of(tmp_path, 2), held))
    assert tree["array"].tolist() == [*range(6)]
    assert [int(file.max()) for file in tree["files"]] == [0, 1]


def test_where_nothing_can_be_linked_files_are_copied(tmp_path, monkeypatch):
    def link(*_, **__):
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", link)
    data = np.arange(100, dtype=np.uint8)
    first, second = checkpoint.path_of(tmp_path, 1), checkpoint.path_of(tmp_path, 2)
    checkpoint.save(first, [sealed(0, data)], meta={})
    held = checkpoint.Contents.of([sealed(0, data)], {}).held(tmp_path, 0)
    expected = data.copy()
    data[:] = 0
    checkpoint.write(second, held)
    for path in (first, second):
        assert np.array_equal(checkpoint.load(path)[0][0], expected)
    assert not Path(first / NAME.format(0)).samefile(second / NAME.format(0))
