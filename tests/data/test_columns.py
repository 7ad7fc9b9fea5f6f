"""Operations on columns against loops that are written from the definition."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.data import columns


def naive(reward, discount, valid, gamma, n, t):
    total, product, span = 0.0, 1.0, 0
    for k in range(t, min(t + n, len(reward))):
        if not valid[k]:
            break
        total += product * reward[k]
        product *= gamma * discount[k]
        span += 1
    return total, product, span


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("ending", ["terminated", "truncated", "goes on"])
def test_n_step_windows_are_those_of_a_loop_tails_included(n, ending):
    """An episode of 7 steps, the row that resets, and what follows."""
    random = np.random.default_rng(n)
    reward, discount, valid = random.normal(size=(12, 1)), np.ones((12, 1)), np.ones((12, 1))
    if ending != "goes on":
        valid[7] = 0
        discount[6] = 0 if ending == "terminated" else 1
    got = columns.n_step(reward=reward, discount=discount, valid=valid, gamma=0.9, n=n, count=12)
    for t in range(12):
        wanted = naive(reward[:, 0], discount[:, 0], valid[:, 0], 0.9, n, t)
        np.testing.assert_allclose([x[t, 0] for x in got], wanted, rtol=1e-6)
    assert got[2][5, 0] == (min(n, 2) if ending != "goes on" else n)  # a tail is shorter
    assert len(columns.n_step(reward=reward, discount=discount, valid=valid, gamma=0.9, n=n)[0]) == 13 - n


def test_stacks_are_rebuilt_from_single_frames_and_zero_before_an_episode():
    frames = np.arange(1, 9)[:, None] * np.ones((1, 2), int)
    first = np.array([1, 0, 0, 0, 1, 0, 0, 0], bool)
    stacked = columns.stack_frames(frames, first, 3)[..., 0].tolist()
    assert stacked == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 5], [0, 5, 6], [5, 6, 7], [6, 7, 8]]


def test_operations_compose():
    x = {"a": np.arange(24).reshape(2, 4, 3), "b": (np.arange(8).reshape(2, 4),)}
    made = columns.chain(columns.time_major, columns.slice_steps(1, None, 2))(x)
    np.testing.assert_array_equal(made["a"], x["a"].swapaxes(0, 1)[1::2])
    assert made["b"][0].shape == (2, 2) and columns.time_major(x)["a"].flags.c_contiguous
    np.testing.assert_array_equal(columns.truncate(1)(x)["b"][0], x["b"][0][:1])
    np.testing.assert_array_equal(columns.concatenate([x, x])["b"][0], np.tile(x["b"][0], (2, 1)))


@pytest.mark.parametrize(
    "operation, reference",
    [
        (columns.product, np.prod), (columns.cumulative_product, np.cumprod), (columns.mean, np.mean),
        (columns.minimum, np.min), (columns.maximum, np.max),
    ],
)  # fmt: skip
def test_reductions_are_those_of_numpy_over_the_axis(operation, reference):
    x = np.random.default_rng(0).normal(size=(3, 4))
    for axis in (0, 1):
        np.testing.assert_array_equal(operation(axis)({"x": x})["x"], reference(x, axis=axis))


def test_a_sequence_priority_mixes_maximum_and_mean_over_the_rows_that_count():
    errors, valid = np.array([[-4.0, 1.0], [2.0, 9.0], [0.0, 2.0]]), np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(columns.sequence_priority(errors, valid, 0.9), [0.9 * 4 + 0.1 * 2, 0.9 * 2 + 0.1 * 1.5])
    assert columns.sequence_priority(errors, 0 * valid, 0.9).tolist() == [0, 0]
