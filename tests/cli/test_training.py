"""train, eval, resume and list runs, as they are typed."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from command_line import SMALL

from rookery.run import config, options, startup
from rookery.run.trainer import Trainer

KEYS = (
    "run", "system", "env", "env_steps", "trained_steps", "updates", "episodes", "return_mean", "eval_return_mean",
    "eval_return_best", "seconds",
    "env_steps_per_s", "seconds_to_target", "learner_idle", "policy_lag_mean", "env_failures", "parameters",
)  # fmt: skip


def test_json_is_one_line_with_exactly_the_documented_keys(trained):
    status, out, err = trained.answer
    assert status == 0 and err == "" and out.count("\n") == 1
    answer = json.loads(out)
    assert tuple(answer) == KEYS
    assert answer["run"] == "runs/first" and answer["system"] == "a2c" and answer["env"] == "identity"
    assert 640 <= answer["env_steps"] < 640 + 64 and answer["trained_steps"] == answer["env_steps"]
    assert answer["updates"] >= answer["env_steps"] / 64, "8 environments x 8 steps, fewer where an episode begins"
    assert answer["policy_lag_mean"] == 0
    assert answer["episodes"] > 0 and answer["return_mean"] > 0 and answer["eval_return_mean"] is not None
    assert answer["seconds_to_target"] is None and answer["parameters"] > 0


def test_a_run_directory_holds_config_metrics_result_and_checkpoints(trained):
    names = {path.name for path in trained.run.iterdir()}
    assert {"config.json", "metrics.jsonl", "result.json", "checkpoints"} <= names
    result = json.loads((trained.run / "result.json").read_text())
    assert result["status"] == "done" and result["seed"] == 3 and "640 steps" in result["reason"]
    assert {key: result[key] for key in KEYS} == json.loads(trained.answer.out)
    last = json.loads((trained.run / "metrics.jsonl").read_text().splitlines()[-1])
    expected = {"env_steps", "updates", "return_mean", "rss_mb", "seconds", "learner_idle", "policy_lag_mean"}
    expected |= {f"time/{phase}" for phase in ("env", "inference", "transfer", "learn", "wait")}
    expected |= {"loss/policy", "loss/value", "loss/entropy", "gradient_norm"}
    assert expected <= set(last) and last["rss_mb"] > 50
    assert sum(last[name] for name in last if name.startswith("time/")) == pytest.approx(1, abs=0.01)
    assert not [name for name in last if name.startswith("loss/loss")]
    best, *kept = sorted(path.name for path in (trained.run / "checkpoints").iterdir())
    assert best == "best" and len(kept) == 3 and kept[-1].endswith(str(result["updates"]))


def test_tensorboard_events_hold_the_rows_of_the_metrics(trained):
    from tensorboardX.proto.event_pb2 import Event

    (path,) = (trained.run / "tensorboard").iterdir()
    data, found = path.read_bytes(), []
    while data:  # 8 bytes of length, 4 of checksum, the event, 4 of checksum
        size = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    last = json.loads((trained.run / "metrics.jsonl").read_text().splitlines()[-1])
    written, evaluated = ({value.tag: value.simple_value for value in event.summary.value} for event in found[-2:])
    assert found[-1].step == found[-2].step == last["env_steps"] and "eval/return_mean" in evaluated
    assert written["rollout/return_mean"] == pytest.approx(last["return_mean"]) and "loss/policy" in written


def test_the_recorded_command_gives_the_recorded_config(trained):
    recorded = json.loads((trained.run / "config.json").read_text())
    words = shlex.split(recorded["command"])
    assert words[:5] == ["rookery", "train", "a2c", "--env", "identity"]
    again, _ = options.parse("rookery train", words[3:], config.resolve(words[2], env=words[4]))
    assert json.loads(json.dumps(again.to_dict())) == recorded["config"]
    machine = recorded["config"]["machine"]
    assert machine["cores"] >= 1 and all(flag.startswith("--xla") for flag in machine["xla_flags"])


def test_a_run_is_evaluated_by_name_by_path_and_by_checkpoint(trained):
    by_name = json.loads(trained.rookery("eval", "first", "--episodes", "3", "--json").out)
    assert by_name["run"] == "runs/first" and by_name["episodes"] == len(by_name["returns"]) == 3
    assert by_name["eval_return_mean"] == pytest.approx(sum(by_name["returns"]) / 3)
    by_path = json.loads(trained.rookery("eval", str(trained.run), "--episodes", "3", "--json").out)
    assert by_path["returns"] == by_name["returns"], "the same policy on the same seeds"
    oldest = min((trained.run / "checkpoints").glob("update-*"))
    by_checkpoint = json.loads(trained.rookery("eval", str(oldest), "--episodes", "3", "--json").out)
    assert by_checkpoint["checkpoint"] == oldest.name and by_checkpoint["env_steps"] < by_name["env_steps"]
    text = trained.rookery("eval", "first", "--episodes", "3").out
    assert "a2c on identity" in text and "over 3 greedy episodes" in text


def test_a_run_is_recorded_as_demonstrations_that_the_evaluation_agrees_with(trained, tmp_path):
    from rookery import demonstrations

    out = str(tmp_path / "demos")
    evaluated = json.loads(trained.rookery("eval", "first", "--episodes", "4", "--json").out)
    answer = trained.rookery("record", "first", "--episodes", "4", "--best", "3", "--out", out)
    assert answer.status == 0 and f"rookery train r2d3 --env identity --demonstrations {out}" in answer.out, answer
    found = demonstrations.read(out)
    returns = [float(episode.reward.sum()) for episode in found.episodes]
    assert returns == sorted(evaluated["returns"], reverse=True)[:3], "the same policy on the same seeds"
    first = found.episodes[0]  # the reward says what was done
    assert ((first.action == first.observation[:-1]) == first.reward).all() and first.discount.tolist() == [1.0] * 7 + [0.0]
    report = json.loads(trained.rookery("record", "first", "--episodes", "2", "--out", out, "--json").out)
    assert report["episodes"] == 2 and report["steps"] == 16 and report["digest"] != found.digest
    assert trained.rookery("record", "first", "--episodes", "2", "--best", "3", "--out", out).status == 2


def test_runs_are_listed(trained):
    rows = json.loads(trained.rookery("list", "runs", "--json").out)
    assert [(row["run"], row["system"], row["status"]) for row in rows] == [("first", "a2c", "done")]
    assert "first" in trained.rookery("list", "runs").out
    elsewhere = trained.rookery("list", "runs", "--runs", str(trained.run.parent))
    assert "first" in elsewhere.out and elsewhere.status == 0


def test_a_name_that_is_taken_is_refused_and_the_run_untouched(trained):
    before = {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file() and path.name != "lock"}
    answer = trained.rookery("train", "a2c", "--env", "identity", *SMALL, "--run", "first")
    assert answer.status == 2 and "already holds a run" in answer.err and "rookery resume first" in answer.err
    assert before == {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the run that a test may go on with."""
    shutil.copytree(trained.run, tmp_path / "runs" / "first")
    return tmp_path / "runs" / "first"


