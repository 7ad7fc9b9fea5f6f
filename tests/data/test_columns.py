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


def test_a_sequence_priority_mixes_maximum_and_mean_over_the_rows_that_count():
    errors, valid = np.array([[-4.0, 1.0], [2.0, 9.0], [0.0, 2.0]]), np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(columns.sequence_priority(errors, valid, 0.9), [0.9 * 4 + 0.1 * 2, 0.9 * 2 + 0.1 * 1.5])
    assert columns.sequence_priority(errors, 0 * valid, 0.9).tolist() == [0, 0]
