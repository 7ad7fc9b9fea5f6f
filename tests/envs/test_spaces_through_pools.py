"""Every space, as observation and as action, through a pool: an environment that shows what it was given.

Conversion of single values is tested in tests/test_spaces.py; here they travel through `make(callable)` and back.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import envs, spaces
from rookery.envs.gym_envs import each
from rookery.trees import tree_map

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


def box(dtype, shape=(3,)):
    kind = np.dtype(dtype).kind
    low, high = {"f": (-2, 3), "i": (-7, 9), "u": (0, 11), "b": (0, 1)}[kind]
    return gs.Box(low, high, shape, np.dtype(dtype).type)


SPACES = {
    **{f"Box rank {rank}": box("float32", (2, 3, 4, 5)[:rank]) for rank in range(5)},
    **{f"Box of {dtype}": box(dtype) for dtype in DTYPES},
    "Box of bytes, an image": gs.Box(0, 255, (4, 6, 3), np.uint8),
    "Discrete": gs.Discrete(4),
    "Discrete from 7": gs.Discrete(4, start=7),
    "Discrete from -3": gs.Discrete(5, start=-3),
    "MultiDiscrete": gs.MultiDiscrete([2, 5, 3]),
    "MultiDiscrete with start": gs.MultiDiscrete([2, 5], start=[4, -1]),
    "MultiDiscrete 2-D with start": gs.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[1, 0], [-2, 9]])),
    "MultiBinary": gs.MultiBinary(5),
    "MultiBinary 2-D": gs.MultiBinary([2, 3]),
    "MultiBinary 3-D": gs.MultiBinary([2, 3, 2]),
    "nested three deep": gs.Dict(
        a=gs.Tuple([gs.Dict(x=box("float64", (2, 2)), y=gs.Discrete(3, start=1)), gs.MultiBinary(2)]),
        b=gs.Dict(c=gs.Tuple([gs.MultiDiscrete([3, 3]), gs.Box(0, 255, (2, 2), np.uint8)])),
    ),
}


class Mirror(gymnasium.Env):
    """Shows a random item at reset and then the action before; refuses what is not in its space."""

    def __init__(self, space):
        self.observation_space = self.action_space = space
        self.ended = True

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        self.ended, self.steps = False, 0
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action):
        assert not self.ended
        action = tree_map(lambda x: x, action)
        assert self.action_space.contains(plain(self.action_space, action)), action
        self.steps += 1
        self.shown, self.ended = action, self.steps == 5
        return action, 1.0, self.ended, False, {}


def plain(space, value):
    """With the integers that `Discrete.contains` wants."""
    if isinstance(space, gs.Dict):
        return {key: plain(sub, value[key]) for key, sub in space.items()}
    if isinstance(space, gs.Tuple):
        return tuple(plain(sub, item) for sub, item in zip(space.spaces, value))
    return int(value) if isinstance(space, gs.Discrete) else value


def check(spec, leaf):
    assert leaf.shape == (4, *spec.shape) and leaf.dtype == spec.dtype


@pytest.mark.parametrize("name", SPACES)
def test_a_space_goes_through_a_pool_as_observation_and_as_action(name):
    space = SPACES[name]
    pool = envs.make(lambda: Mirror(space), 4, groups=2)
    pool.spec.action.seed(1)
    specs = spaces.array_specs(pool.spec.observation)
    step = pool.reset(0)
    tree_map(check, specs, step.observation)
    first = [spaces.take(step.observation, env) for env in range(4)]
    assert all(pool.spec.observation.contains(plain(pool.spec.observation, item)) for item in first)
    for t in range(1, 8):
        items = [pool.spec.action.sample() for _ in range(4)]
        action = tree_map(lambda *leaves: np.stack(leaves), *items)
        if name == "Box of float16":
            action = action.astype(np.float16).astype(np.float32)  # what the environment can hold
        for g, group in enumerate(pool.groups):
            pool.send(spaces.take(action, group), g)
        answers = [pool.recv(g) for g in range(2)]
        seen = tree_map(lambda *leaves: np.concatenate(leaves), *(answer.observation for answer in answers))
        tree_map(check, specs, seen)
        if t == 6:
            assert all(answer.first.all() for answer in answers)
        else:
            tree_map(np.testing.assert_array_equal, seen, action)  # what was done is what is seen, counted from 0


NARROWED = {"float16": "float32", "float64": "float32", "int64": "int32", "uint64": "uint32"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_box_keeps_its_type_unless_it_is_wide_or_half(dtype):
    pool = envs.make(lambda: Mirror(box(dtype)), 1)
    assert pool.reset(0).observation.dtype == NARROWED.get(dtype, dtype) == pool.spec.observation.dtype


@pytest.mark.parametrize("name", ["Box of float64", "Box rank 0", "nested three deep"])
def test_actions_beyond_a_box_are_clipped_on_their_way(name):
    pool = envs.make(lambda: Mirror(SPACES[name]), 4)
    pool.reset(0)
    pool.send(tree_map(lambda x: x + 100 if x.dtype == np.float32 else x, spaces.zeros(pool.spec.action, (4,))))
    seen = pool.recv().observation
    leaf = seen["a"][0]["x"] if isinstance(seen, dict) else seen
    assert (leaf == 3).all()


REFUSED = {
    "Text": (gs.Text(5), "encode the text"),
    "Graph": (gs.Graph(gs.Box(-1, 1, (2,)), None), "pad nodes and edges"),
    "Sequence": (gs.Sequence(gs.Discrete(2)), "pad to a fixed length"),
    "OneOf": (gs.OneOf([gs.Discrete(2), gs.Box(-1, 1)]), "Dict with a Discrete choice"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("role", ["observation", "action"])
def test_a_space_without_a_fixed_shape_is_refused_when_the_pool_is_made(name, role):
    bad, remedy = REFUSED[name]
    made = Mirror(gs.Discrete(2))
    setattr(made, f"{role}_space", gs.Dict(good=gs.Discrete(2), words=bad))
    with pytest.raises(spaces.UnsupportedSpace, match=rf"{role} leaf 'words' is a {name} space.*{remedy}"):
        envs.make(lambda: made, 1)


def test_a_space_of_no_numbers_is_no_action():
    with pytest.raises(spaces.UnsupportedSpace, match=r"the action space is .* holds no number to choose"):
        spaces.check(gs.Box(-1, 1, (0,)), "action")
    spaces.check(gs.Box(-1, 1, (0,)), "observation")


def test_a_box_without_axes_is_acted_in_by_arrays_as_its_samples_are():
    given = each(np.array([1.5, 2.5], np.float32), [1, 0])
    assert [type(action) for action in given] == [np.ndarray] * 2 == [type(gs.Box(-1, 3, ()).sample())] * 2
    assert [float(action) for action in given] == [2.5, 1.5]
    assert not isinstance(each(np.array([1, 2]), [0])[0], np.ndarray), "choices are scalars"
