"""CartPole as numpy arrays, and vector environments that the pool does not know."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery import envs
from rookery.envs import EnvironmentFailed
from rookery.envs.pools.serial import SerialPool
from rookery.envs.pools.vectorised import VectorisedPool
from rookery.testing import advance, assert_next_step_autoreset, play, reference_episodes

BALANCE = np.array([0.1, 0.3, 3.0, 1.0])  # pushing by the sign of this keeps every pole up for 500 steps


class Drifting(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        place=gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64), kind=gymnasium.spaces.Discrete(3, start=5)
    )
    action_space = gymnasium.spaces.Discrete(2)
    breaks = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.random()
        return {"place": np.array([self.place]), "kind": 6}, {}

    def step(self, action):
        self.steps += 1
        place = np.nan if self.breaks and action and self.steps == 4 else self.place + self.steps
        return {"place": np.array([place]), "kind": 7}, 1.0, False, self.steps == 5, {}


def sync(num_envs):
    return SyncVectorEnv([Drifting] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_a_balanced_pole_is_truncated_after_500_steps_and_a_fallen_one_terminated():
    pool = envs.make("CartPole-v1", 8)
    step = pool.reset(0)
    steps = [step]
    for _ in range(520):
        lean = step.observation @ BALANCE
        lean[:4] = 1  # these push to the right for ever
        step = advance(pool, (lean > 0).astype(np.int32))
        steps.append(step)
    assert_next_step_autoreset(steps)
    episodes = pool.take_episodes()
    assert episodes == reference_episodes(steps)
    assert [(e.total_reward, e.length) for e in episodes if e.env_id >= 4] == [(500.0, 500)] * 4
    assert steps[500].truncated[4:].all() and not steps[500].terminated[4:].any() and steps[501].first[4:].all()
    for s in steps:
        fallen = (np.abs(s.observation[:, 2]) > 12 * np.pi / 180) | (np.abs(s.observation[:, 0]) > 2.4)
        np.testing.assert_array_equal(s.terminated, fallen)  # the true last observation is there, nowhere else


def test_a_restored_cartpole_is_still_truncated_after_500_steps():
    pool = envs.make("CartPole-v1", 2)
    step = pool.reset(0)
    for t in range(1, 501):
        if t == 300:
            saved = pool.snapshot()
            pool = envs.make("CartPole-v1", 2)
            step = pool.restore(saved)
        step = advance(pool, (step.observation @ BALANCE > 0).astype(np.int32))
        assert step.truncated.tolist() == [t == 500] * 2
    assert [e.length for e in pool.take_episodes()] == [500, 500]


def test_cartpole_v0_is_truncated_after_200_steps_and_options_reach_it():
    pool = envs.make("CartPole-v0", 4)
    assert isinstance(pool, VectorisedPool) and pool._envs[0].max_episode_steps == 200
    assert set(np.unique(play(envs.make("CartPole-v1", 4, sutton_barto_reward=True), 50).steps[-1].reward)) <= {
        -1.0,
        0.0,
    }


def test_cartpole_answers_what_gymnasiums_own_vector_environment_answers():
    pool = envs.make("CartPole-v1", 5)
    steps = play(pool, 60, seed=3).steps
    raw = gymnasium.make_vec("CartPole-v1", num_envs=5, vectorization_mode="vector_entry_point")
    from rookery.envs.pools.pool import derive_seed

    observation, _ = raw.reset(seed=derive_seed(3, 0, 0))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(steps[0].observation, observation)
    for step in steps[1:]:
        observation, reward, terminated, truncated, _ = raw.step(rng.integers(0, 2, 5))
        np.testing.assert_array_equal(step.observation, observation)
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.terminated | step.truncated, terminated | truncated)


def test_groups_of_cartpole_are_seeded_differently():
    start = envs.make("CartPole-v1", 8, groups=2).reset(0).observation
    assert not np.array_equal(start[:4], start[4:])


def test_an_action_out_of_range_is_refused():
    pool = envs.make("CartPole-v1", 2)
    pool.reset(0)
    for bad in ([0, 2], [-1, 0]):
        with pytest.raises(ValueError, match="out of range"):
            pool.send(np.array(bad))
    with pytest.raises(ValueError, match="float"):
        pool.send(np.array([0.0, 1.0]))


def test_an_unknown_vector_environment_has_no_snapshot_and_is_rebuilt_by_the_group():
    pool = VectorisedPool(sync, 6, id="drifting", groups=2)
    steps = play(pool, 13).steps
    assert_next_step_autoreset(steps)
    assert steps[1].observation["kind"].tolist() == [2] * 6 and steps[1].observation["kind"].dtype == np.int32
    assert steps[1].observation["place"].dtype == np.float32
    assert pool.snapshot() is None
    before = steps[-1].observation["place"]
    pool.rebuild(4)
    step = advance(pool, np.zeros(6, int))
    assert step.first.tolist() == [False] * 3 + [True] * 3
    assert step.observation["place"][0, 0] == pytest.approx(before[0, 0] + 1)
    for _ in range(5):
        step = advance(pool, np.zeros(6, int))
    assert [e.length for e in pool.take_episodes() if e.env_id >= 3] == [5, 5, 5]


def test_what_is_not_finite_is_named(monkeypatch):
    monkeypatch.setattr(Drifting, "breaks", True)
    pool = VectorisedPool(sync, 3, id="drifting")
    pool.reset(0)
    for t in range(4):
        pool.send(np.array([0, 0, 1]))
        if t < 3:
            pool.recv()
    with pytest.raises(EnvironmentFailed, match="'drifting', environment 2: place is not finite") as failed:
        pool.recv()
    assert failed.value.env_id == 2


def test_a_vector_environment_that_resets_otherwise_is_stepped_one_by_one_instead():
    gymnasium.register(
        "DriftingSameStep-v0", entry_point=Drifting, vector_entry_point=lambda num_envs, **_: _same_step(num_envs)
    )
    try:
        assert isinstance(envs.make("DriftingSameStep-v0", 2), SerialPool)
    finally:
        del gymnasium.registry["DriftingSameStep-v0"]


def _same_step(num_envs):
    return SyncVectorEnv([Drifting] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
