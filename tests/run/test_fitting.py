"""Periods are held against the length of the run."""

import dataclasses

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


@pytest.mark.parametrize("system", ["a2c", "impala", "seed"])
def test_rollouts_of_a_short_run_are_short_so_that_it_makes_enough_updates(system):
    rows = lambda **options: resolve(system, env="LunarLander-v3", **options).settled().algorithm.rollout_length
    assert rows(total_steps=480_000) == 20, "8 environments: 160 rows an update"
    assert rows(total_steps=10_000) == 16 and rows(total_steps=2_000_000) == 32, "within bounds"
    assert rows(total_steps=240_000, num_envs=4) == 20, "what counts are updates"
    assert rows(total_steps=200_000, rollout_length=5) == 5, "as it was given"
    assert rows(total_steps=200_000, network={"core": "lstm"}) == 32, "gradients reach back no further than a rollout"
    assert rows(total_steps=200_000, network={"heads": "shared"}) == 32, "one step on a batch wants a large one"
    board = resolve(system, env="catch", env_options={"rows": 8, "columns": 8}, total_steps=200_000)
    assert board.settled().algorithm.rollout_length == 32, "a convolution is shared"
    assert resolve(system, env="no-such-env", total_steps=200_000).settled().algorithm.rollout_length == 32, "refused later"


def test_a_run_keeps_the_rollout_length_that_it_began_with():
    first = resolve("a2c", env="LunarLander-v3", total_steps=480_000).settled()
    longer = dataclasses.replace(first, run=dataclasses.replace(first.run, total_steps=2_000_000))
    assert longer.settled().algorithm.rollout_length == first.algorithm.rollout_length == 20


def test_what_is_planned_of_a_run_counts_the_rollouts_that_it_will_have():
    config = resolve("a2c", env="LunarLander-v3", total_steps=480_000)
    assert config.algorithm.rollout_length is None
    assert (config.steps_per_update, config.num_updates) == (160, 3_000)


@pytest.mark.parametrize("system", ["a3c", "gala", "a2c", "impala"])
def test_a_recurrent_core_has_long_rollouts_unless_somebody_says_otherwise(system):
    lstm = {"core": "lstm"}
    length = lambda **options: resolve(system, env="cue-recall", **options).settled().algorithm.rollout_length
    assert length(network=lstm) == 32
    assert length(network=lstm, rollout_length=7) == 7
    if system == "gala":
        assert length() == 5, "without a core the published one stands"
