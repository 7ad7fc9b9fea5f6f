"""ALE: what AtariVectorEnv really does, and that the pool says the same as TimeStep promises."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest

from rookery import envs, spaces
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, random_action, reference_episodes
from rookery.trees import tree_map

pytest.importorskip("ale_py")

SMALL = {"max_frames": 60, "height": 20, "width": 20, "noop_max": 3}  # truncated after 15 steps


@pytest.fixture(scope="module")
def pool():
    pool = envs.make("ALE/Breakout-v5", 3, groups=2, **SMALL)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def lives():
    pool = envs.make("ALE/Breakout-v5", 3, groups=2, life_loss=True, height=20, width=20, noop_max=3, frame_skip=8)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def played(pool):
    return play(pool, 100)


def test_autoreset_is_on_the_next_step(played):
    assert_next_step_autoreset(played.steps)
    assert played.episodes == reference_episodes(played.steps) and len(played.episodes) > 9
    assert {e.length for e in played.episodes} == {15}


def test_the_last_observation_is_in_the_stream_and_a_first_one_has_an_empty_stack(played):
    for before, after in zip(played.steps[:-1], played.steps[1:]):
        for env in range(3):
            old, new = before.observation[env], after.observation[env]
            if after.first[env]:
                assert not new[:3].any() and new[3].any()
            else:
                np.testing.assert_array_equal(new[:3], old[1:])  # also in the last step of an episode


def test_the_same_seed_gives_the_same_games_whatever_the_groups(pool, played):
    other = envs.make("ALE/Breakout-v5", 3, groups=1, **SMALL)
    for a, b in zip(played.steps, play(other, 40).steps):
        assert_same(a, b)
    other.close()
    assert any(
        not np.array_equal(a.observation, b.observation) for a, b in zip(played.steps, play(pool, 5, seed=8).steps)
    )


def test_answers_are_never_overwritten(pool):
    step = pool.reset(0)
    held, copies = [], []
    for _ in range(6):
        for g, group in enumerate(pool.groups):
            pool.send(random_action(pool, np.random.default_rng(0), step)[group], g)
        for g in range(2):
            held.append(tuple(pool.recv(g)))
            copies.append(tree_map(np.copy, held[-1]))
    for a, b in zip(held, copies):
        assert_same(a, b)


def test_a_rebuilt_environment_answers_first_and_the_others_go_on(pool, played):
    pool.reset(7)
    rng = np.random.default_rng(0)
    steps = [played.steps[0]]
    for t in range(1, 40):
        if t in (6, 16):  # row 15 is the last of the games of the others
            pool.rebuild(2)
        steps.append(advance(pool, random_action(pool, rng)))
        assert_same(spaces.take(tuple(steps[t]), [0, 1]), spaces.take(tuple(played.steps[t]), [0, 1]))
        if t in (6, 16):
            assert steps[t].first[2] and not (steps[t].terminated | steps[t].truncated)[2]
            assert not steps[t].observation[2, :3].any()
        if t in (7, 17):
            assert not steps[t].first[2]
    assert pool.take_episodes() == reference_episodes(steps)


def test_with_life_loss_a_lost_life_terminates_without_a_first_and_episodes_are_games(lives):
    steps = play(lives, 260).steps
    lives.reset(7)  # the same again, to see the lives that the emulator reports
    rng = np.random.default_rng(0)
    num_lost = num_games = 0
    total, length, expected = np.zeros(3), np.zeros(3, int), []
    for before, after in itertools.pairwise(steps):
        ended = before.terminated | before.truncated
        new_game = ~after.observation[:, :3].reshape(3, -1).any(axis=1)  # only then are the older frames empty
        np.testing.assert_array_equal(after.first, new_game)
        assert not (after.first & ~ended).any()
        num_lost += (ended & ~after.first).sum()
        expected += [(int(env), total[env], length[env]) for env in np.flatnonzero(after.first)]
        total, length = np.where(after.first, 0, total + after.reward), np.where(after.first, 0, length + 1)
        num_games += after.first.sum()
    assert num_lost >= 3 * num_games > 0, "five lives in a game"
    for _ in range(260):
        advance(lives, random_action(lives, rng))
    assert [tuple(e) for e in lives.take_episodes()] == expected


def test_a_v5_id_is_sticky_as_gymnasium_says_and_a_noframeskip_v4_id_is_not():
    assert gymnasium.spec("ALE/Pong-v5").kwargs["repeat_action_probability"] == 0.25
    sticky, plain = envs.make("ALE/Pong-v5", 1), envs.make("PongNoFrameskip-v4", 1)
    chosen = envs.make("ALE/Pong-v5", 1, repeat_action_probability=0.0)
    assert [p.repeat_action_probability for p in (sticky, plain, chosen)] == [0.25, 0.0, 0.0]
    streams = [play(p, 40, seed=1).steps for p in (sticky, plain, chosen)]
    for a, b in zip(streams[1], streams[2]):
        assert_same(a, b)
    assert any(not np.array_equal(a.observation, b.observation) for a, b in zip(streams[0], streams[2]))


def test_options_shape_the_spaces_and_a_wrong_one_is_named():
    spec = envs.spec_of("ALE/Pong-v5")
    assert spec.observation.shape == (4, 84, 84) and spec.observation.dtype == np.uint8 and spec.action.n == 6
    spec = envs.spec_of("ALE/Pong-v5", stack=2, grayscale=False, height=40, full_action_space=True)
    assert spec.observation.shape == (2, 40, 84, 3) and spec.action.n == 18
    with pytest.raises(ValueError, match="did you mean 'frame_skip'"):
        envs.make("ALE/Pong-v5", 1, frameskip=4)


def test_rewards_are_not_clipped():
    pool = envs.make("ALE/Qbert-v5", 2, height=16, width=16)
    assert max(step.reward.max() for step in play(pool, 120).steps) >= 25
    pool.close()


def test_emulators_have_no_snapshot(pool):
    assert pool.snapshot() is None
    with pytest.raises(NotImplementedError, match="reset"):
        pool.restore({})


def test_actions_out_of_range_are_refused_before_they_reach_the_emulator(pool):
    pool.reset(0)
    with pytest.raises(ValueError, match="out of range"):
        pool.send(np.array([4]), 0)
    with pytest.raises(ValueError, match="out of range"):
        pool.send(np.array([-1]), 0)
