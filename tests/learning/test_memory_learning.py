"""Naming a cue that is no longer shown: solved with an LSTM or a GRU, by PPO and by IMPALA, and by luck without memory."""

import pytest
from toy_runs import assert_learned, case, play

BAR = 0.9


def recall(system, core, **options):
    network = {"core": core, "core_size": 16, "hidden": (16,)}
    return case(system, "cue-recall", BAR, network=network, num_envs=32, **options)


def ppo(core):
    options = dict(env_options={"delay": 3}, rollout_length=16, learning_rate=2e-3, epochs=2, total_steps=30_000)
    return recall("ppo", core, **options)


def impala(core):
    options = dict(env_options={"delay": 2}, rollout_length=12, discount=0.9, total_steps=50_000)
    return recall("impala", core, learning_rate=1e-2, rmsprop_epsilon=1e-5, **options)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("system", [ppo, impala], ids=lambda system: system.__name__)
def test_a_cue_is_remembered(system, core, tmp_path):
    assert_learned(system(core), play(system(core), tmp_path))


def test_without_memory_half_of_it_is_luck(tmp_path):
    metrics = play(ppo("none"), tmp_path)
    assert metrics["env_steps"] >= 30_000 and metrics["return_mean"] < 0.75
