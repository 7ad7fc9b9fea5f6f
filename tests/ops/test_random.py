"""Random keys: as good as sampling, shuffling and initial weights need, and the same wherever they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops import random


def uniforms(key, shape):
    return np.asarray(jax.random.uniform(key, shape))


def test_words_are_uniform_and_their_neighbours_unrelated():
    x = uniforms(random.key(3), (200_000,))
    counts, _ = np.histogram(x, bins=64, range=(0, 1))
    expected = len(x) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)  # chi squared with 63 degrees
    for lag in (1, 2, 64, 1024):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 5 / np.sqrt(len(x))


def test_every_bit_is_set_half_of_the_time():
    bits = np.asarray(jax.random.bits(random.key(11), (100_000,)))
    share = np.array([((bits >> i) & 1).mean() for i in range(32)])
    assert np.abs(share - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


@pytest.mark.parametrize("make", ["fold_in", "split", "seed"])
def test_neighbouring_keys_give_unrelated_streams(make):
    n, base = 20_000, random.key(5)
    keys = {
        "fold_in": lambda: jax.vmap(lambda i: jax.random.fold_in(base, i))(jnp.arange(n)),
        "split": lambda: jax.random.split(base, n),
        "seed": lambda: jax.vmap(random.key)(jnp.arange(n)),
    }[make]()
    x = np.asarray(jax.vmap(lambda k: jax.random.uniform(k, (8,)))(keys))
    assert np.abs(np.corrcoef(x.T) - np.eye(8)).max() < 5 / np.sqrt(n)
    assert abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 5 / np.sqrt(n)
    assert np.abs(x.mean(0) - 0.5).max() < 5 / np.sqrt(12 * n)
    assert len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0)) == n


def test_a_key_means_the_same_inside_and_outside_of_a_compiled_function():
    key = random.key(2)
    np.testing.assert_array_equal(uniforms(key, (7,)), np.asarray(jax.jit(lambda k: jax.random.uniform(k, (7,)))(key)))
    assert (uniforms(key, (7,)) != uniforms(random.key(3), (7,))).all()


def test_samplers_of_jax_work_on_it():
    key = random.key(9)
    normal = np.asarray(jax.random.normal(key, (50_000,)))
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert sorted(np.asarray(jax.random.permutation(key, 100)).tolist()) == list(range(100))
    draws = np.asarray(jax.random.categorical(key, jnp.log(jnp.array([0.1, 0.9])), shape=(20_000,)))
    assert abs(draws.mean() - 0.9) < 0.02
    assert np.asarray(jax.random.bits(key, (4,), jnp.uint8)).dtype == np.uint8
