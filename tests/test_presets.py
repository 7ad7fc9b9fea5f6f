"""Presets: which environments they are for, and that everything they say can be built."""

import dataclasses
import json
import re
import shlex

import gymnasium
import jax
import numpy as np
import pytest

from rookery import ops, systems
from rookery.envs.options import NAMES
from rookery.run import config, options, show
from rookery.run.config import RunOptions, resolve
from rookery.systems import PRESETS, SYSTEMS, Preset, family_of
from rookery.types import Spec

spaces = gymnasium.spaces
FAMILY = {
    "ALE/Pong-v5": "atari",
    "ALE/KeystoneKapers-v5": "atari",
    "PongNoFrameskip-v4": "atari",
    "PongNoFrameskip-v0": "atari",
    "Pong-v4": "atari",
    "Pong-v0": "atari",
    "PongDeterministic-v4": "atari",
    "envpool:Pong-v5": "atari",
    "envpool:MontezumaRevenge-v5": "atari",
    "ALE/Pong-ram-v5": None,
    "Pong-ram-v4": None,
    "Pong-ramNoFrameskip-v4": None,
    "Pong-v1": None,
    "Taxi-v4": None,
    "CartPole-v0": None,
    "Blackjack-v1": None,
    "gymnax:Breakout-MinAtar": "minatar",
    "gymnax:SpaceInvaders-MinAtar": "minatar",
    "pgx:minatar-breakout": "minatar",
    "pgx:minatar-space_invaders": "minatar",
    "MinAtar/Breakout-v1": "minatar",
    "gymnax:CartPole-v1": None,
    "pgx:2048": None,
    "": None,
}


@pytest.mark.parametrize("env", FAMILY)
def test_an_id_belongs_to_its_family(env):
    assert family_of(env) == FAMILY[env]


@pytest.mark.parametrize("env", [env for env, family in FAMILY.items() if family == "atari"])
def test_every_atari_id_finds_the_presets_of_atari_and_raw_frames_a_smaller_replay(env):
    assert systems.defaults("impala", env) == systems.defaults("impala", "ALE/Breakout-v5") != {}
    raw = env in ("Pong-v0", "Pong-v4", "PongDeterministic-v4")
    assert systems.defaults("dqn", env)["replay"]["capacity"] == (50_000 if raw else 200_000)
    assert bool(systems.env_options("dqn", env)) == raw


def test_the_memory_of_a_game_is_no_image_and_finds_none():
    assert systems.defaults("impala", "ALE/Pong-ram-v5") == systems.SYSTEMS["impala"].defaults


@pytest.mark.parametrize("source", ["jax", "envpool", "gymnax"])
def test_whoever_steps_an_environment_the_preset_is_the_same(source):
    for env in ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v4"):
        for system in SYSTEMS:
            assert systems.defaults(system, f"{source}:{env}") == systems.defaults(system, env)


def test_all_presets_that_fit_are_taken_and_the_later_come_on_top(monkeypatch):
    theirs = (
        Preset(
            ("dqn",), "atari", {"n_step": 2, "epsilon": 0.3, "replay": {"stack": 4, "capacity": 9}}, {"stack": 2, "fire": False}
        ),
        Preset(("dqn",), "ALE/Pong*", {"n_step": 7, "replay": {"capacity": 5}}, {"stack": 3}),
        Preset(("ppo",), "ALE/Pong*", {"clip": 0.9}, {"stack": 9}),
    )
    monkeypatch.setattr(systems, "PRESETS", theirs)
    assert systems.defaults("dqn", "ALE/Pong-v5") == {
        **SYSTEMS["dqn"].defaults, "n_step": 7, "epsilon": 0.3, "replay": {"stack": 4, "capacity": 5},
    }
    assert systems.env_options("dqn", "ALE/Pong-v5") == {"stack": 3, "fire": False}
    assert systems.defaults("dqn", "ALE/Hero-v5")["n_step"] == 2 and systems.env_options("dqn", "ALE/Hero-v5")["stack"] == 2


# ------------------------------------------------------------------------------------------- what presets say


@pytest.mark.parametrize("index", range(len(PRESETS)), ids=[f"{p.systems[0]}, {p.env}" for p in PRESETS])
def test_a_preset_speaks_of_options_that_its_systems_have(index):
    """`resolve` leaves out what a part does not have, because another topology may be asked for: a typo would go unseen."""
    preset = PRESETS[index]
    for system in preset.systems:
        parts = (SYSTEMS[system].algorithm_class(), SYSTEMS[system].topology_class(), RunOptions)
        names = {field.name for part in parts for field in dataclasses.fields(part)}
        assert set(preset.options) <= names, (system, set(preset.options) - names)
    assert set(preset.env_options) <= set(NAMES), "what every pool has: a family is stepped by more than one"


