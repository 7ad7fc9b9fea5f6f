"""The unit of replayed rewards is what one of them is worth, however rare they are and however many were added up."""

import numpy as np
import pytest

from rookery import ops
from rookery.algorithms import reward_unit
from rookery.types import Rollout


def unit_of(reward, n=1, valid=None):
    reward = np.asarray(reward, np.float32).reshape(1, -1)
    empty = dict.fromkeys(Rollout._fields, ())
    valid = np.ones_like(reward) if valid is None else np.asarray(valid, np.float32).reshape(1, -1)
    seen = reward_unit.statistics(Rollout(**empty | {"reward": reward, "valid": valid}))
    return float(reward_unit.unit(seen, n))


@pytest.mark.parametrize(
    ("reward", "expected"), [([1, 1], 1), ([0, 0, 0, -1], 1), ([0, 0], 1), ([2000, -1000], 1500), ([0.001, 0], 0.001)]
)
def test_it_is_the_mean_size_of_what_is_not_zero_and_one_where_there_is_nothing(reward, expected):
    assert unit_of(reward) == pytest.approx(expected)


def test_rows_that_are_no_transition_do_not_count():
    assert unit_of([1, 500], valid=[1, 0]) == 1.0


def test_nothing_seen_yet_has_the_unit_one():
    assert float(reward_unit.unit(reward_unit.init(), 3)) == 1.0


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
def test_sums_of_several_rewards_have_the_unit_of_one(share, rng):
    each = 7.0 * (rng.random((3, 200_000)) < share)
    assert unit_of(each.sum(0), 3) == pytest.approx(7.0, rel=0.03)


def test_moments_of_batches_merge_to_those_of_all(rng):
    moments = reward_unit.init()
    rewards = rng.normal(size=(5, 32)).astype(np.float32) * (rng.random((5, 32)) < 0.3)
    for batch in rewards:
        seen = reward_unit.statistics(
            Rollout(**dict.fromkeys(Rollout._fields, ()) | {"reward": batch[None], "valid": np.ones((1, 32), np.float32)})
        )
        moments = ops.moments.merge(moments, seen.count, seen.mean, seen.m2)
    assert float(reward_unit.unit(moments)) == pytest.approx(np.abs(rewards[rewards != 0]).mean(), rel=1e-5)
