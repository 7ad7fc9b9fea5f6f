"""Gymnasium spaces as trees of arrays."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import spaces
from rookery.trees import tree_map
from rookery.types import Spec

NESTED = gs.Dict(
    camera=gs.Box(0, 255, (4, 4, 3), np.uint8),
    body=gs.Tuple([gs.Box(-np.inf, np.inf, (3,), np.float64), gs.Discrete(5, start=2)]),
    bits=gs.MultiBinary(6),
    choice=gs.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[0, 1], [0, -1]])),
    count=gs.Box(-(2**40), 2**40, (), np.int64),
)


def test_zeros_follow_the_nesting_with_canonical_types():
    tree = spaces.zeros(NESTED, (7, 2))
    assert set(tree) == {"camera", "body", "bits", "choice", "count"} and isinstance(tree["body"], tuple)
    flat = {
        "camera": tree["camera"],
        "vector": tree["body"][0],
        "discrete": tree["body"][1],
        "bits": tree["bits"],
        "choice": tree["choice"],
        "count": tree["count"],
    }
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in flat.items()} == {
        "camera": ((7, 2, 4, 4, 3), "uint8"),
        "vector": ((7, 2, 3), "float32"),
        "discrete": ((7, 2), "int32"),
        "bits": ((7, 2, 6), "int8"),
        "choice": ((7, 2, 2, 2), "int32"),
        "count": ((7, 2), "int32"),
    }


def test_array_specs_and_bytes_agree_with_zeros():
    specs, arrays = spaces.array_specs(NESTED), spaces.zeros(NESTED)

    def same(spec, array):
        assert (spec.shape, spec.dtype, spec.nbytes) == (array.shape, array.dtype, array.nbytes)
        return array.nbytes

    sizes = tree_map(same, specs, arrays)
    assert sizes["camera"] + sum(sizes["body"]) + sizes["bits"] + sizes["choice"] + 4 == 48 + 12 + 4 + 6 + 16 + 4


def test_the_canonical_space_holds_the_canonical_values_and_is_its_own_canonical_space():
    canonical = spaces.canonical(NESTED)
    NESTED.seed(0)
    for _ in range(20):
        value = spaces.canonical_observation(NESTED, NESTED.sample())
        assert canonical.contains(value), value
    assert spaces.canonical(canonical) == canonical
    assert canonical["body"][1] == gs.Discrete(5, dtype=np.int32)
    assert (canonical["count"].low, canonical["count"].high) == (-(2**31), 2**31 - 1)


def test_actions_go_to_the_environment_and_back():
    """canonical_observation undoes canonical_action where nothing is clipped."""
    space = gs.Dict(
        turn=gs.Discrete(5, start=-2), keys=gs.MultiBinary(3), pick=NESTED["choice"], push=gs.Box(-2, 3, (2,))
    )
    canonical = spaces.canonical(space)
    canonical.seed(0)
    for _ in range(20):
        action = canonical.sample()
        sent = spaces.canonical_action(space, action)
        assert space.contains(sent | {"turn": sent["turn"][()]}), sent
        back = spaces.canonical_observation(space, sent)
        tree_map(np.testing.assert_array_equal, back, dict(action))


def test_box_actions_are_clipped_and_integers_rounded():
    box = gs.Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64)
    sent = spaces.canonical_action(box, np.array([[-7, 7], [0.25, -7]], np.float32))
    assert sent.tolist() == [[-1, 5], [0.25, 0]] and sent.dtype == np.float64
    whole = spaces.canonical_action(gs.Box(0, 10, (1,), np.int64), np.array([[2.7], [99.0]], np.float32))
    assert whole.tolist() == [[3], [10]] and whole.dtype == np.int64


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (gs.Discrete(3), np.array([0, 3]), "action is out of range"),
        (gs.Discrete(3), np.array([-1, 0]), "action is out of range"),
        (gs.Discrete(3), np.array([0, 3], np.uint8), "action is out of range"),
        (gs.Discrete(3, start=5), np.array([5, 6]), "action is out of range"),
        (gs.Discrete(3), np.array([0.0, 1.0]), "action has type float64"),
        (gs.Discrete(3), np.zeros((2, 1), int), r"action has shape \(2, 1\), expected \(2,\)"),
        (gs.MultiDiscrete([2, 3]), np.array([[0, 0], [2, 0]]), "action is out of range"),
        (gs.MultiBinary(2), np.array([[0, 2], [0, 0]]), "action is out of range"),
        (gs.Box(-1, 1, (2,)), np.array([[0, np.nan], [0, 0]]), "action is not finite"),
        (gs.Box(-1, 1, (2,)), np.array([0.0, 0.0]), r"action has shape \(2,\), expected \(2, 2\)"),
    ],
)
def test_a_wrong_action_is_named(space, action, message):
    with pytest.raises(ValueError, match=message):
        spaces.action_encoder(space, 2)(action)
    with pytest.raises(ValueError, match=message.replace("action", r"action\.arm\.1", 1)):
        spaces.action_encoder(gs.Dict(arm=gs.Tuple([gs.Discrete(2), space])), 2)({"arm": (np.zeros(2, int), action)})


@pytest.mark.parametrize(
    ("bad", "remedy"),
    [
        (gs.Text(5), "encode the text"),
        (gs.Graph(gs.Box(-1, 1, (2,)), None), "pad nodes and edges"),
        (gs.Sequence(gs.Discrete(2)), "pad to a fixed length"),
        (gs.OneOf([gs.Discrete(2), gs.Box(-1, 1)]), "Dict with a Discrete choice"),
        (gymnasium.Space((2,), np.float32), "built of Box"),
    ],
)
def test_a_space_without_a_fixed_shape_is_refused_with_its_path_and_a_remedy(bad, remedy):
    nested = gs.Dict(a=gs.Discrete(2), b=gs.Tuple([gs.Discrete(3), gs.Dict(words=bad)]))
    with pytest.raises(
        spaces.UnsupportedSpace, match=rf"action leaf 'b\.1\.words' is a {type(bad).__name__} .*{remedy}"
    ):
        spaces.check(nested, "action")
    with pytest.raises(spaces.UnsupportedSpace, match="the observation space is a"):
        spaces.check(bad)
    for function in (spaces.zeros, spaces.array_specs, spaces.canonical):
        with pytest.raises(spaces.UnsupportedSpace):
            function(nested)


def test_with_previous_adds_action_and_reward_to_the_observation():
    spec = spaces.with_previous(Spec(gs.Box(0, 1, (3,)), gs.Discrete(4), "x"))
    tree = spaces.zeros(spec.observation, (2,))
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in tree.items()} == {
        "observation": ((2, 3), "float32"),
        "previous_action": ((2,), "int32"),
        "previous_reward": ((2,), "float32"),
    }
    assert spec.action == gs.Discrete(4) and spec.id == "x"


def test_observations_are_not_copied_where_they_are_canonical_already():
    space, value = gs.Box(0, 255, (2, 2), np.uint8), np.zeros((5, 2, 2), np.uint8)
    assert spaces.canonical_observation(space, value) is value
