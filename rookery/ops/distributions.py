"""Action distributions as tuples of pure functions over the flat array that a network's policy head makes.

Actions are canonical (see `rookery.types.EnvPool`): Discrete and MultiDiscrete count from 0, int32; MultiBinary is
int8; Box is float32. Every function takes any leading axes. Gradients flow to `outputs` through logp, entropy and kl,
and through the samples of the Gaussians (they are reparameterised).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from numpy.typing import ArrayLike

from rookery.spaces import UnsupportedSpace
from rookery.types import PyTree

_ILLEGAL = -1e9  # exp gives exactly 0; finite, so that 0 * logit stays 0 and gradients stay finite
LARGEST_BOUND = 1e6  # of a Box that is a range; beyond, it stands for "no bound"
_LARGEST_TANH = 1 - 2**-24  # the float32 below 1
# Nodes for E[log(1 - tanh² u)] under N(mean, std). Its kink at 0 is 1 wide: 32 nodes err by less than 1e-7 at std ≤ 1,
# 2e-4 at 2 and 3e-2 at 5, whatever the mean.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class Distribution(NamedTuple):
    num_outputs: int  # size of the last axis of `outputs`
    sample: Callable[[Array, Array], PyTree]  # (key, outputs [..., num_outputs]) -> action [..., *shape]
    mode: Callable[[Array], PyTree]  # (outputs) -> action: the most likely one (for tanh: the image of the mean)
    logp: Callable[[Array, PyTree], Array]  # (outputs, action) -> [...]
    entropy: Callable[[Array], Array]  # (outputs) -> [...]
    kl: Callable[[Array, Array], Array]  # (p_outputs, q_outputs) -> [...] KL(p || q)
    sample_and_logp: Callable[[Array, Array], tuple[PyTree, Array]]
    #   (key, outputs) -> action, its logp: sample, then logp, but exact where a tanh has saturated. For Gaussians its
    #   gradient goes through the reparameterised sample (SAC) and is not the score: that is logp(outputs, action)'s


def mask_logits(outputs: Array, mask: Array) -> Array:
    """Make the actions whose mask is 0 impossible. outputs, mask: [..., num_outputs] -> [..., num_outputs].

    For categorical logits (concatenated ones for multi_categorical, each with a legal action) and Bernoulli ones (an
    illegal bit is 0). The entropy is that of the legal actions; the gradient of illegal logits is 0.
    """
    illegal = max(_ILLEGAL, float(jnp.finfo(outputs.dtype).min) / 2)
    return jnp.where(mask.astype(bool), outputs, jnp.asarray(illegal, outputs.dtype))


# ----------------------------------------------------------------------------------------------------- discrete


def categorical(n: int) -> Distribution:
    """Build the distribution over n actions; outputs are logits [..., n], actions int32 [...]."""
    return _simple(n, _categorical_sample, _categorical_mode, _categorical_logp, _categorical_entropy, _categorical_kl)


def multi_categorical(nvec: ArrayLike) -> Distribution:
    """Build independent categoricals, nvec [*shape] of their sizes; outputs are their logits, concatenated in C order.

    Actions are int32 [..., *shape]. Logits are padded to one [..., K, max(nvec)] array: the number of operations does
    not grow with K.
    """
    sizes = np.asarray(nvec, dtype=int)
    shape, flat = sizes.shape, [int(size) for size in sizes.reshape(-1)]
    widest, starts = max(flat), np.cumsum([0, *flat])

    def split(outputs: Array) -> Array:  # [..., sum(nvec)] -> [..., K, max(nvec)]
        lead = outputs.shape[:-1]
        if len(set(flat)) == 1:
            return outputs.reshape(*lead, len(flat), widest)
        pieces = []
        for start, size in zip(starts, flat):
            pieces.append(outputs[..., start : start + size])
            if size < widest:
                pieces.append(jnp.full((*lead, widest - size), _ILLEGAL, outputs.dtype))
        return jnp.concatenate(pieces, axis=-1).reshape(*lead, len(flat), widest)

    def sample(key: Array, outputs: Array) -> Array:
        return _to_event(_categorical_sample(key, split(outputs)), shape)

    def mode(outputs: Array) -> Array:
        return _to_event(_categorical_mode(split(outputs)), shape)

    def logp(outputs: Array, action: Array) -> Array:
        return jnp.sum(_categorical_logp(split(outputs), _from_event(action, shape)), -1)

    def entropy(outputs: Array) -> Array:
        return jnp.sum(_categorical_entropy(split(outputs)), -1)

    def kl(p_outputs: Array, q_outputs: Array) -> Array:
        return jnp.sum(_categorical_kl(split(p_outputs), split(q_outputs)), -1)

    return _simple(sum(flat), sample, mode, logp, entropy, kl)


def bernoulli(n: int | Sequence[int]) -> Distribution:
    """Build independent bits, n their number or shape; outputs are logits [..., prod(shape)], actions int8 [..., *shape]."""
    shape = (n,) if isinstance(n, int) else tuple(n)

    def sample(key: Array, outputs: Array) -> Array:
        bits = jax.random.uniform(key, outputs.shape, outputs.dtype) < jax.nn.sigmoid(outputs)
        return _to_event(bits.astype(jnp.int8), shape)

    def mode(outputs: Array) -> Array:
        return _to_event((outputs > 0).astype(jnp.int8), shape)

    def logp(outputs: Array, action: Array) -> Array:
        return jnp.sum(jnp.where(_from_event(action, shape) != 0, outputs, 0) - jax.nn.softplus(outputs), -1)

    def entropy(outputs: Array) -> Array:
        return jnp.sum(jax.nn.softplus(outputs) - outputs * jax.nn.sigmoid(outputs), -1)

    def kl(p_outputs: Array, q_outputs: Array) -> Array:
        linear = jax.nn.sigmoid(p_outputs) * (p_outputs - q_outputs)
        return jnp.sum(linear - jax.nn.softplus(p_outputs) + jax.nn.softplus(q_outputs), -1)

    return _simple(math.prod(shape), sample, mode, logp, entropy, kl)


# The one-hot comparison in logp, not a gather: it fuses with its neighbours, and the gradient of a gather is a scatter.
# Both share max, exp and sum with the entropy, and XLA then computes them once: logp, entropy and their gradient for
# [32, 64, 4] take 53 µs, against 104 for log_softmax with take_along_axis.


def _categorical_sample(key: Array, logits: Array) -> Array:
    return jax.random.categorical(key, logits).astype(jnp.int32)


def _categorical_mode(logits: Array) -> Array:
    return jnp.argmax(logits, -1).astype(jnp.int32)


def _categorical_logp(logits: Array, action: Array) -> Array:
    shifted, _, total = _softmax_parts(logits)
    index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    chosen = jnp.where(index == action.astype(jnp.int32)[..., None], shifted, 0)
    return jnp.sum(chosen, -1) - jnp.log(total)


def _categorical_entropy(logits: Array) -> Array:
    shifted, weight, total = _softmax_parts(logits)
    return jnp.log(total) - jnp.sum(weight * shifted, -1) / total


def _categorical_kl(p_logits: Array, q_logits: Array) -> Array:
    p_shifted, p_weight, p_total = _softmax_parts(p_logits)
    q_shifted, _, q_total = _softmax_parts(q_logits)
    return jnp.sum(p_weight * (p_shifted - q_shifted), -1) / p_total - jnp.log(p_total) + jnp.log(q_total)


def _softmax_parts(logits: Array) -> tuple[Array, Array, Array]:
    """Return logits − max, its exp, and the sum of that."""
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    weight = jnp.exp(shifted)
    return shifted, weight, jnp.sum(weight, -1)


# --------------------------------------------------------------------------------------------------- continuous


def gaussian(shape: int | Sequence[int], low: ArrayLike = -1.0, high: ArrayLike = 1.0) -> Distribution:
    """Build the distribution of centre + half · u with u independent normals; outputs [..., 2 * prod(shape)] are the means of
    u, then its log standard deviations, unclamped. u = ±1 are the bounds `low` and `high`; actions beyond them are for the
    environment to clip.

    The entropy, as the density, is that of the action: it grows with the bounds, by a constant.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape).reshape(-1) for bound in (low, high))
    centre, half = ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
    log_half = float(np.log((high - low) / 2).sum())
    plain = not centre.any() and (half == 1).all()  # then an action is u itself, to the last bit

    def to_action(u: Array) -> Array:
        return _to_event(u if plain else _lift(centre, u) + _lift(half, u) * u, shape)

    def to_u(action: Array) -> Array:
        flat = _from_event(action, shape)
        return flat if plain else (flat - _lift(centre, flat)) * _lift(1 / half, flat)

    def sample(key: Array, outputs: Array) -> Array:
        return to_action(_normal_sample(key, outputs, size))

    def mode(outputs: Array) -> Array:
        return to_action(outputs[..., :size])

    def logp(outputs: Array, action: Array) -> Array:
        return _normal_logp(outputs, to_u(action), size) - log_half

    def entropy(outputs: Array) -> Array:
        return jnp.sum(outputs[..., size:], -1) + (log_half + size * 0.5 * math.log(2 * math.pi * math.e))

    def kl(p_outputs: Array, q_outputs: Array) -> Array:
        return _normal_kl(p_outputs, q_outputs, size)

    def sample_and_logp(key: Array, outputs: Array) -> tuple[Array, Array]:
        u, logp = _normal_sample_and_logp(key, outputs, size)
        return to_action(u), logp - log_half

    return Distribution(2 * size, sample, mode, logp, entropy, kl, sample_and_logp)


