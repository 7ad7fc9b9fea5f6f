"""DQN and each of its switches learn to catch, judged by greedy episodes, and do not when the sign of the loss is flipped."""

import os

import pytest

import rookery
from rookery.algorithms import dqn
from rookery.envs.toys import TOYS

OPTIONS = {
    "num_envs": 16, "rollout_length": 2, "batch_size": 64, "gradient_steps": 4, "learning_rate": 2e-3, "target_period": 50,
    "epsilon_steps": 4_000, "network": {"hidden": (32,), "activation": "relu"}, "value_range": (-1.25, 1.25),
    "replay": {"capacity": 20_000, "min_size": 500, "samples_per_insert": 8.0}, "total_steps": 40_000,
}  # fmt: skip
CASES = {
    "dqn": ("dqn", {}),
    "double dueling": ("dqn", {"double": True, "dueling": True}),
    "c51": ("dqn", {"num_atoms": 21}),
    "noisy": ("dqn", {"noisy": True}),
    "n-step prioritized": ("dqn", {"n_step": 3, "replay": OPTIONS["replay"] | {"selector": "prioritized"}}),
    "rainbow": ("rainbow", {"num_atoms": 11}),
    "ape-x": ("apex-dqn", {"rollout_length": 4, "groups": 1, "gradient_steps": 1}),
}


def play(directory, case, **changes):
    system, options = CASES[case]
    return rookery.train(
        system, env="catch", runs=str(directory), seed=int(os.environ.get("ROOKERY_TEST_SEED", "0")), stop_eval_return=0.9,
        eval_episodes=32, eval_every=changes.pop("eval_every", 100), checkpoint_every=10**6, **OPTIONS | options | changes,
    ).metrics  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learns_to_catch(case, tmp_path):
    metrics = play(tmp_path, case)
    assert metrics["seconds_to_target"] is not None, metrics  # what is in flight is learned from after it


def test_does_not_learn_when_the_loss_is_turned_around(tmp_path, monkeypatch):
    right = dqn.loss

    def wrong(*args, **parts):
        value, more = right(*args, **parts)
        return -value, more

    monkeypatch.setattr(dqn, "loss", wrong)
    metrics = play(tmp_path, "dqn", total_steps=4_000, max_gradient_norm=1.0)
    assert metrics["eval_return_mean"] < TOYS["catch"]().random_return + 0.5
