"""Periods are held against the length of the run."""

import pytest

from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.run.config import resolve
from rookery.run.fitting import fitted


def test_a_target_network_is_copied_at_least_fifty_times_in_a_run():
    assert fitted(R2D2(target_period=2_500), total_steps=10**6, num_updates=1_532).target_period == 30
    assert fitted(DQN(target_period=500, gradient_steps=8), total_steps=10**6, num_updates=1_000).target_period == 160
    assert fitted(DQN(target_period=500), total_steps=10**6, num_updates=10**6).target_period == 500, "as it was given"
    assert fitted(DQN(target_period=500), total_steps=10, num_updates=3).target_period == 1


def test_epsilon_is_annealed_over_a_tenth_of_the_run_and_never_over_more_than_half():
    steps = lambda given, total: fitted(DQN(epsilon_steps=given), total_steps=total, num_updates=10).epsilon_steps
    assert steps(None, 500_000) == 50_000
    assert steps(1_000_000, 500_000) == 250_000
    assert steps(10_000, 500_000) == 10_000


def test_an_algorithm_without_periods_is_left_alone():
    ppo = PPO()
    assert fitted(ppo, total_steps=10, num_updates=1) is ppo


@pytest.mark.parametrize("system", ["dqn", "rainbow", "apex-dqn", "r2d2", "async-dqn", "gorila", "anakin-dqn"])
@pytest.mark.parametrize("env", ["Acrobot-v1", "CartPole-v1", "ALE/Pong-v5"])
def test_every_system_copies_its_target_and_ends_its_exploration_in_a_short_run(system, env):
    config = resolve(system, env=env, total_steps=100_000)
    algorithm = config.fitted
    steps = config.num_updates * getattr(algorithm, "gradient_steps", 1)
    assert steps // algorithm.target_period >= min(50, steps)
    assert getattr(algorithm, "epsilon_steps", 0) <= 50_000