def squashed_gaussian(low: ArrayLike, high: ArrayLike) -> Distribution:
    """Build the distribution of centre + half · tanh(u) with u normal, on the box [low, high]; outputs as for `gaussian`.

    logp inverts the tanh; an action at the bound counts as tanh(u) = ±(1 − 2⁻²⁴), |u| = 8.7, so that it stays finite.
    The entropy is that of u plus a Gauss-Hermite quadrature of the log-determinant: deterministic, needs no key.
    """
    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"squashed_gaussian needs finite bounds with low < high, got low={low}, high={high}.")
    shape, size = low.shape, low.size
    centre = ((low + high) / 2).reshape(-1).astype(np.float32)
    half = ((high - low) / 2).reshape(-1).astype(np.float32)
    log_half = float(np.log((high - low) / 2).sum())

    def squash(u: Array) -> Array:
        return _to_event(_lift(centre, u) + _lift(half, u) * jnp.tanh(u), shape)

    def sample(key: Array, outputs: Array) -> Array:
        return squash(_normal_sample(key, outputs, size))

    def mode(outputs: Array) -> Array:
        return squash(outputs[..., :size])

    def logp(outputs: Array, action: Array) -> Array:
        flat = _from_event(action, shape)
        y = jnp.clip((flat - _lift(centre, flat)) * _lift(1 / half, flat), -_LARGEST_TANH, _LARGEST_TANH)
        # atanh(y) is half their difference, log(1 − y²) their sum. Neither log1p nor arctanh: in a sum over more than
        # some 10⁴ numbers, XLA on CPU (jax 0.10.2, its YNN reduce fusion) takes log1p(−y) for log1p(y).
        above, below = jnp.log(1 + y), jnp.log(1 - y)
        return _normal_logp(outputs, 0.5 * (above - below), size) - jnp.sum(above + below, -1) - log_half

    def entropy(outputs: Array) -> Array:
        log_std = outputs[..., size:]
        u = outputs[..., :size, None] + jnp.exp(log_std)[..., None] * _lift(_NODES, outputs, 1)
        weights = _lift(_WEIGHTS / _WEIGHTS.sum(), outputs, 1)
        log_det = jnp.sum(weights * _log_det_tanh(u), (-2, -1))
        return jnp.sum(log_std, -1) + log_det + (log_half + size * 0.5 * math.log(2 * math.pi * math.e))

    def kl(p_outputs: Array, q_outputs: Array) -> Array:  # a bijection does not change it
        return _normal_kl(p_outputs, q_outputs, size)

    def sample_and_logp(key: Array, outputs: Array) -> tuple[Array, Array]:
        u, logp = _normal_sample_and_logp(key, outputs, size)
        return squash(u), logp - jnp.sum(_log_det_tanh(u), -1) - log_half

    return Distribution(2 * size, sample, mode, logp, entropy, kl, sample_and_logp)


