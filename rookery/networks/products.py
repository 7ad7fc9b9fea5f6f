"""A dense layer's product and its rectifier, with gradients that are fast where they run.

The gradient of a kernel is x^T d, rows summed over. XLA's matrix products on a CPU want their left side in rows; asked for a
transposed one they are half as fast, and a fifth where there are few columns. A product with few columns wants its right side
turned. What chooses between two numbers, as the gradient of a rectifier, is three times as slow as what multiplies them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rookery.types import Array

NARROW = 32  # columns below which they are the cheaper side to turn


def dot_general(x: Array, kernel: Array, dimensions: Any = None, precision: Any = None, **_: Any) -> Array:
    """Multiply, for flax: x [..., in], kernel [in, out] -> [..., out]."""
    return product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """Multiply: x [N, in], kernel [in, out] -> [N, out]."""
    if kernel.shape[1] < NARROW and _on_cpu():
        return lax.dot_general(x, _turned(kernel), (((1,), (1,)), ((), ())))
    return x @ kernel


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    x, kernel = saved
    if not _on_cpu():
        wanted = x.T @ d
    elif d.shape[1] < NARROW:
        wanted = lax.optimization_barrier(_turned(d) @ x).T
    else:
        wanted = _turned(x) @ d
    return d @ kernel.T, wanted


product.defvjp(_forward, _backward)


@jax.custom_vjp
def relu(x: Array) -> Array:
    return jnp.maximum(x, 0)


relu.defvjp(lambda x: (y := relu(x), y), lambda y, d: (d * jnp.sign(y),))


def _turned(x: Array) -> Array:
    """Return x^T as an array of its own; else XLA folds the transposition into the product again."""
    return lax.optimization_barrier(x.T)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"
