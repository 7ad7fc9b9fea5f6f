"""Gymnasium environments one after the other, good ones and bad ones."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import envs
from rookery.envs import EnvironmentFailed
from rookery.envs.pools.serial import SerialPool
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, reference_episodes


class Bad(gymnasium.Env):
    """Breaks its promise in step 3 of its first episode: `fault(observation)` gives the answer of that step."""

    action_space = gs.Discrete(2)
    made = 0

    def __init__(self, fault, space=None, good=0.5):
        type(self).made += 1
        self.number, self.fault, self.good = type(self).made, fault, good
        self.observation_space = space or gs.Box(-1, 1, (2,), np.float32)

    def _observation(self):
        if isinstance(self.observation_space, gs.Box):
            return np.full(self.observation_space.shape, self.good, self.observation_space.dtype)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        answer = (self._observation(), 1.0, False, False, {})
        return self.fault(*answer) if self.steps == 3 and self.number == 2 else answer


def broken(fault, **options):
    """Three environments, of which number 1 is bad."""
    Bad.made = 0
    return envs.make(lambda: Bad(fault, **options), 3)


def explode(*_):
    raise OSError("the simulator is gone")


WIDE = gs.Dict(image=gs.Box(0, 255, (2, 2), np.uint8), speed=gs.Box(-1, 1, (1,), np.float32))
GOOD = {"image": np.zeros((2, 2), np.uint8), "speed": np.zeros(1, np.float32)}
FAULTS = {
    "wrong shape": (
        lambda o, *r: (np.zeros(3, np.float32), *r),
        {},
        r"observation has shape \(3,\) of float32.*\(2,\)",
    ),
    "scalar": (lambda o, *r: (1.0, *r), {}, r"observation has shape \(\)"),
    "wrong type": (lambda o, *r: (np.zeros(2, complex), *r), {}, "complex128.*float32"),
    "text": (lambda o, *r: ("hello", *r), {}, "observation has shape"),
    "float image": (
        lambda o, *r: (GOOD | {"image": np.zeros((2, 2))}, *r),
        {"space": WIDE},
        "image has .*float64.*uint8",
    ),
    "missing key": (lambda o, *r: ({"image": GOOD["image"]}, *r), {"space": WIDE}, "no leaf 'speed'"),
    "array for dict": (lambda o, *r: (np.zeros(2), *r), {"space": WIDE}, "no leaf 'image'"),
    "out of range": (lambda o, *r: (9, *r), {"space": gs.Discrete(4)}, "observation = 9 is outside"),
    "NaN": (lambda o, *r: (np.array([0, np.nan], np.float32), *r), {}, r"not finite at index \(1,\) after action 1"),
    "infinite reward": (lambda o, *r: (o, np.inf, *r[1:]), {}, "reward is not finite"),
    "a reward that is text": (lambda o, *r: (o, "7", *r[1:]), {}, "reward '7' after action .*: a number is expected"),
    "no reward": (lambda o, *r: (o, None, *r[1:]), {}, "reward None"),
    "raises": (explode, {}, r"step\(1\) raised OSError\('the simulator is gone'\)"),
    "old interface": (lambda *answer: answer[:4], {}, r"step\(1\) returned \(array.*is expected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_names_environment_leaf_and_step_and_a_rebuild_repairs_it(fault):
    function, options, message = FAULTS[fault]
    pool = broken(function, **options)
    pool.reset(0)
    action = np.ones(3, int)
    for _ in range(2):
        advance(pool, action)
    pool.send(action)
    with pytest.raises(EnvironmentFailed, match=message) as failed:
        pool.recv()
    assert "environment 1 (incarnation 0), step 3" in str(failed.value) and failed.value.env_id == 1
    pool.rebuild(1)
    step = pool.recv()  # the same one again: the others keep their third step
    assert step.first.tolist() == [False, True, False]
    assert [env.steps for env in pool._gym_envs.envs] == [3, 0, 3]
    assert advance(pool, action).reward.tolist() == [1.0, 1.0, 1.0]
    assert [env.steps for env in pool._gym_envs.envs] == [4, 1, 4]


def test_an_environment_that_reuses_its_buffer_does_no_harm():
    class Reusing(gymnasium.Env):
        observation_space, action_space = gs.Box(-np.inf, np.inf, (1,), np.float32), gs.Discrete(2)
        buffer = np.zeros(1, np.float32)

        def reset(self, *, seed=None, options=None):
            self.buffer[:] = 0
            return self.buffer, {}

        def step(self, action):
            self.buffer += 1
            return self.buffer, 0.0, False, False, {}

    pool = envs.make(Reusing, 1)
    steps = play(pool, 4).steps
    assert [float(step.observation[0, 0]) for step in steps] == [0, 1, 2, 3, 4]
    pool.send([0])
    held = pool.recv()
    pool.send([0])
    pool.recv()
    assert held.observation[0, 0] == 5  # two alternating sets of arrays


def test_double_precision_that_was_not_declared_is_cast_with_one_warning():
    pool = envs.make(lambda: Bad(None, gs.Box(-1, 1, (2,), np.float32)), 2)
    pool._gym_envs.envs[1]._observation = lambda: np.zeros(2)
    with pytest.warns(UserWarning, match="float64 although its space says float32") as caught:
        play(pool, 5)
    assert len(caught) == 1


def test_actions_are_clipped_and_counted_from_start():
    class Echo(gymnasium.Env):
        observation_space = gs.Box(-np.inf, np.inf, (3,), np.float64)
        action_space = gs.Dict(move=gs.Box(-2, 2, (2,), np.float64), gear=gs.Discrete(3, start=10))

        def reset(self, *, seed=None, options=None):
            return np.zeros(3), {}

        def step(self, action):
            assert self.action_space.contains(action), action
            return np.array([*action["move"], action["gear"]]), 0.0, False, False, {}

    pool = envs.make(Echo, 2)
    assert pool.spec.action["gear"] == gs.Discrete(3, dtype=np.int32)
    pool.reset(0)
    step = advance(pool, {"move": np.array([[9, -9], [0.5, 0]], np.float32), "gear": np.array([0, 2])})
    assert step.observation.tolist() == [[2, -2, 10], [0.5, 0, 12]] and step.observation.dtype == np.float32
    with pytest.raises(ValueError, match=r"action.move is not finite"):
        pool.send({"move": np.full((2, 2), np.nan), "gear": np.array([0, 2])})


def test_discrete_observations_count_from_zero():
    pool = envs.make(lambda: Bad(None, gs.Tuple([gs.Discrete(2, start=7), gs.MultiDiscrete([2, 3], start=[4, 5])])), 8)
    steps = play(pool, 20).steps
    symbols, pairs = (np.concatenate([step.observation[i] for step in steps]) for i in (0, 1))  # 168 of each: all are seen
    assert set(symbols.tolist()) == {0, 1} and symbols.dtype == np.int32
    assert pairs.min() == 0 and pairs.max(axis=0).tolist() == [1, 2]


def test_seeds_depend_on_the_environment_and_its_incarnation():
    seeds = []

    class Noting(Bad):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    pool = envs.make(lambda: Noting(None), 2)
    pool.reset(4)
    pool.rebuild(1)
    advance(pool, np.zeros(2, int))
    pool.rebuild(1)
    advance(pool, np.zeros(2, int))
    assert len(seeds) == len(set(seeds)) == 4 and all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("id", ["LunarLander-v3", "Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_gymnasium_ids_work(id):
    if id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    pool = envs.make(id, 3, groups=2)
    assert isinstance(pool, SerialPool)
    played = play(pool, 250)
    assert_next_step_autoreset(played.steps)
    assert played.episodes == reference_episodes(played.steps) and played.episodes
    assert pool.snapshot() is None  # TimeLimit counts outside of any state
    for a, b in zip(played.steps, play(envs.make(id, 3), 250).steps):
        assert_same(a, b)


def test_the_true_last_observation_is_in_the_stream():
    env = gymnasium.make("Pendulum-v1")  # truncated after 200 steps
    pool = envs.make(lambda: env, 1)
    step = pool.reset(0)
    for _ in range(200):
        step = advance(pool, np.zeros((1, 1), np.float32))
    assert step.truncated.all()
    x, y, speed = step.observation[0]
    theta, theta_dot = env.unwrapped.state
    np.testing.assert_allclose([x, y, speed], [np.cos(theta), np.sin(theta), theta_dot], rtol=1e-6)