def _normal_sample(key: Array, outputs: Array, size: int) -> Array:
    return _normal_sample_and_logp(key, outputs, size)[0]


def _normal_sample_and_logp(key: Array, outputs: Array, size: int) -> tuple[Array, Array]:
    mean, log_std = outputs[..., :size], outputs[..., size:]
    noise = jax.random.normal(key, mean.shape, mean.dtype)  # (x − mean) / std, without the rounding of x
    logp = -jnp.sum(0.5 * jnp.square(noise) + log_std, -1) - size * 0.5 * math.log(2 * math.pi)
    return mean + jnp.exp(log_std) * noise, logp


def _normal_logp(outputs: Array, x: Array, size: int) -> Array:
    mean, log_std = outputs[..., :size], outputs[..., size:]
    distance = (x - mean) * jnp.exp(-log_std)
    return -jnp.sum(0.5 * jnp.square(distance) + log_std, -1) - size * 0.5 * math.log(2 * math.pi)


def _normal_kl(p_outputs: Array, q_outputs: Array, size: int) -> Array:
    widening = p_outputs[..., size:] - q_outputs[..., size:]
    distance = (p_outputs[..., :size] - q_outputs[..., :size]) * jnp.exp(-q_outputs[..., size:])
    return jnp.sum(0.5 * (jnp.expm1(2 * widening) + jnp.square(distance)) - widening, -1)


