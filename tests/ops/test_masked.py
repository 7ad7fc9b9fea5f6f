import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import ops

masked_mean, masked_moments = jax.jit(ops.masked_mean), jax.jit(ops.masked_moments)
masked_normalise = jax.jit(ops.masked_normalise)


def test_masked_moments_are_those_of_the_kept_entries(rng):
    x, mask = rng.normal(3, 2, (7, 9)).astype(np.float32), (rng.random((7, 9)) < 0.6).astype(np.float32)
    kept = x[mask == 1]
    mean, std = masked_moments(x, mask)
    np.testing.assert_allclose([masked_mean(x, mask), mean, std], [kept.mean(), kept.mean(), kept.std()], rtol=1e-5)
    np.testing.assert_allclose(masked_normalise(x, mask)[mask == 1], (kept - kept.mean()) / kept.std(), atol=1e-5)
    assert not masked_normalise(x, mask)[mask == 0].any()


@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 1), (7, 1, 3)])
def test_a_mask_broadcasts_from_the_leading_axes(rng, shape):
    x, mask = rng.normal(size=(7, 9, 3)).astype(np.float32), (rng.random(shape) < 0.6).astype(np.float32)
    full = np.broadcast_to(mask.reshape(shape if len(shape) == 3 else (*shape, 1)), x.shape)
    np.testing.assert_allclose(masked_mean(x, mask), x[full == 1].mean(), atol=1e-6)
    np.testing.assert_allclose(masked_moments(x, mask)[1], x[full == 1].std(), rtol=1e-5)


def test_a_mask_may_hold_small_weights(rng):
    x, weight = rng.normal(size=(4, 5)).astype(np.float32), (0.01 * rng.random((4, 5))).astype(np.float32)
    np.testing.assert_allclose(masked_mean(x, weight), np.average(x, weights=weight), rtol=1e-4)


def test_an_all_zero_mask_gives_zeros_and_finite_gradients():
    x, mask = jnp.full((3, 2), 5.0), jnp.zeros((3, 2))
    assert masked_mean(x, mask) == 0 and masked_moments(x, mask) == (0, 0) and not masked_normalise(x, mask).any()
    assert not jax.grad(lambda x: masked_mean(x, mask))(x).any()


def test_what_is_masked_may_be_infinite():
    x, mask = jnp.array([[1.0, jnp.inf], [jnp.nan, 3.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(masked_mean(x, mask), 2.0)
    np.testing.assert_allclose(masked_moments(x, mask), (2.0, 1.0))
    np.testing.assert_allclose(masked_normalise(x, mask), [[-1, 0], [0, 1]], atol=1e-6)


def test_the_mean_has_the_gradient_mask_over_count_and_normalised_advantages_have_none(rng):
    x, mask = jnp.asarray(rng.normal(size=(4, 5))), jnp.asarray(rng.random((4, 5)) < 0.5, jnp.float32)
    np.testing.assert_allclose(jax.grad(masked_mean)(x, mask), mask / mask.sum(), rtol=1e-6)
    assert not jax.grad(lambda x: jnp.sum(masked_normalise(x, mask) ** 2))(x).any()


def test_the_deviation_survives_a_large_mean(rng):
    x = (1e4 + rng.normal(size=(50, 60))).astype(np.float32)
    np.testing.assert_allclose(masked_moments(x, jnp.ones((50, 60)))[1], x.astype(np.float64).std(), rtol=1e-3)


def test_a_mask_with_more_axes_than_its_array_is_refused():
    with pytest.raises(ValueError, match="more axes"):
        masked_mean(jnp.ones((3,)), jnp.ones((3, 2)))
