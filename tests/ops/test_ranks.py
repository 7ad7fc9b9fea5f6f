import jax
import numpy as np
import pytest

from rookery import ops

ranks = jax.jit(ops.centred_ranks)


@pytest.mark.parametrize("size", [2, 7, 64])
def test_the_ranks_of_a_permutation_go_from_minus_to_plus_a_half_and_sum_to_zero(rng, size):
    x = rng.permutation(size).astype(np.float32)
    found = np.asarray(ranks(x))
    np.testing.assert_allclose(found, x / (size - 1) - 0.5, atol=1e-7)
    assert abs(found.sum()) < 1e-5


def test_equal_numbers_share_the_mean_of_their_ranks(rng):
    x = rng.integers(0, 5, 40).astype(np.float32)
    found = np.asarray(ranks(x))
    expected = np.zeros(40)
    for i in range(40):  # from the definition: the mean place among all orders of the ties
        expected[i] = (sum(x < x[i]) + (sum(x == x[i]) - 1) / 2) / 39 - 0.5
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(set(found.tolist())) == len(set(x.tolist())) and abs(found.sum()) < 1e-5


def test_all_equal_are_zero_and_one_alone_too():
    assert np.all(np.asarray(ranks(np.full(6, 3.0, np.float32))) == 0)
    assert np.asarray(ranks(np.array([1, 1], np.float32))).tolist() == [0, 0]
