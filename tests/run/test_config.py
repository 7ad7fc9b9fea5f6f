"""A config is resolved from a name or a Python object, checked, written down, and typed again from what was written."""

import dataclasses
import json
import shlex

import gymnasium
import pytest

from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.run import config, options, startup
from rookery.run.assemble import assemble
from rookery.run.config import ConfigError, resolve
from rookery.run.words import text, value_of
from rookery.systems import SYSTEMS, TOPOLOGIES, flag_of, topology_named
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.sync import Sync

TYPED = {
    "nothing": ("ppo", {}, {}),
    "numbers": ("impala", {"learning_rate": 1e-3, "total_steps": 5, "seed": 7, "num_envs": 16, "stop_return": 12.5}, {}),
    "switches": ("ppo", {"anneal": False, "normalise_rewards": True, "tensorboard": True}, {}),
    "None": ("ppo", {"value_clip": None, "seconds": 3.0}, {}),
    "network": ("a2c", {"network": {"hidden": (32, 16), "core": "gru"}}, {}),
    "no layers": ("a2c", {"network": {"hidden": ()}}, {}),
    "choices": ("appo", {"variant": "target-policy", "reward_clip": "unit"}, {}),
    "a range": ("impala", {"collectors": "2..4"}, {}),
    "words to quote": ("pg", {"runs": "my runs/of 'today'", "run": "x"}, {}),
    "environment": ("ppo", {}, {"symbols": 4, "flag": True, "name": "a b", "number": "7", "sizes": [1, 2]}),
}


@pytest.mark.parametrize("system, given, env_options", TYPED.values(), ids=TYPED.keys())
def test_the_command_of_a_config_gives_an_equal_config(system, given, env_options):
    before = resolve(system, env="identity", env_options=env_options, **given)
    words = shlex.split(config.command(before))
    assert words[:3] == ["rookery", "train", system]
    after, flags = options.parse("rookery train", words[3:], resolve(system, env=words[4]))
    assert after == before.settled() and flags == {"json": False}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_config_survives_its_file(system):
    before = resolve(system, env="CartPole-v1", seed=4, network={"core": "lstm"})
    saved = json.loads(json.dumps(before.to_dict()))
    assert config.from_dict(saved) == before
    assert saved["machine"] == startup.machine() and saved["custom"] == []


def test_flags_of_the_machine_are_in_the_config_and_nothing_else_of_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/home/me/secret --xla_b=2 --xla_a=1")
    monkeypatch.setenv("API_TOKEN", "sentinel")
    text = json.dumps(resolve("ppo", env="identity").to_dict())
    assert startup.machine()["xla_flags"] == ["--xla_a=1", "--xla_b=2"]
    assert "sentinel" not in text and "secret" not in text


def test_an_algorithm_of_rookery_brings_the_topology_of_its_system():
    assert resolve(VTrace(), env="identity").system == "impala"
    assert isinstance(resolve(VTrace(), env="identity").topology, ActorLearner)
    assert isinstance(resolve(PPO(clip=0.3), env="identity").topology, Sync)
    repeated = config.command(resolve(PPO(clip=0.3), env="CartPole-v1"))
    assert "--clip 0.3" in repeated and "--num-envs 8" in repeated, "said against the preset of that environment"


def test_another_topology_keeps_what_fits_it():
    mixed = resolve("impala", env="identity", topology=Sync(), collectors=2, num_envs=4)
    assert mixed.topology == Sync(collectors=2, num_envs=4)
    assert config.command(mixed) == "rookery train impala --env identity --topology sync --num-envs 4 --collectors 2"
    assert config.from_dict(mixed.to_dict()) == mixed


def test_every_topology_has_a_name_to_type():
    for class_name in TOPOLOGIES:
        assert topology_named(flag_of(class_name)).__name__ == class_name


