"""Names of other libraries are answered with ours, from the command line and from Python; every answer is there."""


import dataclasses

import pytest

from rookery import foreign_names, systems
from rookery.envs.atari import AtariOptions
from rookery.envs.options import NAMES
from rookery.run import config, options
from rookery.run.config import ConfigError, resolve
from rookery.systems import UnknownSystem

TYPED = {  # system, what is typed -> what is said
    ("ppo", "--gamma"): "--gamma is --discount here",
    ("ppo", "--lr"): "--lr is --learning-rate here",
    ("ppo", "--n-steps"): "--n-steps is --rollout-length here",
    ("dqn", "--n-envs"): "--n-envs is --num-envs here",
    ("ppo", "--ent-coef"): "--ent-coef is --entropy-cost here",
    ("ppo", "--ent_coef"): "--ent-coef is --entropy-cost here",
    ("a2c", "--vf-coef"): "--vf-coef is --value-cost here",
    ("ppo", "--timesteps"): "--timesteps is --total-steps here",
    ("ppo", "--total-timesteps"): "--total-timesteps is --total-steps here",
    ("impala", "--num-workers"): "--num-workers is --collectors here (--env-processes steps",
    ("ppo", "--batch-size"): "--batch-size is --minibatches here",
    ("ppo", "--clip-range"): "--clip-range is --clip here",
    ("dqn", "--clip-range"): "--clip-range would be --clip here, but dqn has no such option",
    ("dqn", "--target-update-interval"): "--target-update-interval is --target-period here (in updates)",
    ("dqn", "--buffer-size"): "--buffer-size is --replay.capacity here",
    ("dqn", "--learning-starts"): "--learning-starts is --replay.min-size here",
    ("ppo", "--entropy-coeff"): "--entropy-coeff is --entropy-cost here",
    ("ppo", "--num-sgd-iter"): "--num-sgd-iter is --epochs here",
    ("appo", "--train-for-env-steps"): "--train-for-env-steps is --total-steps here",
    ("ppo", "--use-rnn"): "--use-rnn is --network.core here (lstm or gru)",
    ("ppo", "--verbose"): "--verbose is no option: a run shows how it goes; --json is quiet",
    ("ppo", "--n-stack"): "--n-stack is an option of the environment: --env-options frame_stack=4",
    ("ppo", "--keep-checkpoints"): "--keep-checkpoints is --keep here",
}


@pytest.mark.parametrize("system, word", TYPED)
def test_a_flag_of_another_library_is_answered_with_ours(system, word):
    with pytest.raises(ConfigError) as refused:
        options.parse("rookery train", [word, "1"], resolve(system, env="identity"))
    assert TYPED[system, word] in str(refused.value)


def test_all_of_them_are_answered_at_once_with_and_without_an_equals_sign():
    words = ["--gamma", "0.9", "--lr=1e-3", "--num-envs", "4", "--ent-coef", "0"]
    with pytest.raises(ConfigError) as refused:
        options.parse("rookery train", words, resolve("ppo", env="identity"))
    assert str(refused.value).splitlines()[-3:] == [
        "--gamma is --discount here", "--lr is --learning-rate here", "--ent-coef is --entropy-cost here"
    ]  # fmt: skip


def test_python_is_answered_in_its_own_words_and_at_once():
    with pytest.raises(ConfigError) as refused:
        resolve("ppo", env="identity", lr=1e-3, n_steps=5, network={"hidden_sizes": (4,)})
    assert str(refused.value).splitlines() == ["lr is learning_rate here.", "n_steps is rollout_length here (steps of each "
                                               "environment in a rollout)."]  # fmt: skip


def names_of(system):
    cfg = resolve(system, env="jax:catch" if system.startswith("anakin") else "identity")
    return known(cfg) | {"env", "env_options", "resume", "seeds", "config"}


def known(cfg):
    return options.names(cfg)


def test_every_answer_is_an_option_of_some_system_and_no_name_of_ours_is_taken_for_theirs():
    of_envs = {f"env_options.{name}" for name in (*NAMES, *(f.name for f in dataclasses.fields(AtariOptions)))}
    ours = set().union(*(names_of(system) for system in systems.SYSTEMS)) | of_envs | {"wandb"}
    answers = [name for found in foreign_names.OPTIONS.values() for answer in found for name in answer.ours]
    assert set(answers) <= ours
    for system in systems.SYSTEMS:
        for name in names_of(system):
            assert foreign_names.option(name, names_of(system), flags=True, owner=system) is None


SPELLINGS = {
    "PPO": "ppo", "A2C": "a2c", "DQN": "dqn", "Ape-X": "apex-dqn", "apex": "apex-dqn", "IMPALA": "impala", "APPO": "appo",
    "SampleFactory": "sample-factory", "sample_factory": "sample-factory", "R2D2": "r2d2", "REINFORCE": "pg",
    "Rainbow": "rainbow", "A3C": "a3c",
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_system_may_be_spelt_as_others_spell_it(name):
    assert systems.system(name).name == SPELLINGS[name]
    assert resolve(name, env="identity").system == SPELLINGS[name]


def test_the_spellings_and_what_is_recommended_are_systems():
    assert set(foreign_names._SPELLINGS.values()) <= set(systems.SYSTEMS)
    assert {told[0] for told in foreign_names._ABSENT.values()} <= set(systems.SYSTEMS)


ABSENT = {
    "tqc": ("continuous actions", "rookery train sac --env Pendulum-v1"), "MPO": ("td3",), "DroQ": ("--update-ratio 20",),
    "awac": ("qt-opt",), "muzero": ("boards and games",), "AlphaZero": ("boards",), "DreamerV3": ("model",),
    "QR-DQN": ("rainbow",), "CQL": ("r2d3",), "RecurrentPPO": ("--network.core lstm",), "MAPPO": ("several agents",),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_there_yet_is_said_with_what_does_its_work_today(name):
    with pytest.raises(UnknownSystem) as refused:
        systems.system(name, "Pendulum-v1")
    assert f"{name} is not there" in str(refused.value) and all(part in str(refused.value) for part in ABSENT[name])


def test_an_old_run_says_keep_checkpoints_and_is_read():
    saved = resolve("ppo", env="identity", keep=7).to_dict()
    saved["run"]["keep_checkpoints"] = saved["run"].pop("keep")
    assert config.from_dict(saved).run.keep == 7


