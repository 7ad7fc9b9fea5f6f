"""Milestones are at equal distances over the run, and stay where all other checkpoints go."""

import pytest

from rookery import Trainer
from rookery.run import checkpoint
from rookery.run.directory import Run
from rookery.run.saving import Milestones, Saver

TINY = {"num_envs": 4, "rollout_length": 8, "network": {"hidden": (4,)}, "eval_episodes": 0, "normalise_rewards": False}


def updates_in(run):
    return [checkpoint.updates_of(path) for path in reversed(checkpoint.listed(run / "checkpoints"))]


def test_milestones_stay_where_all_others_go_and_come_at_equal_distances(tmp_path):
    options = TINY | {"total_updates": 40, "total_steps": 10**6, "milestones": 4, "keep": 1, "checkpoint_every": 7}
    with Trainer("a2c", env="identity", runs=str(tmp_path), run="x", **options) as trainer:
        for progress in trainer:
            if progress.updates == 23:
                stopped = trainer.save()
        trainer.finish()
    assert updates_in(tmp_path / "x") == [10, 20, 30, 40]
    assert [checkpoint.read_meta(path)[checkpoint.MILESTONE] for path in checkpoint.listed(tmp_path / "x" / "checkpoints")] == [
        4, 3, 2, 1
    ]  # fmt: skip
    assert not stopped.exists()


def test_a_resumed_run_comes_to_the_milestones_that_are_left(tmp_path):
    options = TINY | {"total_updates": 20, "total_steps": 10**6, "milestones": 2, "keep": 1, "checkpoint_every": 10**6}
    options |= {"env": "identity", "runs": str(tmp_path)}
    with Trainer("a2c", run="x", **options) as trainer:
        while trainer.advance().updates < 12:
            pass
        trainer.save()
    with Trainer("a2c", run="y", **options) as trainer:
        trainer.restore(tmp_path / "x")
        for _ in trainer:
            pass
        trainer.finish()
    assert updates_in(tmp_path / "x") == [10, 12] and updates_in(tmp_path / "y") == [20]


def test_a_milestone_that_the_disk_refused_is_the_next_that_it_takes(tmp_path, monkeypatch):
    saver = Saver(None, keep=1, tell=print, milestones=Milestones(2, 100))
    contents = checkpoint.Contents.of({"a": 1}, {})
    with Run.create(tmp_path, "x", {}, "") as run:
        assert not saver.comes_to_milestone(49, since=0) and saver.comes_to_milestone(50, since=0)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write", lambda *_: (_ for _ in ()).throw(checkpoint.StorageError("full")))
            with pytest.raises(checkpoint.StorageError):
                saver.save(run, 50, contents)
        for updates in (51, 60, 70):
            saver.save(run, updates, contents)
        saver.close()
        assert updates_in(run.path) == [51, 70]


def test_without_milestones_none_is_marked(tmp_path):
    assert Milestones(0, 10).passed(10**9) == 0 and Milestones(3, 7).passed(7) == 3
