"""IMPALA and APPO (both designs) on ActorLearner learn from data that is a little old; not with the sign flipped."""

import pytest
from toy_runs import assert_flipping_is_seen, assert_learned, case, play

from rookery.algorithms import ppo, vtrace

IMPALA = case(
    "impala", "identity", 7.0, num_envs=16, rollout_length=8, learning_rate=5e-3, rmsprop_epsilon=1e-5, total_steps=15_000
)
APPO = case("appo", "identity", 7.0, num_envs=16, rollout_length=8, learning_rate=3e-3, total_steps=20_000)
TARGET = {"variant": "target-policy", "clip": 0.4}
CASES = [
    IMPALA,
    case(
        "impala", "catch", 0.75, env_options={"rows": 6}, num_envs=16, rollout_length=10, learning_rate=5e-3,
        rmsprop_epsilon=1e-4, total_steps=80_000,
    ),
    APPO,
    case(
        "appo", "catch", 0.75, env_options={"rows": 6}, num_envs=16, rollout_length=10, learning_rate=3e-3,
        total_steps=60_000,
    ),
    case("appo", "multi-discrete", 6.8, num_envs=16, rollout_length=8, learning_rate=5e-3, total_steps=40_000, **TARGET),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_learns(case, tmp_path):
    metrics = play(case, tmp_path)
    assert_learned(case, metrics)
    assert metrics["policy_lag_mean"] > 0.1, "data was older than the parameters that learned from it"


@pytest.mark.parametrize("case, module", [(IMPALA, vtrace), (APPO, ppo)], ids=["impala", "appo"])
def test_a_flipped_sign_unlearns(case, module, monkeypatch, tmp_path):
    assert_flipping_is_seen(case, monkeypatch, module, tmp_path)