class Custom(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine:
    rollout_length: int = 4
    score: object = print

    def build(self, spec, **given):
        raise NotImplementedError


def test_what_is_custom_is_named_where_it_has_a_name_and_must_be_passed_again_where_not():
    made = resolve(Mine(), env=Custom, torso=(print, print))
    saved = json.loads(json.dumps(made.to_dict()))
    assert saved["custom"] == ["env", "algorithm", "torso"] and saved["system"] == "Mine" and saved["env"] == "Custom"
    assert saved["references"] == {"env": f"{__file__}:Custom", "algorithm": f"{__file__}:Mine"}
    assert config.command(made).startswith("# made in Python with torso of its own")
    with pytest.raises(ConfigError, match=r"algorithm of its own.*rookery.load\(run, algorithm='.*test_config.py:Mine'\)"):
        config.from_dict(saved, env=Custom, torso=(print, print))
    assert config.from_dict(saved, env=Custom, torso=(print, print), algorithm=Mine()) == made
    assert config.from_dict(saved, torso=(print, print), names=saved["references"]).algorithm == Mine()


def test_values_that_no_file_holds_are_named_or_must_be_passed_again():
    for score, lost in ((print, False), (max, False), (lambda: 0, True)):
        made = resolve(Mine(score=score, rollout_length=6), env="identity")
        saved = json.loads(json.dumps(made.to_dict()))
        if lost:
            assert made.lost == ("algorithm.score",)
            with pytest.raises(ConfigError, match=r"algorithm.score of its own.*algorithm="):
                config.from_dict(saved, names=saved["references"])
        else:
            assert config.from_dict(saved, names=saved["references"]).algorithm == made.algorithm
        assert config.from_dict(saved, algorithm=made.algorithm).algorithm == made.algorithm


def test_a_class_of_the_users_can_travel_with_all_that_is_in_it():
    resolve(Mine(), env="identity", rollout_length=3)
    assert "__msgspec_cache__" not in vars(Mine), "it cannot be pickled, and Ray's actors get the class itself"


def test_an_algorithm_takes_the_place_of_a_systems_own_and_keeps_its_topology():
    made = resolve("impala", algorithm=Mine, env="CartPole-v1", collectors=2)
    assert made.system == "Mine" and made.algorithm == Mine(), "presets speak of the system's own algorithm"
    preset = resolve("impala", env="CartPole-v1")
    assert made.topology == ActorLearner(num_envs=preset.topology.num_envs, groups=1, collectors=2)
    assert made.run.total_steps == preset.run.total_steps
    words = shlex.split(config.command(made))
    assert words[2:7] == [f"{__file__}:Mine", "--env", "CartPole-v1", "--topology", "actor-learner"]


WRONG = {
    "name": ({"learning_rat": 1.0}, "Did you mean 'learning_rate'"),
    "nested name": ({"network": {"hiden": (3,)}}, "Did you mean 'hidden'"),
    "type": ({"learning_rate": "fast"}, "learning_rate"),
    "choice": ({"network": {"core": "lstn"}}, "lstn"),
    "range": ({"collectors": 0}, "--collectors 0"),
    "seed": ({"seed": -1}, "--seed -1"),
    "time": ({"seconds": -2.0}, "--seconds -2"),
    "lag": ({"topology": ActorLearner()}, "PPO may learn from data at most 0 updates old.*Sync.*APPO"),
    "shares": ({"num_envs": 6, "collectors": 4}, "--num-envs 4"),
}


@pytest.mark.parametrize("given, said", WRONG.values(), ids=WRONG.keys())
def test_a_config_that_cannot_be_right_is_refused_with_the_reason(given, said):
    with pytest.raises(ConfigError, match=said):
        assemble(resolve("ppo", env="identity", **given))


def test_a_mistake_of_the_users_own_code_is_not_taken_for_a_wrong_request():
    def broken(**options):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        assemble(resolve("ppo", env=broken))
    assert not isinstance(raised.value, ConfigError)


PYTHON_AND_JSON = {"False": False, "false": False, "True": True, "None": None, "null": None, "8": 8, "[1]": [1], "4x4": "4x4"}


@pytest.mark.parametrize(("word", "value"), PYTHON_AND_JSON.items())
def test_values_of_environment_options_are_pythons_or_jsons(word, value):
    assert value_of(word) == value and type(value_of(word)) is type(value)


@pytest.mark.parametrize("value", [False, None, 8, 0.5, "4x4", "False", "null", "8", "None", [1, "True"], {"a": None}])
def test_environment_options_are_read_as_they_were_written(value):
    assert value_of(text(value)) == value and type(value_of(text(value))) is type(value)
