"""PPO, A2C and PG on Sync learn what the toys ask for, and do not when the sign of the policy's loss is flipped."""

import pytest
from toy_runs import assert_flipping_is_seen, assert_learned, case, play

from rookery.algorithms import a2c, pg, ppo

PPO = case("ppo", "identity", 7.0, num_envs=16, rollout_length=16, learning_rate=3e-3, total_steps=10_000)
A2C = case("a2c", "identity", 7.0, num_envs=16, learning_rate=5e-3, total_steps=15_000)
PG = case("pg", "identity", 7.0, num_envs=16, rollout_length=16, learning_rate=1e-2, total_steps=15_000)
CASES = [
    PPO,
    case("ppo", "catch", 0.8, num_envs=32, rollout_length=18, learning_rate=3e-3, total_steps=40_000),
    case("ppo", "jax:catch", 0.8, num_envs=32, rollout_length=18, learning_rate=3e-3, total_steps=40_000),
    case("ppo", "dict-obs", 7.0, num_envs=32, rollout_length=16, learning_rate=3e-3, total_steps=40_000),
    case(
        "ppo", "point-reach", -6.0, num_envs=32, rollout_length=20, learning_rate=3e-3, total_steps=100_000,
        squash=True, normalise_observations=True, normalise_rewards=True,
    ),
    A2C,
    case("a2c", "masked", 6.6, num_envs=32, learning_rate=5e-3, total_steps=120_000),
    PG,
    case("pg", "multi-binary", 6.8, num_envs=16, rollout_length=16, learning_rate=1e-2, total_steps=60_000),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_learns(case, tmp_path):
    assert_learned(case, play(case, tmp_path))


@pytest.mark.parametrize("case, module", [(PPO, ppo), (A2C, a2c), (PG, pg)], ids=["ppo", "a2c", "pg"])
def test_a_flipped_sign_unlearns(case, module, monkeypatch, tmp_path):
    assert_flipping_is_seen(case, monkeypatch, module, tmp_path)


def test_the_greedy_policy_that_a_run_returns_is_the_one_it_learned(tmp_path):
    """The evaluation at the end, on environments of its own, and the policy as a function of one observation."""
    import rookery

    result = rookery.train("ppo", env="identity", runs=str(tmp_path), eval_episodes=16, **PPO.options)
    assert result.metrics["eval_return_mean"] == 8.0
    assert [int(result.policy(symbol)[0]) for symbol in range(4)] == [0, 1, 2, 3]