def _log_det_tanh(u: Array) -> Array:
    """Compute log(1 − tanh² u) without the cancellation: 2 (log 2 − |u| − log(1 + exp(−2 |u|)))."""
    magnitude = jnp.abs(u)
    return 2 * (math.log(2) - magnitude - jnp.log1p(jnp.exp(-2 * magnitude)))


# --------------------------------------------------------------------------------------------- products, spaces


def product(parts: PyTree) -> Distribution:
    """Join independent parts: a dict, tuple or list, nested at will, of distributions. Actions have the same structure.

    Outputs are those of the parts, concatenated in the order of `jax.tree.leaves` (dicts by sorted key).
    """
    is_part = lambda node: isinstance(node, Distribution)  # a NamedTuple is a pytree too: stop above its fields
    leaves, structure = jax.tree.flatten(parts, is_leaf=is_part)
    ends = np.cumsum([part.num_outputs for part in leaves])

    def split(outputs: Array) -> list[Array]:
        return [outputs[..., end - part.num_outputs : end] for part, end in zip(leaves, ends)]

    def sample(key: Array, outputs: Array) -> PyTree:
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(structure, [part.sample(k, x) for part, k, x in zip(leaves, keys, split(outputs))])

    def mode(outputs: Array) -> PyTree:
        return jax.tree.unflatten(structure, [part.mode(x) for part, x in zip(leaves, split(outputs))])

    def logp(outputs: Array, action: PyTree) -> Array:
        # map, not zip: it refuses an action of another structure
        split_outputs = jax.tree.unflatten(structure, split(outputs))
        terms = jax.tree.map(lambda part, x, a: part.logp(x, a), parts, split_outputs, action, is_leaf=is_part)
        return reduce(add, jax.tree.leaves(terms))

    def entropy(outputs: Array) -> Array:
        return reduce(add, [part.entropy(x) for part, x in zip(leaves, split(outputs))])

    def kl(p_outputs: Array, q_outputs: Array) -> Array:
        return reduce(add, [part.kl(p, q) for part, p, q in zip(leaves, split(p_outputs), split(q_outputs))])

    def sample_and_logp(key: Array, outputs: Array) -> tuple[PyTree, Array]:
        keys = jax.random.split(key, len(leaves))
        pairs = [part.sample_and_logp(k, x) for part, k, x in zip(leaves, keys, split(outputs))]
        return jax.tree.unflatten(structure, [action for action, _ in pairs]), reduce(add, [logp for _, logp in pairs])

    return Distribution(int(ends[-1]), sample, mode, logp, entropy, kl, sample_and_logp)


