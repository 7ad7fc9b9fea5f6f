"""Faults that a new user met in the first hour, each held shut."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import rookery
from rookery.run.budget import LONGEST_START, TrainingClock
from rookery.run.config import ConfigError
from rookery.run.returns import ReturnWindow

SMALL = {"env": "identity", "total_steps": 2_000, "num_envs": 4, "eval_episodes": 1, "network": {"hidden": (8,)}}


def progress(updates=0, waiting=None):
    return types.SimpleNamespace(updates=updates, waiting=waiting)


def test_a_target_that_was_set_after_it_was_left_is_not_reached_at_the_old_one():
    before = ReturnWindow(size=2, target=100.0)
    before.add([100.0, 100.0], seconds=3.0)
    assert before.seconds_to_target == 3.0
    same, higher = ReturnWindow(size=2, target=100.0), ReturnWindow(size=2, target=499.0)
    for window in (same, higher):
        window.restore(before.snapshot())
    assert same.seconds_to_target == 3.0 and higher.seconds_to_target is None
    higher.add([499.0, 499.0], seconds=9.0)
    assert higher.seconds_to_target == 9.0


def test_a_trainer_tells_how_it_stands_before_its_first_step_and_its_progress_is_one_line(tmp_path):
    with rookery.Trainer("a2c", **SMALL, rollout_length=8, runs=str(tmp_path)) as trainer:
        row = trainer.row()
        assert row.starting and row.env_steps == row.updates == 0 and row.total_steps == 2_000
        assert not list(tmp_path.iterdir()), "asking makes no directory"
        step = trainer.advance()
        assert trainer.row().env_steps == step.env_steps
        said = str(step)
        assert "\n" not in said and len(said) < 110 and f"{step.env_steps:,} steps" in said and said == repr(step)


def test_a_missing_ray_is_noticed_before_there_is_a_directory(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # to import it now fails, as where it is missing
    with pytest.raises(ConfigError, match=r"--runtime ray needs Ray: pip install 'rookery\[ray\]'"):
        rookery.Trainer("a2c", **SMALL, runtime="ray", runs=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_seconds_are_those_of_training_and_not_of_compilation():
    clock = TrainingClock()
    for second in range(1, 31):
        clock.look(second, progress(), updates_before=0)
        assert clock.over(10.0, second, progress()) is None, "compiling"
    clock.look(31.0, progress(updates=1), updates_before=0)
    assert clock.start_up == 30.0 and clock.over(10.0, 39.0, progress(1)) is None
    assert clock.over(10.0, 40.0, progress(1)) == "10 seconds are over"
    assert clock.over(None, 1e9, progress(1)) is None


def test_seconds_end_a_run_that_learned_nothing_and_say_why():
    clock, waiting = TrainingClock(), progress(waiting="waiting: 412 more inserts before the next sample")
    clock.look(5.0, progress(), updates_before=0)
    for second in range(6, 17):
        clock.look(second, waiting, updates_before=0)
    assert clock.start_up == 5.0, "to fill a replay is no start-up"
    assert "nothing was learned: waiting: 412 more inserts" in clock.over(10.0, 16.0, waiting)
    late = TrainingClock()
    late.look(10 * LONGEST_START, progress(), updates_before=0)
    assert late.start_up == LONGEST_START and "no worker answered" in late.over(1.0, 10 * LONGEST_START, progress())


def test_updates_that_a_checkpoint_brought_along_end_no_start_up():
    clock = TrainingClock()
    clock.look(3.0, progress(updates=7), updates_before=7)
    assert clock.start_up == 3.0


def test_several_seeds_of_one_program_are_told_one_by_one(tmp_path):
    options = {"num_envs": 4, "num_seeds": 2, "rollout_length": 8, "minibatches": 2, "total_steps": 2_000, "eval_episodes": 1}
    result = rookery.train("anakin-ppo", env="jax:catch", network={"hidden": (8,)}, runs=str(tmp_path), **options)
    each = [result.metrics[f"return_mean/seed_{n}"] for n in range(2)]
    assert result.metrics["return_mean"] == pytest.approx(sum(each) / 2) and each[0] != each[1]


COUNT = """
import json, sys
from jax import monitoring
import rookery
names = []
monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
counts, returns = [], []
system, env, runs, options = sys.argv[1:4] + [json.loads(sys.argv[4])]
for rate, discount in ((1e-3, 0.99), (3e-3, 0.98), (3e-4, 0.95), (1e-3, 0.99)):
    names.clear()
    result = rookery.train(system, env=env, runs=runs, learning_rate=rate, discount=discount, **options)
    counts.append(sum(name.endswith("backend_compile_duration") for name in names))
    returns.append([result.metrics["return_mean"], result.metrics["updates"]])
print(json.dumps({"counts": counts, "returns": returns}))
"""
SYSTEMS = {
    "ppo": ("identity", {"num_envs": 4, "rollout_length": 8, "minibatches": 2, "epochs": 2, "total_steps": 600}),
    "anakin-ppo": ("jax:catch", {"num_envs": 4, "rollout_length": 8, "minibatches": 2, "epochs": 2, "total_steps": 600}),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_four_trials_of_a_search_compile_once_and_give_what_each_would_give_alone(system, tmp_path):
    env, options = SYSTEMS[system]
    options |= {"eval_episodes": 1, "network": {"hidden": (8,)}}
    words = [sys.executable, "-c", COUNT, system, env, str(tmp_path), json.dumps(options)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counts"][0] > 3 and found["counts"][1:] == [0, 0, 0]
    assert found["returns"][0] == found["returns"][3], "leaves are arguments: the same again, after others"
