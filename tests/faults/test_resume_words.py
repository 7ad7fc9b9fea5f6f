"""What `resume`, `eval` and `train` answer when a run is not as expected: the status, the reason and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from small_runs import TINY, contents, half_trained, typed

from rookery import Trainer
from rookery.run import checkpoint
from rookery.run.checkpoint import CheckpointError
from rookery.run.config import ConfigError
from rookery.run.directory import Run
from rookery.run.records import sealed

WORDS = ("--num-envs", "4", "--network.hidden", "8", "--eval-episodes", "0", "--total-steps", "400")


def checked(answer, status, *said):
    assert answer.status == status and "Traceback" not in answer.err, answer
    for part in said:
        assert part in answer.err, answer.err


# ------------------------------------------------------------------------------------------ what is in the checkpoint


def test_a_checkpoint_of_another_network_is_status_5_and_its_leaves_are_named(run):
    described = {name: value for name, value in Run.open(run).config.items() if name != "digest"}
    described["config"]["algorithm"]["network"]["hidden"] = [16]
    (run / "config.json").write_bytes(sealed(described))
    before = contents(run)
    checked(typed(run.parents[1], "eval", "a2c"), 5, "kernel has shape (4, 8), this agent's has (4, 16)", "update-0000000002")
    checked(typed(run.parents[1], "resume", "a2c"), 5, "--network.hidden [16] (the checkpoint's: [8])")
    assert contents(run) == before


def rewritten(run, change):
    """The newest checkpoint with another content, every digest right."""
    path = checkpoint.newest(run / "checkpoints")[0]
    tree, meta = checkpoint.load(path)
    change(tree, meta)
    checkpoint.save(path, tree, meta=meta)


def without(*names):
    def change(tree, meta):
        for name in names[:-1]:
            tree = tree[name]
        del tree[names[-1]]

    return change


def other_shape(tree, meta):
    state = tree["topology"]["policies"]["main"]["state"]
    name = next(name for name in state if name.endswith("kernel"))
    state[name] = state[name][:, :-1]


WRONG = {
    "no topology": without("topology"), "no trainer": without("trainer"), "no learner": without("topology", "policies"),
    "no collectors": without("topology", "workers"), "no meters": without("topology", "meters"),
    "no queue": without("topology", "tables"), "a leaf of another shape": other_shape,
    "text for a number": lambda tree, meta: tree["topology"]["meters"].update(updates="two"),
    "a list": lambda tree, meta: tree.update(topology=[1, 2]),
    "fewer collectors": lambda tree, meta: tree["topology"].update(workers={"collector": []}),
    "fewer environments": lambda tree, meta: tree["topology"]["workers"]["collector"][0].update(steps=np.zeros(2, np.int64)),
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_right_digests_around_a_wrong_content_are_status_5_and_change_nothing(run, change):
    rewritten(run, change)
    before = contents(run)
    checked(typed(run.parents[1], "resume", "a2c"), 5, "is whole, but does not hold what its config says", "update-0000000002")
    assert contents(run) == before


@pytest.mark.parametrize("change", [WRONG["no topology"], WRONG["no learner"], other_shape, lambda tree, meta: meta.clear()])
def test_so_they_are_for_eval(run, change):
    rewritten(run, change)
    checked(typed(run.parents[1], "eval", "a2c"), 5, "is whole, but does not hold what its config says")


def test_a_best_policy_with_a_wrong_content_is_lost_and_nothing_else(run, caplog):
    checkpoint.save(run / "checkpoints/best", {"params": [1]}, meta={"kind": "policy"})
    checked(typed(run.parents[1], "eval", "a2c", "--which", "best"), 5, "is whole, but does not hold what its config says")
    checked(typed(run.parents[1], "resume", "a2c"), 0)
    assert "the best policy so far is lost" in caplog.text


def test_a_run_keeps_its_name_and_a_trainer_of_another_goes_on_from_its_checkpoint(run, tmp_path):
    checked(typed(run.parents[1], "resume", "a2c", "--run", "b"), 2, "--run b: a run goes on in its own directory", "is a2c")
    with Trainer("a2c", env="identity", runs=str(tmp_path), run="b", **TINY) as trainer:
        trainer.restore(run)
        assert trainer.save().parts[-3:-1] == ("b", "checkpoints")


def test_in_python_another_shape_is_refused_as_well(made, tmp_path):
    options = {"env": "identity", "runs": str(tmp_path), "eval_episodes": 0, "network": {"hidden": (8,)}}
    with pytest.raises(ConfigError, match=r"--num-envs 16 \(the checkpoint's: 4\)"):
        Trainer("a2c", num_envs=16, total_steps=400, run="a2c", **options).restore(made)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ before the first one


def test_a_run_that_was_killed_before_its_first_checkpoint_is_to_be_started_anew(tmp_path):
    with pytest.raises(KeyboardInterrupt), Trainer("a2c", env="identity", runs=str(tmp_path / "runs"), run="r") as trainer:
        trainer.show(json=True)
        raise KeyboardInterrupt
    command = json.loads((tmp_path / "runs/r/config.json").read_text())["command"]
    said = f"ended before its first checkpoint, so there is nothing to go on from: start it anew, `rm -r runs/r && {command}`"
    checked(typed(tmp_path, "resume", "r"), 5, said)
    checked(typed(tmp_path, "eval", "r"), 5, said)
    checked(typed(tmp_path, "train", "a2c", "--env", "identity", "--run", "r"), 2, "already holds a run", said)
    with Run.open(tmp_path / "runs/r") as running:
        running.lock()
        checked(typed(tmp_path, "eval", "r"), 5, "It is being trained and has none yet: wait for it")
    with pytest.raises(CheckpointError, match="nothing to go on from"):
        Trainer("a2c", env="identity", runs=str(tmp_path / "runs")).restore(tmp_path / "runs/r")


# --------------------------------------------------------------------------------------------------- what is logged


def test_a_resume_with_the_same_options_tells_of_no_others_and_one_with_others_of_these(run):
    assert typed(run.parents[1], "resume", "a2c").status == 0
    log = run / "log.txt"
    assert not log.exists() or "goes on" not in log.read_text()
    assert typed(run.parents[1], "resume", "a2c", "--total-steps", "800", "--entropy-cost", "0.5").status == 0
    (line,) = [line for line in log.read_text().splitlines() if "goes on" in line]
    assert line.endswith("with --entropy-cost 0.5 (the run's: 0.001), --total-steps 800 (the run's: 400)")


# --------------------------------------------------------------------------------------------- the first restored step


class Moody(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    broken = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if Moody.broken:
            raise RuntimeError("not today")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.fixture
def moody(tmp_path):
    """A run whose environment can neither be saved nor be relied on."""
    if "Moody-v0" not in gymnasium.registry:
        gymnasium.register("Moody-v0", entry_point=Moody)
    return half_trained(tmp_path / "runs", "a2c", env="Moody-v0", env_processes=0, env_restarts=0)


def test_episodes_that_could_not_be_saved_are_said_to_be_cut(tmp_path, moody):
    said = "Moody-v0 cannot be saved: the 4 episodes that were being played were cut"
    answer = typed(tmp_path, "resume", "a2c")
    assert answer.status == 0 and said in answer.out and said in (moody / "log.txt").read_text(), answer


def test_episodes_that_were_saved_are_not(run):
    answer = typed(run.parents[1], "resume", "a2c")
    assert answer.status == 0 and "were cut" not in answer.out


def test_a_first_step_that_fails_leaves_the_run_as_it_was(tmp_path, moody, monkeypatch):
    before = contents(moody)
    monkeypatch.setattr(Moody, "broken", True)
    checked(typed(tmp_path, "resume", "a2c", "--total-steps", "800", "--tensorboard"), 3, "not today")
    assert contents(moody) == before
    monkeypatch.undo()
    assert typed(tmp_path, "resume", "a2c").status == 0


# ---------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_a_closed_stream_does_not_change_the_status_and_no_file_takes_its_place(tmp_path, closed):
    words = f"train a2c --env identity {' '.join(WORDS)} --run r"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    script = f"{sys.executable} -m rookery.cli {words} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0 and done.stderr == "", done
    assert json.loads((tmp_path / "runs/r/result.json").read_text())["status"] == "done"
    assert all(json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines())
    assert (tmp_path / "runs/r/lock").read_text().startswith("process ")
