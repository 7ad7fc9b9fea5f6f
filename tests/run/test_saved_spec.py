"""The spaces of an environment as plain JSON: the same after reading; nothing is taken from a record that cannot be right."""

import copy
import json

import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import envs, spaces
from rookery.run.saved_spec import LARGEST, record_of, spec_from
from rookery.types import Spec

EVERYTHING = gs.Dict(
    z=gs.Box(np.array([-1, -np.inf, 0.1], np.float32), np.array([1, np.inf, 5], np.float32)),
    parts=gs.Tuple([gs.Discrete(3, start=-2), gs.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 0]])]),
    image=gs.Box(0, 255, (210, 160, 3), np.uint8), bits=gs.MultiBinary([2, 3]),
    wide=gs.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    columns=gs.Box(np.zeros((2, 3)), np.array([[1, 2, 3], [1, 2, 3]]), dtype=np.float64), number=gs.Box(-np.inf, np.inf, ()),
)  # fmt: skip
SPEC = spaces.spec_of(EVERYTHING, gs.Box(-0.5, 0.25, (2,), np.float32), "everything")


def again(spec):
    return spec_from(json.loads(json.dumps(record_of(spec), allow_nan=False)))


def assert_same(a, b):
    assert a == b
    for (path, keys, one), (path_b, keys_b, other) in zip(spaces.leaves(a), spaces.leaves(b), strict=True):
        assert (path, keys, one.dtype, one.shape) == (path_b, keys_b, other.dtype, other.shape)
        if isinstance(one, gs.Box):
            np.testing.assert_array_equal(one.low, other.low), np.testing.assert_array_equal(one.high, other.high)


@pytest.mark.parametrize(
    "spec", [SPEC, envs.spec_of("CartPole-v1", frame_stack=4, reward_clip=1.0), envs.spec_of("masked"), envs.spec_of("catch")],
    ids=lambda spec: spec.id,
)  # fmt: skip
def test_a_spec_is_the_same_after_it_was_written_and_read(spec):
    found = again(spec)
    assert (found.id, found.pool, found.raw is None) == (spec.id, spec.pool, spec.raw is None)
    for mine, theirs in zip((spec.observation, spec.action, *(spec.raw or ())), (found[0], found[1], *(found.raw or ()))):
        assert_same(mine, theirs)


def test_bounds_that_are_alike_take_no_room():
    assert len(json.dumps(record_of(SPEC))) < 4000, "an image of 100,000 bytes is among them"


def test_what_json_cannot_say_is_not_written():
    assert record_of(Spec(gs.Dict({(1, 2): gs.Discrete(2)}), gs.Discrete(2))) is None


BAD = {
    "no record": lambda r: [],
    "an unknown kind": lambda r: r | {"action": {"os.system": {}}},
    "two kinds": lambda r: r | {"action": {"dict": [], "tuple": []}},
    "no dict": lambda r: r | {"observation": {"dict": {"a": 1}}},
    "a type that is none": lambda r: r | {"action": {"box": {"shape": [1], "dtype": "object", "low": 0, "high": 1}}},
    "too large": lambda r: r | {"action": {"box": {"shape": [LARGEST, 2], "dtype": "uint8", "low": 0, "high": 1}}},
    "a negative size": lambda r: r | {"action": {"box": {"shape": [-1], "dtype": "uint8", "low": 0, "high": 1}}},
    "no bound": lambda r: r | {"action": {"box": {"shape": [1], "dtype": "float32", "low": "nan", "high": 1}}},
    "bounds of another shape": lambda r: r | {"action": {"box": {"shape": [2], "dtype": "float32", "low": [0] * 3, "high": 1}}},
    "ragged bounds": lambda r: r | {"action": {"box": {"shape": [2, 2], "dtype": "float32", "low": [[0], [0, 1]], "high": 1}}},
    "no choices": lambda r: r | {"action": {"discrete": {"n": 0, "start": 0, "dtype": "int64"}}},
    "no counts": lambda r: r | {"action": {"multi_discrete": {"nvec": [0], "start": [0], "dtype": "int64"}}},
    "a start that is no number": lambda r: r | {"action": {"discrete": {"n": 2, "start": "x", "dtype": "int64"}}},
    "stacks without end": lambda r: r | {"pool": {"frame_stack": 10**12}},
    "an option that is none": lambda r: r | {"pool": {"frame_stak": 2}},
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_record_that_cannot_be_right_is_refused(case):
    record = BAD[case](copy.deepcopy(record_of(envs.spec_of("CartPole-v1"))))
    with pytest.raises((ValueError, TypeError)):
        spec_from(record)


def test_a_record_that_is_nested_without_end_is_refused():
    node = {"discrete": {"n": 2, "start": 0, "dtype": "int64"}}
    for _ in range(500):
        node = {"tuple": [node]}
    with pytest.raises(ValueError, match="too deeply"):
        spec_from(record_of(envs.spec_of("CartPole-v1")) | {"observation": node})
