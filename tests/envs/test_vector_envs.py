"""VectorEnvs of the user's own: classes, functions and objects; answers are checked, a wrong autoreset is refused."""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import rookery
from rookery import envs
from rookery.envs import EnvironmentFailed, Restarts
from rookery.envs.pools.vector_envs import WrongAutoreset
from rookery.envs.pools.vectorised import VectorisedPool
from rookery.run.config import ConfigError, resolve
from rookery.testing import assert_next_step_autoreset, play, reference_episodes

SMALL = {"rollout_length": 8, "network": {"hidden": (8,)}}


class Counting(VectorEnv):
    """Counts to `limit`; the arrays are the same at each step."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    wrong: ClassVar = {}

    def __init__(self, num_envs=1, limit=3):
        self.num_envs, self.limit = num_envs, limit
        self.single_observation_space, self.single_action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.count, self.closed_by_pool = np.zeros((num_envs, 1), np.float32), False

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        self.ended = np.zeros(self.num_envs, bool)
        return self.count, {}

    def step(self, actions):
        self.count[:] = np.where(self.ended, 0, self.count[:, 0] + 1)[:, None]
        reward = np.where(self.ended, 0.0, 1.0)
        self.ended = self.count[:, 0] == self.limit
        answer = {"observation": self.count, "reward": list(reward), "terminated": self.ended, "truncated": 0 * self.ended}
        answer |= {name: wrong(self) for name, wrong in self.wrong.items()}
        return *answer.values(), {}

    def close(self, **kwargs):
        self.closed_by_pool = True


def make_counting(num_envs, limit=3):
    return Counting(num_envs, limit)


@pytest.mark.parametrize("env", [Counting, make_counting])
def test_a_class_or_a_function_of_num_envs_makes_the_environments_of_each_group(env):
    pool = envs.make(env, 5, groups=2, limit=4)
    assert isinstance(pool, VectorisedPool) and envs.chosen(env, 5, 1).why == "it has a pool of its own"
    steps, episodes = (played := play(pool, 14)).steps, played.episodes
    assert_next_step_autoreset(steps)
    assert [step.observation[0, 0] for step in steps[:7]] == [0, 1, 2, 3, 4, 0, 1]
    assert episodes == reference_episodes(steps) and {episode.length for episode in episodes} == {4}
    assert envs.spec_of(env).id == env.__name__


def test_what_was_answered_stays_though_the_arrays_are_the_same_at_each_step():
    pool = envs.make(Counting, 2)
    kept = [pool.reset(0)]
    for _ in range(3):
        pool.send(np.zeros(2, int))
        kept.append(pool.recv())
    assert [step.observation[0, 0] for step in kept] == [0, 1, 2, 3] and [step.terminated[0] for step in kept] == [0, 0, 0, 1]


def test_one_that_gymnasium_makes_is_asked_for_the_autoreset_that_is_needed():
    def cartpoles(num_envs, autoreset_mode=AutoresetMode.SAME_STEP):
        return gymnasium.make_vec(
            "CartPole-v1", num_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": autoreset_mode}
        )

    assert_next_step_autoreset(play(envs.make(cartpoles, 3), 40).steps)


MODES = {
    AutoresetMode.SAME_STEP: "resets in mode SAME_STEP;.*NEXT_STEP", AutoresetMode.DISABLED: "in mode DISABLED;.*NEXT_STEP",
    None: "does not say when it resets;.*metadata = {'autoreset_mode'",
}  # fmt: skip


@pytest.mark.parametrize(("mode", "said"), MODES.items())
def test_another_autoreset_is_refused_with_the_remedy(monkeypatch, mode, said):
    monkeypatch.setattr(Counting, "metadata", {} if mode is None else {"autoreset_mode": mode})
    with pytest.raises(WrongAutoreset, match=said):
        envs.make(Counting, 2)
    gymnasium.register("OnlyVector-v0", vector_entry_point=Counting)
    try:
        with pytest.raises(WrongAutoreset, match=said):
            envs.make("OnlyVector-v0", 2)
        monkeypatch.setattr(Counting, "metadata", {"autoreset_mode": AutoresetMode.NEXT_STEP})
        assert_next_step_autoreset(play(envs.make("OnlyVector-v0", 2), 8).steps)
    finally:
        del gymnasium.registry["OnlyVector-v0"]


def raises(env):
    raise OSError("the simulator is gone")


WRONG = {
    "observation": ({"observation": lambda env: env.count[:1]}, r"its observations have the shape \(1, 1\), and \(2, 1\)"),
    "reward": ({"reward": lambda env: 1.0}, r"its rewards are float64 of shape \(\), and \(2,\) numbers are expected"),
    "flags": ({"terminated": lambda env: [None, "x"]}, "its terminations are"),
    "raises": ({"reward": raises}, r"step\(\) of its VectorEnv raised OSError\('the simulator is gone'\)"),
    "nan": ({"reward": lambda env: np.full(2, np.nan)}, "reward is not finite"),
}


@pytest.mark.parametrize(("wrong", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_is_answered_against_the_spaces_is_named_and_the_group_made_anew(monkeypatch, wrong, said):
    pool = envs.make(Counting, 4, groups=2)
    restarts = Restarts(pool, allowed=3)
    restarts.reset(0)
    monkeypatch.setattr(Counting, "wrong", wrong)
    pool.send(np.zeros(2, int), 1)
    with pytest.raises(EnvironmentFailed, match=f"'Counting', environment.*{said}") as failed:
        pool.recv(1)
    monkeypatch.setattr(Counting, "wrong", {})
    assert failed.value.env_id == 2
    pool.rebuild(2)
    assert pool.recv(1).first.all()


def test_what_is_no_vectorenv_or_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"made a CartPoleEnv: a gymnasium.vector.VectorEnv is expected"):
        envs.make(lambda num_envs: gymnasium.make("CartPole-v1").unwrapped, 2)
    with pytest.raises(ValueError, match=r"num_envs=2\) made a VectorEnv whose num_envs is 7"):
        envs.make(lambda num_envs: Counting(7), 2)
    with pytest.raises(ValueError, match="no single_action_space"):
        envs.make(type("Bare", (Counting,), {"__init__": lambda self, num_envs: setattr(self, "num_envs", num_envs),
                                             "single_observation_space": spaces.Discrete(2)}), 2)  # fmt: skip


def test_an_object_is_trained_on_as_it_is_and_stays_open(tmp_path):
    env = Counting(6)
    result = rookery.train("a2c", env=env, total_steps=96, runs=str(tmp_path), **SMALL)
    assert result.metrics["episodes"] >= 18 and result.metrics["env"] == "Counting" and not env.closed_by_pool
    assert result.metrics["eval_return_mean"] is None, "there is no other to evaluate on"
    again = rookery.resume(result.run, env=env, total_steps=192)
    assert again.metrics["env_steps"] >= 192
    same = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert envs.spec_of(same).observation.shape == (4,)


def test_what_needs_more_than_the_one_object_is_refused_before_anything_is_made():
    for given, said in (
        ({"num_envs": 4}, "num_envs=4: the Counting that was passed steps its 6 environments.*num_envs=6"),
        ({"eval_episodes": 5}, r"eval_episodes=5: .*pass a function f\(num_envs\)"),
        ({"runtime": "ray"}, "runtime='ray'"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve("a2c", env=Counting(6), **given)
