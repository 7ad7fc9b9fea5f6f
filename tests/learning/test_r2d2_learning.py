"""R2D2 names a cue that it saw eight steps ago, by greedy episodes; a DQN, which has no memory, cannot."""

import os

import rookery
from rookery.envs.toys import TOYS

SHARED = {
    "env": "cue-recall", "num_envs": 16, "target_period": 50, "learning_rate": 3e-3, "discount": 0.95, "eval_episodes": 64,
    "checkpoint_every": 10**6, "stop_eval_return": 0.95,
}  # fmt: skip
R2D2 = {
    "groups": 1, "rollout_length": 10, "burn_in": 10, "sequence_length": 20, "batch_size": 32, "n_step": 5,
    "adam_epsilon": 1e-5, "network": {"hidden": (16,), "core": "lstm", "core_size": 16}, "eval_every": 50,
    "total_steps": 60_000, "replay": {"capacity": 20_000, "min_size": 100, "samples_per_insert": 4.0},
}  # fmt: skip
DQN = {
    "rollout_length": 2, "batch_size": 64, "gradient_steps": 4, "network": {"hidden": (16,)}, "epsilon_steps": 2_000,
    "eval_every": 50, "total_steps": 8_000, "replay": {"capacity": 20_000, "min_size": 500},
}  # fmt: skip


def play(system, directory, options):
    seed = int(os.environ.get("ROOKERY_TEST_SEED", "0"))
    return rookery.train(system, runs=str(directory), seed=seed, **SHARED | options).metrics


def test_r2d2_recalls_the_cue(tmp_path):
    metrics = play("r2d2", tmp_path, R2D2)
    assert metrics["seconds_to_target"] is not None, metrics  # what is in flight is learned from after it


def test_r2d2_learns_to_catch(tmp_path):
    network = {"hidden": (32,), "core": "lstm", "core_size": 32}
    changes = {"env": "catch", "burn_in": 0, "network": network, "stop_eval_return": 0.9, "total_steps": 30_000}
    metrics = play("r2d2", tmp_path, R2D2 | changes | {"replay": R2D2["replay"] | {"samples_per_insert": 8.0}})
    assert metrics["seconds_to_target"] is not None, metrics


def test_dqn_does_not(tmp_path):
    metrics = play("dqn", tmp_path, DQN)
    assert metrics["eval_return_mean"] < TOYS["cue-recall"]().random_return + 0.25, metrics