def test_a_spent_budget_is_refused_with_the_command_that_gives_more(rookery, copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "lock"}
    answer = rookery("resume", "first")
    assert answer.status == 2 and "rookery resume first --total-steps 1280" in answer.err
    assert before == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_resumed_run_counts_on_and_its_config_says_so(rookery, copied):
    before = json.loads((copied / "result.json").read_text())
    answer = rookery("resume", "first", "--total-steps", "900", "--json")
    assert answer.status == 0, answer.err
    after = json.loads(answer.out)
    assert after["run"] == "runs/first" and after["updates"] > before["updates"] and 900 <= after["env_steps"] < 964
    assert after["episodes"] > before["episodes"] and after["seconds"] > before["seconds"]
    recorded = json.loads((copied / "config.json").read_text())
    assert recorded["config"]["run"]["total_steps"] == 900 and "--total-steps 900" in recorded["command"]
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows)
    assert "640" in (copied / "log.txt").read_text(), "what it was before is in the log"


def test_resuming_an_older_checkpoint_drops_the_rows_after_it(rookery, copied):
    oldest = min((copied / "checkpoints").glob("update-*"))
    updates = int(oldest.name.split("-")[1])
    with open(copied / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"updates": updates + 1, "marker": "to be dropped"}) + "\n")
    answer = rookery("resume", str(oldest), "--json")
    assert answer.status == 0, answer.err
    assert 640 <= json.loads(answer.out)["env_steps"] < 704
    assert "to be dropped" not in (copied / "metrics.jsonl").read_text()


