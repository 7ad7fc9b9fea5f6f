"""Random keys that are cheap on a CPU: a counter-based hash behind jax's own key type.

`key(seed)` is used wherever Rookery makes a key; everything else is `jax.random` as usual. jax's default generator
(threefry) is made of loops that XLA on CPU neither fuses nor compiles quickly: drawing the noise for 64 actions took
75 µs of a 235 µs decision, and each use cost 0.4 s of compilation. Here, 32 random bits are a hash of (key, counter): two
rounds of a 32-bit finaliser with low bias, with a word of the key mixed in before each; it fuses into what uses it.
Good enough for sampling actions, shuffling and initial weights; not for cryptography.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from rookery.types import Array

GOLDEN = np.uint32(0x9E3779B9)


def key(seed: int | Array) -> Any:
    """Make a typed key for jax.random."""
    return jax.random.key(seed, impl=_IMPLEMENTATION)


def _mix(x: Array) -> Array:
    """Apply a bijection of 32-bit words in which each input bit flips each output bit with a probability near one half."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def _hash(k: Array, counter: Array) -> Array:
    """Hash a counter. k: [2] words of a key; counter: any shape -> words of that shape."""
    return _mix(_mix(counter * GOLDEN + k[0]) + k[1])


def _seed(seed: Array) -> Array:
    word = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack([_mix(word), _mix(word + GOLDEN)])


def _split(k: Array, shape: tuple[int, ...]) -> Array:
    return _hash(k ^ np.array([0xA511E9B3, 0x63D83595], np.uint32), _counters((*shape, 2)))


def _fold_in(k: Array, data: Array) -> Array:
    word = jnp.asarray(data).astype(jnp.uint32)
    salted = k ^ np.array([0x1B873593, 0xCC9E2D51], np.uint32)
    return jnp.stack([_hash(salted, word), _hash(salted[::-1], word)])


def _random_bits(k: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width == 64:
        high, low = _random_bits(k, 32, shape), _random_bits(_fold_in(k, jnp.uint32(1)), 32, shape)
        return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
    return _hash(k, _counters(shape)).astype(jnp.dtype(f"uint{bit_width}"))


def _counters(shape: tuple[int, ...]) -> Array:
    return jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


_IMPLEMENTATION = jax.extend.random.define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="rookery", tag="rk"
)
