"""The policy that was asked for is kept: exactly as evaluated, whole at any kill, and replaced by a better one only."""

import json
import logging
import os
import shutil
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import rookery
from rookery.run import api, checkpoint, config, kept
from rookery.run.checkpoint import CheckpointError, StorageError
from rookery.run.config import ConfigError
from rookery.run.directory import Run
from rookery.workers.acting.evaluator import Evaluation, Evaluator

SMALL = {"env": "identity", "num_envs": 8, "rollout_length": 8, "network": {"hidden": (8,)}, "eval_episodes": 3}
OPTIONS = SMALL | {"total_steps": 10**6, "eval_every": 1, "checkpoint_every": 1, "keep": 2, "run": "r"}


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def different(a, b):
    return any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


def best_meta(run):
    return checkpoint.read_meta(Path(run) / "checkpoints" / "best")


def result_of(run):
    return json.loads((Path(run) / "result.json").read_text())


def flip(directory):
    data = next(directory.glob("arrays-*"))
    changed = bytearray(data.read_bytes())
    changed[len(changed) // 2] ^= 1
    data.write_bytes(changed)


@pytest.fixture
def evaluations(monkeypatch):
    """Evaluations give these returns, one after the other, and note the parameters that they were asked about."""
    returns, asked = [], []

    def evaluate(self, params):
        asked.append(jax.tree.map(np.array, params))
        return Evaluation([returns.pop(0)], [8], 0.0, 0)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    return returns, asked


# ------------------------------------------------------------------------------------ a run that its evaluation ended


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """IMPALA, which learns from what is in flight before it is saved, by steps so large that it shows; the fourth evaluation
    ends it. None may change it."""
    asked, evaluate = [], Evaluator.evaluate

    def noted(self, params):
        found = evaluate(self, params)
        asked.append((params, found if len(asked) >= 3 else found._replace(returns=[0.0] * 3)))
        return asked[-1][1]

    options = OPTIONS | {"stop_eval_return": 0.1, "learning_rate": 0.3, "runs": str(tmp_path_factory.mktemp("runs"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", noted)
        return rookery.train("impala", **options), asked


def test_what_is_kept_is_exactly_what_was_evaluated_and_not_what_was_drained_after_it(stopped):
    result, asked = stopped
    (params, reached), (kept_params, told) = asked[-2:]  # the last evaluation is of what is kept
    assert result.reason == "eval_return_mean reached 0.1" and len(asked) >= 5 and reached.return_mean >= 0.1
    assert result.kept == "best" == result_of(result.run)["policy"]
    same(result.policy.params, params)
    same(kept_params, params)
    same(rookery.load(result.run).params, params)
    last = rookery.load(result.run, which="last").params
    assert best_meta(result.run)["updates"] < result.metrics["updates"] and different(last, params), "it was drained"
    assert result.metrics["eval_return_mean"] == told.return_mean == best_meta(result.run)["eval_return_mean"]


def test_the_best_evaluates_to_exactly_what_was_told(stopped):
    result, _ = stopped
    again = api.evaluate_run(result.run, episodes=3, seed=1_000_003)
    assert again["checkpoint"] == "best" and again["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert again["env_steps"] == best_meta(result.run)["env_steps"] < result.metrics["env_steps"]
    last = api.evaluate_run(result.run, which="last", episodes=3, seed=1_000_003)
    assert last["checkpoint"] == f"update-{result.metrics['updates']:010d}"


def test_the_best_says_what_it_is_and_is_not_counted_among_those_that_are_kept(stopped):
    result, _ = stopped
    meta, checkpoints = best_meta(result.run), Path(result.run) / "checkpoints"
    assert meta["kind"] == "policy" and meta["system"] == "impala" and meta["env"] == "identity" and meta["eval_episodes"] == 3
    assert meta["updates"] > 0 and meta["env_steps"] > 0 and 0 < meta["seconds"] <= result.metrics["seconds"]
    assert len(checkpoint.listed(checkpoints)) == 2
    tree, _ = checkpoint.load(checkpoints / "best")
    assert list(tree) == ["params"], "the parameters alone"


def test_a_checkpoint_is_chosen_by_its_updates_and_an_unknown_one_names_those_there_are(stopped):
    result, _ = stopped
    newest, older = checkpoint.listed(Path(result.run) / "checkpoints")
    for number in (checkpoint.updates_of(older), str(checkpoint.updates_of(older)), older.name):
        same(rookery.load(result.run, which=number).params, rookery.load(older).params)
    there = f"{checkpoint.updates_of(older)}, {checkpoint.updates_of(newest)}"
    for unknown in (987654, "bset", -1):
        with pytest.raises(ConfigError, match=rf"no checkpoint .*{unknown}.*best, last.*: {there}$"):
            rookery.load(result.run, which=unknown)
    same(rookery.load(Path(result.run) / "checkpoints/best").params, result.policy.params)
    with pytest.raises(ConfigError, match=r"update-.* is a single checkpoint.*leave out --which"):
        rookery.load(older, which="best")


@pytest.fixture
def copied(stopped, tmp_path):
    return Path(shutil.copytree(stopped[0].run, tmp_path / "r"))


def test_the_best_outlives_all_others_that_are_older_than_what_is_kept(copied):
    assert len(checkpoint.prune(copied / "checkpoints", 1)) == 1
    assert sorted(path.name for path in (copied / "checkpoints").iterdir())[0] == "best"
    checkpoint.verify(copied / "checkpoints/best")


def test_training_does_not_go_on_from_the_best_and_what_can_be_resumed_is_named(copied):
    best, (newest, older) = copied / "checkpoints/best", checkpoint.listed(copied / "checkpoints")
    cfg = config.from_dict(Run.open(copied).config["config"])
    elsewhere = shutil.copytree(best, copied / "checkpoints" / "update-0000000001")  # its name is not what decides
    for path in (best, elsewhere):
        with pytest.raises(ConfigError, match=rf"policy alone.*rookery resume .*{newest.name}, {older.name}"):
            api.continued(Run.open(path), cfg)
    with pytest.raises(ConfigError, match="policy alone"):
        rookery.Trainer("impala", **SMALL).restore(best)
    for path in checkpoint.listed(copied / "checkpoints"):
        shutil.rmtree(path)
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        api.continued(Run.open(copied), cfg)


def test_a_damaged_best_is_found_and_the_last_taken_with_a_warning_unless_it_was_asked_for(copied):
    last = rookery.load(copied, which="last").params
    flip(copied / "checkpoints/best")
    with pytest.raises(CheckpointError, match=r"best/arrays-000\.bin does not match its digest.*--which last"):
        rookery.load(copied, which="best")
    with pytest.warns(UserWarning, match=r"update-\d+ is used instead.*best/arrays-000\.bin"):
        same(rookery.load(copied).params, last)
    shutil.rmtree(copied / "checkpoints/best")
    with pytest.raises(ConfigError, match=r"no best policy.*--which last"):
        rookery.load(copied, which="best")
    with pytest.warns(UserWarning, match=r"update-\d+ is used instead.*no best policy"):
        same(rookery.load(copied).params, last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(rookery.load(copied, which="last").params, last)


def test_episodes_are_recorded_by_the_policy_that_is_chosen(stopped, tmp_path):
    run = stopped[0].run
    by = {which: rookery.demonstrations.record(run, episodes=3, which=which, out=tmp_path / str(which), seed=1_000_003)
          for which in (None, "best", "last")}  # fmt: skip
    assert [by[which]["checkpoint"][:6] for which in by] == ["best", "best", "update"]
    assert by[None]["return_mean"] == pytest.approx(stopped[0].metrics["eval_return_mean"])


# -------------------------------------------------------------------------------------- which evaluation is the best


def test_a_worse_evaluation_replaces_nothing_and_a_resumed_run_knows_the_best_so_far(tmp_path, evaluations):
    returns, asked = evaluations
    returns += [1.0, 5.0, 5.0, 2.0]
    options = OPTIONS | {"runs": str(tmp_path)}
    with rookery.Trainer("a2c", **options) as trainer:
        while trainer.advance().updates < 3:
            pass
        result = trainer.finish()
    assert result.kept == "last" and result.metrics["eval_return_mean"] == 2.0 and result.metrics["eval_return_best"] == 5.0
    same(rookery.load(result.run, which="best").params, asked[1])
    same(rookery.load(result.run).params, asked[3])
    assert best_meta(result.run)["updates"] == 2 and best_meta(result.run)["eval_return_mean"] == 5.0

    run = Run.open(checkpoint.path_of(Path(result.run) / "checkpoints", 2))  # not the newest: it is rewound
    cfg = config.from_dict(run.config["config"])
    returns += [4.0, 6.0]
    with api.continued(run, cfg) as trainer:
        while trainer.advance().updates < 3:
            pass
        assert trainer.metrics()["eval_return_best"] == 5.0 == best_meta(result.run)["eval_return_mean"]
        while trainer.advance().updates < 4:
            pass
    assert best_meta(result.run)["eval_return_mean"] == 6.0 and best_meta(result.run)["updates"] == 4
    assert result_of(result.run)["policy"] == "last"


def test_a_resumed_run_that_reaches_its_goal_keeps_the_best_of_all_of_it(tmp_path, evaluations):
    returns, asked = evaluations
    returns += [5.0, 1.0, 1.0]
    with rookery.Trainer("a2c", **OPTIONS, runs=str(tmp_path)) as trainer:
        while trainer.advance().updates < 2:
            pass
        result = trainer.finish()
    run = Run.open(result.run)
    cfg = config.resolve("a2c", **OPTIONS, runs=str(tmp_path), stop_eval_return=4.0)
    returns += [4.0, 5.0]
    with api.continued(run, cfg) as trainer:
        for _ in trainer:
            pass
        result = trainer.finish()
    assert result.kept == "best" and result.metrics["eval_return_mean"] == 5.0 and result.metrics["updates"] == 3
    same(result.policy.params, asked[0])
    same(rookery.load(result.run).params, asked[0])


def test_the_evaluation_at_the_end_is_one_too_and_a_goal_counts_where_the_budget_ends_with_it(tmp_path, evaluations):
    returns, asked = evaluations
    returns += [7.0]
    once = rookery.train("a2c", **SMALL, total_steps=64, runs=str(tmp_path))
    assert once.kept == "last" == result_of(once.run)["policy"] and once.metrics["eval_return_best"] == 7.0
    same(rookery.load(once.run, which="best").params, asked[0])
    returns += [7.0, 7.0]
    both = rookery.train("a2c", **SMALL, total_steps=56, eval_every=1, stop_eval_return=7.0, runs=str(tmp_path))
    assert both.kept == "best" and both.reason == "eval_return_mean reached 7" and both.metrics["updates"] == 1


def test_a_return_that_is_not_finite_is_no_best(tmp_path):
    best = kept.BestPolicy()
    assert not best.offer({"w": np.ones(2)}, {"eval_return_mean": float("nan")})
    assert not best.offer({"w": np.ones(2)}, {"eval_return_mean": float("inf")})
    best.write(tmp_path)
    assert best.eval_return_mean is None and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------- kills and disks


class Killed(BaseException):
    pass


def offered(value):
    best = kept.BestPolicy()
    assert best.offer({"w": np.full(1000, value)}, {"eval_return_mean": value})
    return best


@pytest.mark.parametrize("steps", range(4))
def test_at_whatever_step_a_replacement_is_cut_one_of_the_two_is_whole(tmp_path, monkeypatch, steps):
    """Renames are the steps that show: aside, into place, the old one out of sight."""
    offered(1.0).write(tmp_path)
    rename, done = os.rename, []

    def cut(*paths):
        if len(done) == steps:
            raise Killed
        done.append(paths)
        return rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", cut)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # who is killed cleans up nothing
        try:
            offered(2.0).write(tmp_path)
        except Killed:
            assert steps < 3
        else:
            assert steps == 3, "there are three"
    path = kept.best_of(tmp_path)
    tree, meta = checkpoint.load(path)
    assert meta["eval_return_mean"] == (1.0 if steps < 2 else 2.0) == tree["params"]["w"][0]
    assert checkpoint.newest(tmp_path) == (None, []) and checkpoint.listed(tmp_path) == []
    after = kept.BestPolicy()
    after.read(tmp_path)
    assert after.eval_return_mean == meta["eval_return_mean"] and after.is_written
    offered(3.0).write(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["best"]
    assert checkpoint.load(tmp_path / "best")[1]["eval_return_mean"] == 3.0


def test_a_damaged_best_is_forgotten_by_a_resumed_run_and_replaced_by_its_next_evaluation(tmp_path, caplog):
    offered(2.0).write(tmp_path)
    flip(tmp_path / "best")
    best = kept.BestPolicy()
    with caplog.at_level(logging.WARNING):
        best.read(tmp_path)
    assert best.eval_return_mean is None and "does not match its digest" in caplog.text
    assert best.offer({"w": np.ones(3)}, {"eval_return_mean": 1.0})
    best.write(tmp_path)
    assert kept.best_of(tmp_path) == tmp_path / "best"


def failing(monkeypatch, times):
    write, failed = checkpoint.write, []

    def write_or_fail(directory, contents):
        if Path(directory).name == "best" and len(failed) < times:
            failed.append(directory)
            raise StorageError(f"{directory}: not saved: the disk is on fire")
        return write(directory, contents)

    monkeypatch.setattr(checkpoint, "write", write_or_fail)
    return failed


def test_a_disk_that_fails_the_best_does_not_end_the_run_which_then_keeps_the_last(tmp_path, monkeypatch, evaluations):
    evaluations[0].extend([1.0, 2.0, 0.5])
    failed = failing(monkeypatch, times=100)
    result = rookery.train("a2c", **OPTIONS, runs=str(tmp_path), stop_eval_return=2.0)
    assert len(failed) >= 2 and "the best policy so far is in memory only" in (Path(result.run) / "log.txt").read_text()
    assert result.kept == "last" == result_of(result.run)["policy"]
    assert result.metrics["eval_return_mean"] == 0.5, "of the last: what is told is what is there"
    same(rookery.load(result.run).params, result.policy.params)


def test_a_run_that_is_closed_before_the_best_is_on_disk_waits_for_it_and_says_so(tmp_path, monkeypatch, evaluations):
    evaluations[0].append(2.0)
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: time.sleep(0.3) or write(*args))
    with rookery.Trainer("a2c", **OPTIONS, runs=str(tmp_path), stop_eval_return=2.0) as trainer:
        for _ in trainer:
            pass
    assert result_of(trainer.run.path)["status"] == "stopped" and result_of(trainer.run.path)["policy"] == "best"
    same(rookery.load(trainer.run.path).params, evaluations[1][0])


def test_a_disk_that_is_well_again_at_the_end_gets_the_best(tmp_path, monkeypatch, evaluations):
    evaluations[0].extend([2.0, 2.0])
    assert failing(monkeypatch, times=1) == []
    result = rookery.train("a2c", **OPTIONS, runs=str(tmp_path), stop_eval_return=2.0)
    assert result.kept == "best"
    same(rookery.load(result.run).params, evaluations[1][0])