ATARI = Spec(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6), "ALE/Pong-v5")
MINATAR = Spec(spaces.Box(0, 1, (10, 10, 4), np.bool_), spaces.Discrete(3), "gymnax:Breakout-MinAtar")


def built(system, spec):
    """(config, agent, the shapes of its state), without compiling or making an environment."""
    cfg = resolve(system, env=spec.id)
    agent = cfg.algorithm.build(spec, num_updates=cfg.num_updates)
    config.check(cfg, agent, spec)
    return cfg, agent, jax.eval_shape(agent.init, ops.random.key(0))


CHOOSING = [name for name in SYSTEMS if not name.startswith("anakin") and name not in ("ddpg", "td3", "apex-dpg", "qt-opt")]


@pytest.mark.parametrize("system", CHOOSING)
def test_every_system_has_a_preset_for_atari_that_builds_and_fits_into_memory(system):
    cfg, agent, state = built(system, ATARI)
    assert cfg.run.total_steps >= 10_000_000
    networks = state.params["network"] if "network" in state.params else state.params["critic"]  # whose encoder an actor shares
    encoder = next(part for name, part in networks.items() if name.endswith("encoder"))
    assert encoder["image_0"]["conv_0"]["kernel"].shape[:3] == (8, 8, 4)
    assert cfg.topology.steps_per_update(cfg.algorithm) <= 64_000
    facts = cfg.topology.plan({"main": agent}, ATARI).facts
    for tables, megabytes in re.findall(r"(?:(\d+) × )?[\d,]+ steps in ([\d,]+) MB", facts.get("replay", "")):
        assert int(tables or 1) * int(megabytes.replace(",", "")) < 2_000
    keeps = hasattr(cfg.algorithm, "replay") and not getattr(cfg.algorithm, "fresh", False)
    assert ("replay" in facts) == keeps


@pytest.mark.parametrize("system", ["ppo", "a2c", "impala", "dqn", "rainbow", "anakin-ppo", "anakin-dqn"])
def test_presets_for_minatar_build(system):
    cfg, _, state = built(system, MINATAR)
    assert cfg.run.total_steps >= 5_000_000 and cfg.algorithm.network.encoder == "small"
    assert state.params["network"]["encoder"]["image_0"]["conv_0"]["kernel"].shape == (3, 3, 4, 16)


# ------------------------------------------------------------------------------------- options of the environment

RAW = {"grayscale": True, "frame_stack": 4}  # Pong-v4 is raw frames


def typed(cfg):
    words = shlex.split(config.command(cfg))
    return words, options.parse("rookery train", words[3:], resolve(cfg.system, env=words[4]))[0]


@pytest.mark.parametrize(
    "given, resolved, said",
    [
        ({}, RAW, None),
        ({"frame_stack": 2}, RAW | {"frame_stack": 2}, ["frame_stack=2"]),
        ({"mode": 1, "grayscale": False}, {"mode": 1, "grayscale": False, "frame_stack": 4}, ["grayscale=false", "mode=1"]),
        (RAW, RAW, None),
    ],
)
def test_options_of_the_environment_in_a_preset_lie_below_those_of_the_user(given, resolved, said):
    cfg = resolve("a2c", env="Pong-v4", env_options=given)
    assert cfg.env_options == resolved
    assert config.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg
    words, again = typed(cfg)
    assert again == cfg
    assert ("--env-options" in words) == (said is not None) and set(said or ()) <= set(words)


def test_a_run_without_what_a_preset_gives_is_repeated_without_it():
    bare = dataclasses.replace(resolve("a2c", env="Pong-v4"), env_options={})
    words, again = typed(bare)
    assert {"grayscale=false", "frame_stack=1"} <= set(words)
    assert again.env_options == {"grayscale": False, "frame_stack": 1}, "which is to say, neither"


def test_an_algorithm_that_is_passed_and_an_environment_of_the_users_have_no_preset():
    made = SYSTEMS["a2c"].algorithm_class()()
    assert resolve(made, env="Pong-v4").env_options == {}
    assert resolve("a2c", env=lambda: None).env_options == {}


def test_options_of_the_environment_are_shown(capsys):
    values, text = show.describe(resolve("a2c", env="catch", env_options={"frame_stack": 4, "rows": 8}))
    assert values["env_options"] == {"frame_stack": 4, "rows": 8} and "environment: frame_stack=4 rows=8" in text
    with pytest.raises(SystemExit):
        options.parse("rookery train a2c", ["--help"], resolve("a2c", env="Pong-v4"))
    assert "(default: grayscale=true frame_stack=4)" in " ".join(capsys.readouterr().out.replace("│", " ").split())
