"""`envpool:<id>`: what the pool makes of EnvPool's answers, with a fake of its interface and the package itself."""

from __future__ import annotations

import sys
import types
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from rookery import envs
from rookery.envs import UnknownEnvironment
from rookery.envs.pools import envpool_pool
from rookery.envs.pools.envpool_pool import EnvpoolPool
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, random_action, reference_episodes


class FakeEnvpool:
    """Counts steps; a life ends every 3, a game every 9; the reward is 5, clipped to 1; as EnvPool resets (measured)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    made: ClassVar[list[list[int]]] = []

    def __init__(self, name, *, env_type, num_envs, seed, num_threads, episodic_life=False, reward_clip=False, break_at=None):
        assert env_type == "gymnasium" and len(seed) == num_envs and 1 <= num_threads <= num_envs
        self.made.append(seed)
        self.seed, self.lives, self.clip, self.break_at = np.array(seed), episodic_life, reward_clip, break_at
        self.n, self.done = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self.broken, self.resets = False, 0

    def _info(self, rows, over=False):
        zero = np.zeros(len(rows))
        return {
            "env_id": np.arange(len(rows)) if len(rows) == len(self.n) else rows,
            "reward": zero + 5,
            "terminated": over + zero,
        }

    def _see(self, rows):
        return np.stack([self.n[rows], (self.seed[rows] + self.resets) % 1000], axis=1).astype(np.float64)

    def reset(self, rows=None):
        rows = np.arange(len(self.n)) if rows is None else rows
        self.n[rows], self.done[rows], self.resets = 0, False, self.resets + 1
        return self._see(rows), self._info(rows)

    def send(self, action):
        assert action.shape == self.n.shape
        over = self.n == 9
        live = ~self.done
        self.n = np.where(self.done, np.where(over, 0, self.n), self.n + 1)
        game_over = live & (self.n == 9)
        self.done = live & (game_over | (self.lives & (self.n % 3 == 0)))
        seen = self._see(np.arange(len(self.n)))
        if self.break_at is not None and not self.broken and self.n[1] == self.break_at:
            seen[1, 0], self.broken = np.nan, True
        info = self._info(np.arange(len(self.n)), game_over) | {"reward": np.where(live, 5.0, 0.0)}
        reward = np.where(live, 1.0 if self.clip else 5.0, 0.0).astype(np.float32)
        self.answer = seen, reward, self.done.copy(), np.zeros(len(live), bool), info

    def recv(self):
        return self.answer

    def close(self):
        pass


@pytest.fixture
def fake(monkeypatch):
    fields = ("num_envs", "batch_size", "seed", "num_threads", "episodic_life", "reward_clip", "break_at")
    spec = types.SimpleNamespace(config=types.SimpleNamespace(_fields=fields))
    module = types.SimpleNamespace(make=FakeEnvpool, list_all_envs=lambda: ["Count-v0"], make_spec=lambda name: spec)
    monkeypatch.setitem(sys.modules, "envpool", module)
    monkeypatch.setattr(envpool_pool, "find_spec", lambda name: module)
    FakeEnvpool.made = []


def test_a_missing_package_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(envpool_pool, "find_spec", lambda name: None)
    with pytest.raises(UnknownEnvironment, match=r"'envpool:Pong-v5' needs envpool: pip install 'rookery\[envpool\]'"):
        envs.make("envpool:Pong-v5", 1)


def test_unknown_ids_and_options_are_answered_with_the_near_ones(fake):
    with pytest.raises(UnknownEnvironment, match="did you mean 'envpool:Count-v0'"):
        envs.make("envpool:Cuont-v0", 1)
    with pytest.raises(ValueError, match="has no option 'episodic_lif': did you mean 'episodic_life'"):
        envs.make("envpool:Count-v0", 1, episodic_lif=True)
    with pytest.raises(ValueError, match="has no option 'batch_size'"):
        envs.make("envpool:Count-v0", 1, batch_size=1)  # ours to set


def test_autoreset_episodes_and_groups(fake):
    pool = envs.make("envpool:Count-v0", 5, groups=2)
    played = play(pool, 40)
    assert_next_step_autoreset(played.steps)
    assert played.episodes == reference_episodes(played.steps) and {e.length for e in played.episodes} == {9}
    assert played.steps[0].observation.dtype == np.float32 and pool.snapshot() is None


def test_lives_are_not_counted_as_episodes_and_rewards_are_as_played(fake):
    pool = EnvpoolPool("envpool:Count-v0", 4, groups=2, episodic_life=True, reward_clip=True)  # by EnvPool itself
    played = play(pool, 50)
    assert_next_step_autoreset(played.steps)
    assert {step.reward.max() for step in played.steps[1:4]} == {1.0}
    assert {(e.total_reward, e.length) for e in played.episodes} == {(45.0, 9)} and len(played.episodes) == 16


def test_every_environment_has_a_seed_of_its_own_and_reset_makes_the_pools_anew(fake):
    pool = envs.make("envpool:Count-v0", 4, groups=2, seed=3)
    first = pool.reset()
    assert len(FakeEnvpool.made) == 2  # those of the constructor serve the first reset
    seeds = [seed for part in FakeEnvpool.made for seed in part]
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert_same(pool.reset(), first)
    assert_same(envs.make("envpool:Count-v0", 4, groups=4, seed=0).reset(3), first)
    assert not np.array_equal(pool.reset(4).observation, first.observation)


def test_a_rebuilt_environment_answers_first_and_its_broken_episode_is_not_counted(fake):
    pool = envs.make("envpool:Count-v0", 4, groups=2, episodic_life=True)
    steps = [pool.reset(0)]
    rng = np.random.default_rng(0)
    for t in range(60):
        if t % 17 == 5:
            pool.rebuild(2)
        steps.append(advance(pool, random_action(pool, rng)))
        if t % 17 == 5:
            assert steps[-1].first[2] and steps[-1].reward[2] == 0 and steps[-1].observation[2, 0] == 0
    assert {(e.total_reward, e.length) for e in pool.take_episodes()} == {(45.0, 9)}


def test_a_number_that_is_not_finite_is_named_and_a_rebuild_repairs_it(fake):
    pool = envs.make("envpool:Count-v0", 3, break_at=2)
    pool.reset(0)
    advance(pool, np.zeros(3, int))
    pool.send(np.zeros(3, int))
    for _ in range(2):
        with pytest.raises(envs.EnvironmentFailed, match="'envpool:Count-v0', environment 1: observation is not finite"):
            pool.recv()
    pool.rebuild(1)
    step = pool.recv()
    assert step.first.tolist() == [False, True, False] and step.observation[:, 0].tolist() == [2, 0, 2]


# --------------------------------------------------------------------------------------------- the package itself


@pytest.fixture(scope="module")
def real():
    pytest.importorskip("envpool")  # takes 8 s


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_the_real_ones_reset_on_the_next_step_and_count_right(real, id):
    pool = envs.make(f"envpool:{id}", 6, groups=2, max_episode_steps=15)
    played = play(pool, 60)
    assert_next_step_autoreset(played.steps)
    assert played.episodes == reference_episodes(played.steps) and len(played.episodes) >= 6
    assert any(step.truncated.any() for step in played.steps)
    for a, b in zip(played.steps, play(pool, 60).steps):
        assert_same(a, b)
    one = envs.make(f"envpool:{id}", 6, max_episode_steps=15)
    for a, b in zip(played.steps, play(one, 60).steps):
        assert_same(a, b)
    assert any(not np.array_equal(a.observation, b.observation) for a, b in zip(played.steps, play(one, 60, seed=8).steps))


def test_the_real_one_ignores_the_seed_of_reset(real):
    """Should this fail, EnvPool has learned it, and our reset need not make its pools anew."""
    import envpool

    starts = []
    for seed in (1, 2):
        env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2, seed=5)
        with pytest.warns(UserWarning, match="ignored"):
            starts.append(env.reset(seed=seed)[0])
    np.testing.assert_array_equal(*starts)


def test_a_real_slot_can_be_rebuilt(real):
    pool = envs.make("envpool:CartPole-v1", 4, groups=2)
    plain = play(pool, 8).steps
    pool.reset(7)
    rng = np.random.default_rng(0)
    for t in range(1, 9):
        if t == 4:
            pool.rebuild(3)
        step = advance(pool, random_action(pool, rng))
        np.testing.assert_array_equal(step.observation[:3], plain[t].observation[:3])
        assert step.first[3] == (t == 4) and (t < 4 or np.abs(step.observation[3, 2]) < 0.2)


def test_real_atari_counts_games_and_not_lives(real):
    options = {"max_episode_steps": 400, "episodic_life": True, "reward_clip": True}
    pool = EnvpoolPool("envpool:Breakout-v5", 4, groups=2, **options)
    played = play(pool, 300)
    assert_next_step_autoreset(played.steps)
    lives = sum(step.terminated.sum() for step in played.steps)
    assert 0 < len(played.episodes) < lives / 3
    assert min(e.length for e in played.episodes) > 80
