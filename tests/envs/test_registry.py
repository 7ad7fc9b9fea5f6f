"""Ids: finding, suggesting, listing."""

from __future__ import annotations

import time

import gymnasium
import pytest

from rookery import envs
from rookery.envs import UnknownEnvironment, registry
from rookery.envs.toys import TOYS


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("cach", "catch"),
        ("ALE/Pnog-v5", "ALE/Pong-v5"),
        ("LunarLander-v9", "LunarLander-v3"),
        ("LunarLander-v2", "LunarLander-v3"),  # deprecated
        ("cue_recall", "cue-recall"),
    ],
)
def test_a_typo_is_answered_with_the_near_id(wrong, right):
    with pytest.raises(UnknownEnvironment, match=f"no environment '{wrong}': did you mean .*'{right}'"):
        envs.make(wrong, 1)


def test_an_id_like_no_other_is_answered_with_the_command_that_lists_them():
    with pytest.raises(UnknownEnvironment, match="rookery list envs"):
        envs.make("qqqqqqqqqqqq", 1)


@pytest.mark.parametrize(
    ("id", "extra"),
    [("ALE/Pong-v5", "atari"), ("PongNoFrameskip-v4", "atari"), ("LunarLander-v3", "box2d"), ("Ant-v5", "mujoco")],
)
def test_a_missing_extra_is_named(monkeypatch, id, extra):
    monkeypatch.setattr(registry, "_installed", lambda asked: asked != extra)
    with pytest.raises(UnknownEnvironment, match=rf"pip install 'rookery\[{extra}\]'"):
        envs.make(id, 1)


def test_the_catalogue_lists_toys_gymnasium_and_atari_quickly():
    envs.catalogue()  # imports ale_py
    started = time.perf_counter()
    infos = envs.catalogue()
    assert time.perf_counter() - started < 0.2
    ids = {info.id for info in infos}
    assert {*TOYS, "CartPole-v1", "ALE/Pong-v5", "jax:CartPole-v1"} <= ids and len(ids) == len(infos)
    assert all(info.summary for info in infos)
    for info in infos:
        assert info.source in ("toy", "jax") or info.id in gymnasium.registry, info.id
    extras = {info.id: info.extra for info in infos}
    assert (extras["LunarLander-v3"], extras["Ant-v5"], extras["ALE/Pong-v5"]) == ("box2d", "mujoco", "atari")


def test_without_atari_the_catalogue_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda extra: False)
    monkeypatch.setattr(gymnasium, "registry", {k: v for k, v in gymnasium.registry.items() if "ALE/" not in k})
    assert next(info for info in envs.catalogue() if info.source == "ale").summary.endswith("not installed")


def test_spec_of_gives_canonical_spaces_and_the_id():
    spec = envs.spec_of("catch", rows=6)
    assert spec.observation.shape == (6, 5) and spec.action.n == 3 and spec.id == "catch"


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        envs.make("catch", 0)
    with pytest.raises(ValueError, match="cannot be split into 3 groups"):
        envs.make("catch", 2, groups=3)
    with pytest.raises(ValueError, match="negative"):
        envs.make("catch", 2).reset(-1)
