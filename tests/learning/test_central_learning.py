"""The systems of central inference learn a toy: V-trace, APPO with batches of two groups, R2D2 from its table."""

import os

import pytest
from test_r2d2_learning import R2D2, SHARED
from toy_runs import assert_learned, case, play

import rookery

CASES = [
    case(
        "seed", "identity", 7.0, num_envs=16, rollout_length=8, learning_rate=5e-3, rmsprop_epsilon=1e-5, total_steps=15_000
    ),
    case(
        "sample-factory", "identity", 7.0, num_envs=16, rollout_length=8, learning_rate=3e-3, groups=4, inference_batch=8,
        total_steps=20_000,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_learns(case, tmp_path):
    assert_learned(case, play(case, tmp_path))


def test_seed_r2d2_recalls_the_cue(tmp_path):
    seed = int(os.environ.get("ROOKERY_TEST_SEED", "0"))
    metrics = rookery.train("seed-r2d2", runs=str(tmp_path), seed=seed, **SHARED | R2D2 | {"groups": 2}).metrics
    assert metrics["seconds_to_target"] is not None, metrics  # what is in flight is learned from after it