def test_a_system_runs_on_another_topology_and_keeps_it(rookery):
    words = ["train", "a2c", "--env", "identity", *SMALL, "--total-steps", "640"]
    answer = rookery(*words, "--topology", "async-gradients", "--workers", "2", "--run", "other", "--json")
    assert answer.status == 0, answer.err
    saved = json.loads((rookery.directory / "runs/other/config.json").read_text())
    assert saved["config"]["topology"]["class"] == "AsyncGradients"
    assert "--topology async-gradients" in saved["command"]
    assert rookery("resume", "other", "--total-steps", "4000", "--json").status == 0
    refused = rookery("resume", "other", "--topology", "sync")
    assert refused.status == 2 and "a run keeps its own, which is AsyncGradients" in refused.err


GOALS = {
    "return": (["--stop-return", "0"], "return_mean reached 0"),
    "eval_return": (["--stop-eval-return", "0", "--eval-every", "1"], "eval_return_mean reached 0"),
    "seconds": (["--seconds", "0.01"], "0.01 seconds are over"),
}


@pytest.mark.parametrize("goal, reason", GOALS.values(), ids=GOALS.keys())
def test_a_goal_ends_a_run_and_is_told(rookery, goal, reason):
    answer = rookery("train", "a2c", "--env", "identity", *SMALL, *goal, "--run", "goal")
    assert answer.status == 0, answer.err
    assert f"reason     {reason}" in answer.out and "rookery eval goal" in answer.out and "rookery resume goal\n" in answer.out
    lines = answer.out.splitlines()
    assert lines[0].startswith("run goal system a2c env identity") and "speed      " in answer.out
    result = json.loads((rookery.directory / "runs/goal/result.json").read_text())
    assert result["reason"] == reason
    assert (result["seconds_to_target"] is None) == (goal[0] == "--seconds")


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains_saves_and_prints_the_command_that_resumes(rookery, monkeypatch, number, status):
    interrupt_after(monkeypatch, 3, number)
    answer = rookery("train", "impala", "--env", "identity", *SMALL, "--run", "cut")
    assert answer.status == status and "Stopped after" in answer.out and "rookery resume cut\n" in answer.out
    assert "a second signal leaves at once" in answer.out and signal.getsignal(number) is not None
    result = json.loads((rookery.directory / "runs/cut/result.json").read_text())
    assert result["status"] == "stopped" and result["reason"] == number.name
    saved = max((rookery.directory / "runs/cut/checkpoints").glob("update-*"))
    assert int(saved.name.split("-")[1]) == result["updates"], "what was told is what was saved"
    assert result["trained_steps"] == result["env_steps"], "all that was collected was learned from"


def interrupt_after(monkeypatch, advances, number):
    advance, calls = Trainer.advance, []

    def advance_and_interrupt(self):
        calls.append(1)
        if len(calls) == advances:
            os.kill(os.getpid(), number)
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", advance_and_interrupt)


def test_a_reader_that_goes_away_does_not_end_training(tmp_path):
    words = ["train", "a2c", "--env", "identity", *SMALL, "--total-steps", "320", "--run", "piped"]
    script = f"{sys.executable} -m rookery.cli {shlex.join(words)} | head -n 1; exit ${{PIPESTATUS[0]}}"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert json.loads((tmp_path / "runs/piped/result.json").read_text())["status"] == "done"


@pytest.mark.parametrize("system", ["ppo", "dqn"])
def test_it_learns_as_a_user_has_it_compiled(system, tmp_path):
    """Without the flags by which tests compile quickly (tests/conftest.py)."""
    words = ["train", system, "--env", "identity", "--stop-eval-return", "8", "--eval-every", "20", "--total-steps", "40000"]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "rookery.cli", *words, "--run", "plain", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds_to_target"] is not None, done.stdout
    assert f'"{startup.CPU_FLAGS[0]}"' in (written := (tmp_path / "runs/plain/config.json").read_text())
    assert "optimization_level" not in written and "emitters" not in written
