"""What value-based algorithms are made of: the choice of an action, distributions of returns, the scale of values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def huber(x: Array, delta: float = 1.0) -> Array:
    """Compute x² / 2 near 0, delta (|x| − delta / 2) beyond delta: the gradient is the error clipped to ± delta. Any shape."""
    size = jnp.abs(x)
    inside = jnp.minimum(size, delta)
    return inside * (size - 0.5 * inside)


def of_action(values: Array, action: Array) -> Array:
    """Pick by action: values [..., A, *rest], action [...] integers -> [..., *rest]. Gradients flow to the chosen values."""
    rest = values.ndim - action.ndim - 1
    index = action.reshape(action.shape + (1,) * (1 + rest))
    return jnp.take_along_axis(values, index, action.ndim).squeeze(action.ndim)


def epsilon_greedy(key: Array, q: Array, *, epsilon: Array, legal: Array | None = None) -> Array:
    """Pick the best action, or with probability epsilon any legal one. q [B, A], epsilon [B], legal [B, A] bool -> [B] int32"""
    coin, choice = jax.random.split(key)
    draws = jax.random.uniform(choice, q.shape)
    random = jnp.argmax(draws if legal is None else jnp.where(legal, draws, -1.0), -1)
    explores = jax.random.uniform(coin, epsilon.shape) < epsilon
    return jnp.where(explores, random, jnp.argmax(q, -1)).astype(jnp.int32)


def support(low: float, high: float, num_atoms: int) -> Array:
    """Make equally spaced returns [K]."""
    return jnp.linspace(low, high, num_atoms)


def wide_support(num_atoms: int, largest: float = 3_000.0) -> Array:
    """Make returns [K] from −largest to largest, dense at 0: sign(u) (exp |u| − 1) of equally spaced u (Hafner et al. 2023).

    The scale of a return need not be known: 51 atoms are 0.4 apart at 0 and a third of their size apart further out, and
    what lies between two of them keeps its mean.
    """
    ends = jnp.log1p(largest)
    u = jnp.linspace(-ends, ends, num_atoms)
    return jnp.sign(u) * jnp.expm1(jnp.abs(u))


def categorical_projection(returns: Array, probabilities: Array, atoms: Array) -> Array:
    """Project a distribution over `returns` to one over `atoms`, in ascending order (Bellemare et al. 2017, C51).

    returns, probabilities [..., J], atoms [K] -> [..., K]. What lies between two atoms is shared by its distance to them, so
    that the mean stays; what lies beyond the ends goes to the ends. m_i = Σ_j p_j hat_i(clip(returns_j)), where hat_i is 1 at
    atom i and falls to 0 at its neighbours: no special case for a return that meets an atom. No gradient flows through it.
    """
    clipped = jnp.clip(returns, atoms[0], atoms[-1])[..., None, :]  # [..., 1, J]
    lift = lambda x: x.reshape((1,) * (returns.ndim - 1) + (-1, 1))  # [..., K, 1]
    gaps = jnp.diff(atoms)
    below, above = jnp.concatenate([gaps[:1], gaps]), jnp.concatenate([gaps, gaps[-1:]])  # [K] to the neighbours
    distance = clipped - lift(atoms)
    shares = jnp.clip(1.0 - jnp.maximum(distance / lift(above), -distance / lift(below)), 0.0, 1.0)
    return jax.lax.stop_gradient(jnp.sum(shares * probabilities[..., None, :], -1))


def squeeze_value(x: Array, epsilon: float = 1e-3) -> Array:
    """Compute h(x) = sign(x) (√(|x| + 1) − 1) + epsilon x (Pohlen et al. 2018): large returns without clipping rewards."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unsqueeze_value(x: Array, epsilon: float = 1e-3) -> Array:
    """Invert `squeeze_value`."""
    root = (jnp.sqrt(1.0 + 4.0 * epsilon * (jnp.abs(x) + 1.0 + epsilon)) - 1.0) / (2.0 * epsilon)
    return jnp.sign(x) * (jnp.square(root) - 1.0)
