"""Whoever makes random actions makes legal ones: masks of every form that a network reads, and the probe that plays by them."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import envs
from rookery.envs import legal
from rookery.envs.probe import probe
from rookery.testing.playing import play
from rookery_bench.envs import Options, _ours

PARTS = gs.Dict(b=gs.Discrete(3, start=2), a=gs.MultiDiscrete([[2, 3], [2, 2]]), c=gs.MultiBinary(2))
MASK = np.array([1, 0] + [0, 1, 0] + [0, 1] + [1, 0] + [0, 0, 1] + [1, 0])  # of a, b and c, as jax lists the parts of an action


def test_a_mask_is_found_at_the_top_below_observation_and_in_parts():
    mask = np.array([0, 1, 1], np.int8)
    for observation in ({"action_mask": mask, "x": 1}, {"observation": {"action_mask": mask}, "previous_reward": 0.0}):
        np.testing.assert_array_equal(legal.mask_of(observation), [False, True, True])
    parts = {"action_mask": {"b": mask, "a": np.array([1, 0])}}
    np.testing.assert_array_equal(legal.mask_of(parts), [True, False, False, True, True])
    assert all(legal.mask_of(none) is None for none in (np.zeros(3), {"x": 1}, ({"action_mask": 1},)))
    rows = {"action_mask": np.ones((4, 2, 3))}
    assert legal.mask_of(rows, batched=True).shape == (4, 6)


def test_an_action_of_a_nested_space_is_drawn_by_the_mask_of_its_parts():
    PARTS.seed(0)
    drawn = [legal.sample(PARTS, {"action_mask": MASK}) for _ in range(20)]
    assert all(PARTS.contains(action) for action in drawn)
    assert all(action["b"] == 4 and action["a"].tolist() == [[0, 1], [1, 0]] and action["c"][1] == 0 for action in drawn)
    assert {int(action["c"][0]) for action in drawn} == {0, 1}, "a bit that may be set need not be"


def test_a_mask_of_another_size_is_left_to_those_who_refuse_it():
    assert gs.Discrete(3).contains(legal.sample(gs.Discrete(3), {"action_mask": np.ones(2)}))


def test_batches_of_canonical_actions_are_drawn_by_their_rows():
    space, rng = gs.MultiDiscrete([2, 3]), np.random.default_rng(0)
    mask = np.array([[0, 1, 0, 1, 1], [1, 0, 1, 0, 0]], bool)
    drawn = np.stack([legal.draw(space, mask, rng) for _ in range(50)])
    assert (drawn[:, 1] == [0, 0]).all() and (drawn[:, 0, 0] == 1).all() and set(drawn[:, 0, 1]) == {1, 2}
    with pytest.raises(TypeError, match="cannot be drawn by a mask"):
        legal.draw(gs.MultiBinary(2), mask, rng)


class Strict(gymnasium.Env):
    """Raises for an action that its mask does not allow."""

    action_space: ClassVar[gs.Space] = gs.MultiDiscrete([3, 4])
    observation_space: ClassVar[gs.Space] = gs.Dict(x=gs.Box(-1, 1, (2,)), action_mask=gs.MultiBinary(7))

    def _show(self):
        self.mask = np.concatenate([self.np_random.permutation([1, 0, 0]), self.np_random.permutation([1, 1, 0, 0])])
        return {"x": np.zeros(2, np.float32), "action_mask": self.mask.astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._show(), {}

    def step(self, action):
        assert self.mask[action[0]] and self.mask[3 + action[1]], f"illegal {action}"
        return self._show(), 0.0, False, False, {}


class StrictChoice(Strict):
    """The same with one choice, and the mask of a matrix of them."""

    action_space: ClassVar[gs.Space] = gs.MultiDiscrete([[2, 2], [2, 2]])
    observation_space: ClassVar[gs.Space] = gs.Dict(action_mask=gs.Tuple([gs.MultiBinary(2)] * 4))

    def _show(self):
        self.mask = [self.np_random.permutation([1, 0]).astype(np.int8) for _ in range(4)]
        return {"action_mask": tuple(self.mask)}

    def step(self, action):
        assert all(mask[i] for mask, i in zip(self.mask, action.ravel())), f"illegal {action}"
        return self._show(), 0.0, False, False, {}


class Walled(gymnasium.Env):
    """A field among walls: how many moves are legal depends on where it is."""

    action_space: ClassVar[gs.Space] = gs.Discrete(4)
    observation_space: ClassVar[gs.Space] = gs.Dict(place=gs.MultiDiscrete([5, 5]), action_mask=gs.MultiBinary(4))

    def _show(self):
        (x, y) = self.place
        self.mask = np.array([x > 0, x < 4, y > 0, y < 4])
        return {"place": self.place.copy(), "action_mask": self.mask.astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(0, 5, 2)
        return self._show(), {}

    def step(self, action):
        assert self.mask[action], f"illegal {action}"
        self.place += [(-1, 0), (1, 0), (0, -1), (0, 1)][action]
        return self._show(), 0.0, False, False, {}


@pytest.mark.parametrize("env", [Strict, StrictChoice, Walled])
def test_the_probe_plays_by_the_mask(env):
    found = probe(env, env.__name__, seconds=0.02)
    assert found.notes == (), "before: it failed when it was tried: … AssertionError('illegal [0 0]')"


def test_pools_of_masked_environments_are_played_and_measured_legally():
    pool = envs.make(Strict, 4, groups=2)
    assert not play(pool, 20).steps[-1].terminated.any()
    assert _ours("ours", pool, Options(env="Strict", num_envs=4)).turn(0.02) > 0
    pool.close()
