"""The product of a dense layer, with a gradient that is fast where it runs.

The gradient of a kernel is x^T d, rows summed over. XLA's matrix products on a CPU want their left side in rows; asked for a
transposed one they are half as fast, and a fifth where there are few columns.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from rookery.types import Array

NARROW = 32  # columns of d below which it is the cheaper side to turn


def dot_general(x: Array, kernel: Array, dimensions: Any = None, precision: Any = None, **_: Any) -> Array:
    """For flax: x [..., in], kernel [in, out] -> [..., out]."""
    return product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """x [N, in], kernel [in, out] -> [N, out]."""
    return x @ kernel


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    x, kernel = saved
    turned = lax.optimization_barrier  # else XLA folds the transposition into the product again
    if jax.default_backend() != "cpu":
        wanted = x.T @ d
    elif d.shape[1] < NARROW:
        wanted = turned(turned(d.T) @ x).T
    else:
        wanted = turned(x.T) @ d
    return d @ kernel.T, wanted


product.defvjp(_forward, _backward)
