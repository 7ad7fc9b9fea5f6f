"""What the checks share: a broken contract as an error, and layouts compared leaf by leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import PyTree


class ContractBroken(AssertionError):
    """A part does not keep a contract of rookery/types.py; the message says which, where, and what was found."""


def require(holds: Any, message: str) -> None:
    """Raise ContractBroken with this message unless it holds; unlike assert, in optimised Python as well."""
    if not holds:
        raise ContractBroken(message)


def require_layout(what: str, expected: PyTree, found: PyTree) -> None:
    """Require the same structure, shapes and types: with another layout a function is compiled twice, or not at all."""
    want, got = jax.tree.structure(expected), jax.tree.structure(found)
    require(same_structure(expected, found), f"{what} has another structure: {got} instead of {want}")
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found)):
        one, other = ((np.shape(x), jnp.result_type(x)) for x in (before, after))
        require(one == other, f"{what}: leaf {_name(path)} is {_shown(*other)} instead of {_shown(*one)}")


def same_structure(one: PyTree, other: PyTree) -> bool:
    """Compare the structures of two trees, whatever their leaves are."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    return structures[0] == structures[1]


def require_leading(what: str, tree: PyTree, axes: tuple[int, ...]) -> None:
    """Require that every leaf begins with these axes."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        shape = np.shape(leaf)
        found = shape[: len(axes)] == axes
        require(found, f"{what}: leaf {_name(path)} has shape {shape}, which must begin with {axes}")


def require_finite(what: str, tree: PyTree) -> None:
    """Require that every number is finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        require(np.isfinite(np.asarray(leaf)).all(), f"{what}: leaf {_name(path)} is not finite")


def require_close(what: str, expected: PyTree, found: PyTree, *, rtol: float, atol: float) -> None:
    """Require that all numbers are equal, but for rounding."""
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found)):
        a, b = np.asarray(one), np.asarray(other)
        close = np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        require(close, f"{what}: leaf {_name(path)} differs by up to {np.abs(a - b).max():.3g}")


def same(one: PyTree, other: PyTree) -> bool:
    """Compare all leaves bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "(the array itself)"


def _shown(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{np.dtype(dtype).name}{list(shape)}"
