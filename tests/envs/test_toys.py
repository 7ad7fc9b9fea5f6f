"""The toys: best and random returns, and what makes each of them a test of its ability."""

from __future__ import annotations

import numpy as np
import pytest

from rookery import envs
from rookery.envs.toys import TOYS, Draws
from rookery.testing import advance, play

FIXED = [id for id in TOYS if id != "grasping"]  # whose episodes all have the same length


class Scripted:
    """The optimal policy of each toy."""

    def __init__(self) -> None:
        self.cue = None

    def __call__(self, id, step):
        return getattr(self, id.replace("-", "_"))(step)

    def identity(self, step):
        return step.observation

    multi_discrete = multi_binary = identity

    def catch(self, step):
        ball = step.observation[:, :-1].max(axis=1).argmax(axis=1)
        ball = np.where(step.observation[:, :-1].any(axis=(1, 2)), ball, step.observation[:, -1].argmax(axis=1))
        paddle = step.observation[:, -1].argmax(axis=1)
        return 1 + np.sign(ball - paddle)

    def cue_recall(self, step):
        shown = step.observation[:, :-1]
        cue = shown.argmax(axis=1)
        self.cue = cue if self.cue is None else np.where(shown.any(axis=1), cue, self.cue)
        return self.cue

    def deep_sea(self, step):
        size = step.observation.shape[-1]
        at = step.observation.reshape(-1, size * size).argmax(axis=1)
        return TOYS["deep-sea"]().right(at // size, at % size)

    def dict_obs(self, step):
        side = step.observation["image"][:, 0, -1, 0] > 0
        return (side ^ (step.observation["vector"][:, 0] > 0)).astype(int)

    def masked(self, step):
        return np.where(step.observation["action_mask"], step.observation["scores"], -1).argmax(axis=1)

    def point_reach(self, step):
        return (step.observation[:, 2:] - step.observation[:, :2]) / 0.2

    def truncating(self, step):
        return np.zeros(len(step.first), int)


@pytest.mark.parametrize("id", [id for id in FIXED if id != "pixel-reach"])  # which shows point-reach: see below
def test_the_best_policy_has_the_optimal_return(id):
    pool, policy = envs.make(id, 200), Scripted()
    step = pool.reset(0)
    for _ in range(2 * pool.toy.length + 1):
        step = advance(pool, policy(id, step))
    returns = [e.total_reward for e in pool.take_episodes()]
    assert len(returns) == 400
    if id == "point-reach":  # the best return depends on where it starts
        assert np.mean(returns) == pytest.approx(pool.toy.optimal_return, abs=4 * np.std(returns) / 20)
    else:
        assert returns == pytest.approx([pool.toy.optimal_return] * 400, abs=1e-6)


@pytest.mark.parametrize("id", FIXED)
def test_a_random_policy_has_the_random_return(id):
    pool = envs.make(id, 300)
    returns = [e.total_reward for e in play(pool, 4 * pool.toy.length + 3).episodes]
    error = np.std(returns) / np.sqrt(len(returns))
    assert len(returns) == 1200
    assert abs(np.mean(returns) - pool.toy.random_return) <= 4 * error + 1e-9
    assert pool.toy.random_return < pool.toy.optimal_return or id == "truncating"


@pytest.mark.parametrize("id", FIXED)
def test_episodes_end_as_the_toy_says(id):
    pool = envs.make(id, 3)
    steps = play(pool, 3 * pool.toy.length + 2).steps
    for t, step in enumerate(steps):
        last = t % (pool.toy.length + 1) == pool.toy.length
        assert (step.truncated if pool.toy.truncates else step.terminated).tolist() == [last] * 3
        assert not (step.terminated if pool.toy.truncates else step.truncated).any()


def test_pixel_reach_is_point_reach_seen_as_an_image():
    side = 32
    seen, told = envs.make("pixel-reach", 50, side=side), envs.make("point-reach", 50)
    images, points, rng = seen.reset(3), told.reset(3), np.random.default_rng(0)
    at = lambda place: (np.asarray(place) / 1.25 + 1) / 2 * (side - 1)  # pixels, of the square
    for _ in range(25):
        where = np.stack(np.unravel_index(images.observation.reshape(50, -1).argmax(1), (side, side)), 1)
        np.testing.assert_allclose(where, at(points.observation[:, 1::-1]), atol=1.1)  # the dot is the brightest
        rows, columns = at(points.observation[:, [3, 2]]).round().astype(int).T
        assert (images.observation[np.arange(50), rows, columns] > 80).all(), "and the target is there"
        assert np.array_equal(images.reward, points.reward) and np.array_equal(images.truncated, points.truncated)
        action = rng.uniform(-1, 1, (50, 2)).astype(np.float32)
        images, points = advance(seen, action), advance(told, action)


def test_a_cue_is_shown_once_and_asked_for_after_the_delay():
    steps = play(envs.make("cue-recall", 4, delay=5), 6).steps
    assert all(step.observation[:, :2].sum() == (4 if t == 0 else 0) for t, step in enumerate(steps))
    assert [step.observation[0, 2] for step in steps] == [0, 0, 0, 0, 0, 1, 0]
    assert steps[6].terminated.all()


def test_no_action_is_right_everywhere_in_the_deep_sea_and_one_wrong_step_misses():
    toy = TOYS["deep-sea"]()
    way = toy.right(np.arange(10), np.arange(10))
    assert 3 <= way.sum() <= 7 and (way[1:] != way[:-1]).sum() not in (0, 9)
    for wrong in range(10):
        pool = envs.make("deep-sea", 1)
        pool.reset(0)
        column = 0  # the way right is that of the cell it is in
        for row in range(10):
            right = int(toy.right(np.array([row]), np.array([column]))[0])
            went = row != wrong
            step = advance(pool, np.array([right if went else 1 - right]))
            column = max(0, min(9, column + (1 if went else -1)))
            if row < 9:
                assert step.observation[0, row + 1, column] == 1 == step.observation.sum()
        assert pool.take_episodes()[0].total_reward == pytest.approx(-0.009, abs=1e-6)


def test_one_leaf_alone_does_not_solve_dict_obs():
    pool = envs.make("dict-obs", 300)
    step = pool.reset(0)
    for _ in range(8):
        step = advance(pool, (step.observation["image"][:, 0, -1, 0] > 0).astype(int))
    returns = [e.total_reward for e in pool.take_episodes()]
    assert np.mean(returns) == pytest.approx(4, abs=0.4)


def test_an_illegal_action_is_named_and_can_be_made_good():
    pool = envs.make("masked", 2)
    step = pool.reset(0)
    legal = step.observation["action_mask"].argmax(axis=1)
    pool.send(np.array([legal[0], step.observation["action_mask"][1].argmin()]))
    with pytest.raises(ValueError, match=r"'masked', environment 1: action \d is illegal, action_mask is \["):
        pool.recv()
    assert not advance(pool, legal).first.any()


def test_the_action_that_a_reset_ignores_may_be_illegal():
    pool = envs.make("masked", 4)
    step = pool.reset(0)
    for _ in range(8):
        step = advance(pool, step.observation["action_mask"].argmax(axis=1))
    assert step.terminated.all()
    assert advance(pool, step.observation["action_mask"].argmin(axis=1)).first.all()


def test_catch_can_be_bytes():
    board = envs.make("catch", 2, dtype="uint8").reset(0).observation
    assert board.dtype == np.uint8 and sorted(np.unique(board)) == [0, 255] and board.shape == (2, 10, 5)


def test_options_are_checked():
    with pytest.raises(ValueError, match="did you mean 'delay'"):
        envs.make("cue-recall", 1, dely=3)


def test_draws_are_uniform_and_independent_of_the_other_environments():
    state = {"key": np.arange(4000, dtype=np.uint64), "counter": np.zeros(4000, np.uint64)}
    some = {name: value[:10].copy() for name, value in state.items()}
    draws = Draws(state, np.arange(4000))
    first, second = draws.integers(4), draws.uniform()
    few = Draws(some, np.arange(10))
    np.testing.assert_array_equal(few.integers(4), first[:10])
    np.testing.assert_array_equal(few.uniform(), second[:10])
    assert np.abs(np.bincount(first) - 1000).max() < 120
    assert abs(second.mean() - 0.5) < 0.02 and abs(np.corrcoef(first, second)[0, 1]) < 0.06