def for_space(space: spaces.Space, squash: bool = False) -> Distribution:
    """Choose the distribution over a gymnasium action space; `squash`: bounded Boxes get `squashed_gaussian`.

    Without it they get a Gaussian in units of their bounds: a new policy, of deviation one, then covers [0, 500] as it covers
    [-1, 1]. Numbers of a Box that have no bounds get a plain one.
    """
    match space:
        case spaces.Discrete():
            return categorical(int(space.n))
        case spaces.MultiDiscrete():
            return multi_categorical(space.nvec)
        case spaces.MultiBinary():
            return bernoulli(space.shape)
        case spaces.Box() if not np.issubdtype(space.dtype, np.floating):
            raise UnsupportedSpace(f"No distribution for {space}: its numbers are whole; declare it as MultiDiscrete.")
        case spaces.Box() if not squash:
            there = are_ranges(space)
            return gaussian(space.shape, np.where(there, space.low, -1.0), np.where(there, space.high, 1.0))
        case spaces.Box() if space.is_bounded("both") and (space.low < space.high).all():
            return squashed_gaussian(space.low, space.high)
        case spaces.Box():
            raise UnsupportedSpace(
                f"A squashed Gaussian cannot cover {space}: give it finite bounds with low < high, or take squash=False."
            )
        case spaces.Dict() if space.spaces:
            return product({name: for_space(part, squash) for name, part in space.spaces.items()})
        case spaces.Tuple() if space.spaces:
            return product(tuple(for_space(part, squash) for part in space.spaces))
    raise UnsupportedSpace(
        f"No distribution for the action space {space}: rewrite it, with a gymnasium wrapper, as Discrete, "
        "MultiDiscrete, MultiBinary, Box, or a non-empty Dict or Tuple of these."
    )


def are_ranges(space: spaces.Box) -> np.ndarray:
    """Tell which numbers' bounds are a range to be covered: the largest number of a type, say, is no bound at all."""
    small = (np.abs(space.low) < LARGEST_BOUND) & (np.abs(space.high) < LARGEST_BOUND)
    return np.asarray(small & (space.low < space.high))


def _simple(
    num_outputs: int,
    sample: Callable[[Array, Array], Array],
    mode: Callable[[Array], Array],
    logp: Callable[[Array, Array], Array],
    entropy: Callable[[Array], Array],
    kl: Callable[[Array, Array], Array],
) -> Distribution:
    def sample_and_logp(key: Array, outputs: Array) -> tuple[Array, Array]:
        action = sample(key, outputs)
        return action, logp(outputs, action)

    return Distribution(num_outputs, sample, mode, logp, entropy, kl, sample_and_logp)


def _to_event(flat: Array, shape: tuple[int, ...]) -> Array:
    """Reshape [..., prod(shape)] to [..., *shape]."""
    return flat if len(shape) == 1 else flat.reshape(*flat.shape[:-1], *shape)


def _from_event(action: Array, shape: tuple[int, ...]) -> Array:
    """Reshape [..., *shape] to [..., prod(shape)]."""
    return action if len(shape) == 1 else action.reshape(*action.shape[: action.ndim - len(shape)], math.prod(shape))


def _lift(constant: np.ndarray, like: Array, extra: int = 0) -> Array:
    """Give a [K] constant the rank of `like` plus `extra`, and its dtype."""
    return jnp.asarray(constant.reshape((1,) * (like.ndim + extra - 1) + constant.shape), like.dtype)
