"""The grasping toy: what is held and what is not, when an episode ends, and that its image shows all of it."""

from __future__ import annotations

import numpy as np
import pytest

from rookery import envs
from rookery.envs.grasping import COLOURS, FLOOR, TRAY
from rookery.testing import advance


def nearest(pool):
    """From the gripper to the centre of the nearest shape. [B, 2]"""
    away = pool._state["places"] - pool._state["gripper"][:, None]
    return away[np.arange(len(away)), np.abs(away).max(2).argmin(1)]


def expert(pool):
    """Towards the nearest shape and down; close as soon as that holds it."""
    away, height = nearest(pool), pool._state["height"]
    near = (np.abs(away).max(1) <= 0.3) & (height <= 0.99)
    return np.column_stack([np.clip(away / 0.3, -1, 1), -np.ones(len(away)), near]).astype(np.float32)


def test_an_expert_always_grasps_and_chance_sometimes():
    pool = envs.make("grasping", 100, size=8)
    pool.reset(0)
    for _ in range(60):
        advance(pool, expert(pool))
    played = pool.take_episodes()
    assert len(played) > 1000 and {episode.total_reward for episode in played} == {pool.toy.optimal_return}
    rng = np.random.default_rng(0)
    pool.reset(1)
    for _ in range(150):
        advance(pool, rng.uniform(-1, 1, (100, 4)).astype(np.float32))
    returns = [episode.total_reward for episode in pool.take_episodes()]
    assert abs(np.mean(returns) - pool.toy.random_return) < 4 * np.std(returns) / np.sqrt(len(returns))


@pytest.mark.parametrize(
    "height, away, closes, reward", [(0.5, 0.29, 1, 1), (0.51, 0.0, 1, 0), (0.0, 0.31, 1, 0), (0.0, 0.0, 0, 0)]
)
def test_closing_pays_low_and_around_a_shape_and_ends_the_episode(height, away, closes, reward):
    pool = envs.make("grasping", 1, shapes=1)
    pool.reset(0)
    state = pool._state
    state["height"][:], state["gripper"][:], state["places"][:] = height, 0.2, 0.2
    state["places"][..., 0] += away
    step = advance(pool, np.array([[0, 0, 0, closes]], np.float32))
    assert step.reward.tolist() == [reward] and step.terminated.tolist() == [bool(closes)] and not step.truncated.any()
    step = advance(pool, np.zeros((1, 4), np.float32))
    assert step.first.tolist() == [bool(closes)] and step.reward.tolist() == [0]


def test_an_episode_that_never_closes_is_cut():
    pool = envs.make("grasping", 2)
    pool.reset(0)
    steps = [advance(pool, np.zeros((2, 4), np.float32)) for _ in range(11)]
    assert [step.truncated[0] for step in steps] == [False] * 9 + [True, False]
    assert not any(step.terminated.any() for step in steps) and steps[-1].first.all()


def test_the_image_shows_shapes_where_they_are_from_the_gripper_and_its_height_by_its_fingers():
    pool = envs.make("grasping", 1, size=32, shapes=1)
    pool.reset(0)
    state = pool._state
    state["gripper"][:], state["places"][0, 0], state["forms"][:], state["colours"][:] = 0.5, (0.0, 0.25), 0, 2
    image = advance(pool, np.zeros((1, 4), np.float32)).observation[0]
    pixel = lambda x, y: image[int((y + 1) * 16), int((x + 1) * 16)].tolist()
    assert pixel(-0.5, -0.25) == COLOURS[2].tolist(), "half a unit to the left, a quarter up"
    assert pixel(0.3, 0.3) == TRAY.tolist() and pixel(0.7, 0.0) == FLOOR.tolist(), "beyond the edge of the tray"
    assert pixel(0.8, 0.0) == [255] * 3 == pixel(-0.8, 0.0)
    state["height"][:] = 0.0
    image = advance(pool, np.zeros((1, 4), np.float32)).observation[0]
    assert pixel(0.3, 0.0) == [255] * 3 and pixel(0.8, 0.0) != [255] * 3, "lower: closer together"


def test_a_snapshot_goes_on_with_the_same_pictures():
    pool, other = envs.make("grasping", 3), envs.make("grasping", 3)
    rng = np.random.default_rng(2)
    actions = rng.uniform(-1, 1, (20, 3, 4)).astype(np.float32)
    pool.reset(5)
    for action in actions[:7]:
        advance(pool, action)
    other.restore(pool.snapshot())
    for action in actions[7:]:
        one, two = advance(pool, action), advance(other, action)
        for x, y in zip(one, two, strict=True):
            np.testing.assert_array_equal(x, y)
