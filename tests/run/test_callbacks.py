"""Callbacks: what they are given, that they may end a run, and that one which raises costs nothing that was learned."""

import functools
import json
import os
import signal

import jax
import numpy as np
import pytest

import rookery
from rookery.run import checkpoint
from rookery.run.callbacks import STOP, CallbackError, Callbacks, told
from rookery.run.config import ConfigError

SMALL = {"num_envs": 4, "rollout_length": 8, "network": {"hidden": (4,)}, "eval_episodes": 2, "env": "identity"}


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def lines(run, name):
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 30 updates with every kind of callback: (directory, result, events by kind)."""
    runs, seen = tmp_path_factory.mktemp("runs"), {"step": [], "evaluation": [], "checkpoint": [], "end": []}

    def on_step(event):
        seen["step"].append(event)
        event.trainer.log({"my/updates": event.updates, "my/array": np.float32(0.5)})

    result = rookery.train(
        "a2c", **SMALL, runs=str(runs), run="r", total_updates=30, total_steps=10**6, log_every=100, eval_every=7,
        checkpoint_every=10, keep=9, tensorboard=True, on_step=[on_step, lambda event: None],
        on_evaluation=seen["evaluation"].append, on_checkpoint=seen["checkpoint"].append, on_end=seen["end"].append,
    )  # fmt: skip
    return runs / "r", result, seen


def test_every_step_evaluation_and_checkpoint_and_the_end_are_told(whole):
    _, result, seen = whole
    steps = [event.updates for event in seen["step"]]
    assert steps == sorted(steps) and set(range(1, 31)) <= set(steps)
    last = seen["step"][-1]
    assert last.env_steps == result.metrics["env_steps"] and "loss/policy" in last.report and last.return_mean is not None
    assert sum(len(event.finished) for event in seen["step"]) == result.metrics["episodes"] == last.episodes
    assert [event.updates for event in seen["evaluation"]] == [7, 14, 21, 28, 30]
    assert seen["evaluation"][0].is_best and seen["evaluation"][-1].return_mean == result.metrics["eval_return_mean"]
    assert all(len(event.returns) == len(event.lengths) == 2 for event in seen["evaluation"])
    assert [event.updates for event in seen["checkpoint"]] == [10, 20, 30]
    for event in seen["checkpoint"]:
        checkpoint.verify(event.path)
    (end,) = seen["end"]
    assert end.result is result


def test_numbers_of_a_callback_are_in_every_row_and_on_the_board(whole):
    from test_tensorboard import events

    run, _, _ = whole
    rows = lines(run, "metrics")
    assert [row["my/updates"] for row in rows] == [row["updates"] for row in rows] and rows[0]["my/array"] == 0.5
    shown = [{value.tag: value.simple_value for value in event.summary.value} for event in events(run / "tensorboard")]
    assert [values["my/updates"] for values in shown if "my/updates" in values] == [row["updates"] for row in rows]
    assert sum("eval/return_mean" in values for values in shown) == 5
    assert {"rollout/return_mean", "time/env_steps_per_s", "train/entropy", "loss/policy", "system/rss_mb"} <= set(shown[-2])


def test_rows_are_as_far_apart_as_was_asked(whole):
    steps = [row["env_steps"] for row in lines(whole[0], "metrics")][:-1]  # one more in the end
    assert [step // 100 for step in steps] == list(range(1, steps[-1] // 100 + 1)), steps


def test_every_episode_and_every_evaluation_is_on_file(whole):
    run, result, seen = whole
    rows = lines(run, "episodes")
    assert [row["episode"] for row in rows] == list(range(1, result.metrics["episodes"] + 1))
    played = [(episode.total_reward, episode.length) for event in seen["step"] for episode in event.finished]
    assert [(row["return"], row["length"]) for row in rows] == played
    for row, event in zip(lines(run, "evaluations"), seen["evaluation"], strict=True):
        assert (row["updates"], row["env_steps"], tuple(row["returns"])) == (event.updates, event.env_steps, event.returns)
        assert (row["mean"], row["std"]) == pytest.approx((np.mean(event.returns), np.std(event.returns)))
        assert (row["min"], row["max"], row["lengths"]) == (min(event.returns), max(event.returns), list(event.lengths))


def test_callbacks_change_nothing_and_a_run_that_is_resumed_writes_every_row_once(whole, tmp_path):
    """Stopped by a callback after 16 updates, gone on with from update 10, without callbacks: the rows of the whole run."""
    run, result, _ = whole
    asked = SMALL | {"runs": str(tmp_path), "total_updates": 30, "total_steps": 10**6, "log_every": 100, "eval_every": 7}
    asked |= {"checkpoint_every": 10, "keep": 9}
    stop = lambda event: rookery.STOP if event.updates == 16 else None
    cut = rookery.train("a2c", **asked, run="r", on_step=stop)
    assert cut.status == "done" and cut.reason.startswith("stopped by the on_step callback <lambda> (test_callbacks.py:")
    assert cut.metrics["updates"] == 16 and len(lines(tmp_path / "r", "episodes")) == cut.metrics["episodes"]
    again = rookery.resume(str(checkpoint.path_of(tmp_path / "r" / "checkpoints", 10)))
    same(again.policy.params, result.policy.params)
    same_rows = {
        "episodes": ("episode", "return", "length"),  # not updates: a sign of life may tell of them before the next one
        "evaluations": ("updates", "env_steps", "returns", "lengths", "mean", "std", "min", "max"),
        "metrics": ("env_steps", "episodes", "return_mean"),
    }
    for name, keys in same_rows.items():
        kept = [[tuple(row[key] for key in keys) for row in lines(place, name)] for place in (tmp_path / "r", run)]
        assert kept[0] == kept[1], name


def test_an_evaluation_may_stop_a_run_and_only_stop_does(tmp_path):
    asked = SMALL | {"runs": str(tmp_path), "eval_every": 2, "total_steps": 10**6}
    result = rookery.train("a2c", **asked, run="r", on_evaluation=lambda event: STOP)
    assert result.metrics["updates"] == 2 and "on_evaluation" in result.reason
    for answer in (True, False):  # what it means to other libraries is not guessed
        with pytest.raises(CallbackError, match=rf"on_step callback .* returned {answer}: return rookery.STOP"):
            Callbacks(on_step=lambda event, answer=answer: answer).call("on_step", None)
    assert repr(STOP) == "rookery.STOP"


@pytest.mark.parametrize("name", ["on_step", "on_checkpoint", "on_end"])
def test_one_that_raises_ends_the_run_with_its_name_and_a_checkpoint_of_where_it_stood(tmp_path, name):
    def breaks(event):
        if name == "on_end" or event.updates >= 3:
            raise ValueError("what a pity")

    asked = SMALL | {"runs": str(tmp_path), "total_updates": 6, "eval_every": 1, "checkpoint_every": 4}
    where = rf"the {name} callback breaks \(test_callbacks.py:\d+\) raised ValueError: what a pity. Last good checkpoint: "
    with pytest.raises(CallbackError, match=where) as caught:
        rookery.train("a2c", **asked, run="r", **{name: breaks})
    assert isinstance(caught.value.__cause__, ValueError)
    newest, skipped = checkpoint.newest(tmp_path / "r" / "checkpoints")
    last = lines(tmp_path / "r", "evaluations")[-1]["updates"]
    assert not skipped and checkpoint.updates_of(newest) == last, "all that was learned is there"
    told = json.loads((tmp_path / "r" / "result.json").read_text())
    assert told["status"] == ("done" if name == "on_end" else "failed")
    assert name == "on_end" or "what a pity" in told["reason"]


def test_what_is_no_function_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match="on_step must be a function or a list of functions, not 3"):
        rookery.train("a2c", **SMALL, runs=str(tmp_path / "runs"), on_step=[3])
    assert not (tmp_path / "runs").exists()


def test_a_function_is_named_with_its_place():
    assert told(same).startswith("same (test_callbacks.py:") and told(functools.partial(same, 1)) == told(same)
    assert told(Callbacks()) == "Callbacks" and told([].append) == "list.append"


@pytest.mark.parametrize("values, problem", [
    ({"loss": 1.0}, r"'loss' needs a group of yours .* 'my/loss'"), ({"loss/mine": 1.0}, "the group 'loss' is Rookery's own"),
    ({"my/x": "high"}, "'my/x' is 'high', which is no number"), ({"my/x": [1, 2]}, "no number"), ({3: 1.0}, "needs a group"),
])  # fmt: skip
def test_a_number_that_cannot_be_shown_is_refused(values, problem):
    from rookery.run.journal import Journal

    journal = Journal(rookery.run.config.resolve("a2c", env="identity"))
    with pytest.raises(ConfigError, match=problem):
        journal.log({"my/good": 1.0} | values)
    assert not journal._mine, "all or nothing"


# ------------------------------------------------------------------------------------------------------------ Ctrl-C


def test_ctrl_c_saves_and_raises_keyboard_interrupt_with_the_command_that_goes_on(tmp_path):
    def press(event):
        if event.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"Last good checkpoint: .*r/checkpoints/update-0.*rookery resume"):
        rookery.train("a2c", **SMALL, runs=str(tmp_path), run="r", total_steps=10**6, on_step=press)
    assert signal.getsignal(signal.SIGINT) is before
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["status"] == "stopped" and result["reason"] == "SIGINT"
    assert checkpoint.updates_of(checkpoint.newest(tmp_path / "r" / "checkpoints")[0]) == result["updates"]


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def press(event):
        if event.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        rookery.train("a2c", **SMALL, runs=str(tmp_path), run="r", total_steps=10**6, on_step=press)
    assert not str(caught.value) and json.loads((tmp_path / "r" / "result.json").read_text())["status"] == "stopped"
