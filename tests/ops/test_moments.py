import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops import moments
from rookery.ops.moments import Moments

update, std = jax.jit(moments.update), jax.jit(moments.std)
normalise = jax.jit(moments.normalise, static_argnames="clip")


def test_many_masked_updates_equal_the_moments_of_all_kept_samples(rng):
    state, kept = moments.init((3,)), []
    for _ in range(6):
        x, mask = rng.normal([0, 5, -3], [1, 0.1, 9], (4, 5, 3)).astype(np.float32), rng.random((4, 5)) < 0.6
        kept.append(x[mask])
        x[~mask] = np.nan  # must not matter
        state = update(state, x, mask)
    kept = np.concatenate(kept)
    assert state.count == len(kept)
    np.testing.assert_allclose(state.mean, kept.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(std(state), kept.std(0), rtol=1e-4)


def test_an_update_without_a_mask_equals_one_with_ones(rng):
    x = rng.normal(size=(4, 5, 2)).astype(np.float32)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        update(moments.init((2,)), x),
        update(moments.init((2,)), x, np.ones((4, 5))),
    )


def test_an_all_zero_mask_changes_nothing(rng):
    state = update(moments.init((2,)), rng.normal(size=(8, 2)).astype(np.float32))
    for before in (moments.init((2,)), state):
        after = update(before, np.full((8, 2), np.nan, np.float32), np.zeros(8))
        jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.parametrize("batch", [1, 64])
def test_float32_keeps_mean_and_deviation_over_ten_to_the_eight_samples(rng, batch):
    """Starts where 10⁸ − 2·10⁵ batches have gone before, and merges 2·10⁵ batches that say something else."""
    seen, batches = 1e8, 200_000
    start = Moments(
        jnp.asarray(seen), jnp.asarray(1000.0), jnp.asarray(seen), (jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))
    )
    noise = jnp.asarray(rng.normal(1001.0, 2.0, (1000, batch)), jnp.float32)

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda s, i: (moments.update(s, noise[i % 1000]), None), state, jnp.arange(batches))[0]

    state, wide = run(start), np.asarray(noise, np.float64)
    added, total = batches * batch, seen + batches * batch
    mean = (seen * 1000 + added * wide.mean()) / total
    variance = (seen * (1 + (1000 - mean) ** 2) + added * (wide.var() + (wide.mean() - mean) ** 2)) / total
    assert float(state.count) + float(state.lost[0]) == total
    np.testing.assert_allclose(float(state.mean) + float(state.lost[1]) - 1000, mean - 1000, rtol=1e-2)
    np.testing.assert_allclose(std(state) - 1, np.sqrt(variance) - 1, rtol=1e-2)


def test_many_merges_from_nothing_find_a_mean_of_a_thousand_and_a_deviation_of_one(rng):
    noise = jnp.asarray(rng.normal(1000, 1, (1000, 64)), jnp.float32)

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda s, i: (moments.update(s, noise[i % 1000]), None), state, jnp.arange(50_000))[0]

    state = run(moments.init())
    np.testing.assert_allclose(state.mean, np.asarray(noise, np.float64).mean(), atol=1e-3)
    np.testing.assert_allclose(std(state), np.asarray(noise, np.float64).std(), rtol=1e-3)


def test_normalise_centres_scales_clips_and_leaves_untouched_what_it_knows_nothing_of(rng):
    x = np.array([[1.0, 2.0], [3.0, 2.0]], np.float32)
    np.testing.assert_allclose(normalise(moments.init((2,)), x), x)
    state = update(moments.init((2,)), x)  # the second feature is constant
    np.testing.assert_allclose(normalise(state, x), [[-1, 0], [1, 0]], atol=1e-6)
    far = np.array([102.0, -7.0], np.float32)
    np.testing.assert_allclose(normalise(state, far), [10, -9], rtol=1e-6)
    np.testing.assert_allclose(normalise(state, far, clip=None), [100, -9], rtol=1e-6)
    images = np.full((5, 2), 200, np.uint8)
    assert normalise(state, images).dtype == jnp.float32


def test_a_constant_feature_is_not_blown_up_by_rounding():
    x = jnp.full((1000, 1), 0.1) + 100
    state = update(update(moments.init((1,)), x), x)
    assert np.abs(normalise(state, x)).max() < 1e-2


def test_gradients_reach_x_and_never_the_moments(rng):
    x = jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)
    state = update(moments.init((2,)), x)
    loss = lambda state, x: jnp.sum(jnp.square(normalise(state, x)) + std(state)[None])
    to_state, to_x = jax.jit(jax.grad(loss, (0, 1)))(state, x)
    assert all(not leaf.any() for leaf in jax.tree.leaves(to_state))
    np.testing.assert_allclose(to_x, 2 * normalise(state, x) / std(state)[None], rtol=1e-4)
    assert all(not leaf.any() for leaf in jax.tree.leaves(jax.grad(lambda x: update(state, x).m2.sum())(x)))
