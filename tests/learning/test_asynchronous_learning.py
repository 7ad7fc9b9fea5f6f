"""A3C, asynchronous Q-learning, GALA and GORILA learn from what is a little old; not with the sign flipped."""

import pytest
from toy_runs import assert_flipping_is_seen, assert_learned, case, play

from rookery.algorithms import a2c

A3C = case("a3c", "identity", 7.0, num_envs=16, workers=2, rollout_length=8, learning_rate=5e-3, total_steps=30_000)
CASES = [
    A3C,
    case(
        "async-dqn", "identity", 6.0, num_envs=16, workers=2, rollout_length=8, n_step=1, learning_rate=5e-3,
        exploration="anneal", epsilon_steps=5_000, target_period=20, total_steps=60_000,
    ),
    case("gala", "identity", 7.0, num_envs=16, peers=2, rollout_length=8, learning_rate=5e-3, total_steps=30_000),
    case(
        "gorila", "identity", 6.0, num_envs=8, workers=2, learning_rate=5e-3, epsilon_steps=2_000, target_period=20,
        batch_size=64, replay={"min_size": 200, "capacity": 5_000}, total_steps=20_000,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_learns(case, tmp_path):
    assert_learned(case, play(case, tmp_path))


def test_a_flipped_sign_unlearns(monkeypatch, tmp_path):
    assert_flipping_is_seen(A3C, monkeypatch, a2c, tmp_path)
