"""Trees of arrays as path -> array, for checkpoints: readable without the classes that they were made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import PyTree


def path_name(path: tuple) -> str:
    """Join the keys of a path: network/heads/policy/kernel."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def to_flat(tree: PyTree) -> dict[str, np.ndarray]:
    """Flatten a tree to path -> array: readable without the classes that it was made of."""
    return {path_name(path): np.array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def from_flat(like: PyTree, flat: dict[str, np.ndarray]) -> PyTree:
    """Invert `to_flat`, in the structure of `like`; say what differs where it cannot be done."""
    wanted = jax.tree_util.tree_leaves_with_path(like)
    names = {path_name(path): leaf for path, leaf in wanted}
    problems = [f"{name} is missing" for name in names if name not in flat]
    problems += [f"{name} is not part of this agent" for name in flat if name not in names]
    problems += [
        f"{name} has shape {flat[name].shape}, this agent's has {leaf.shape}"
        for name, leaf in names.items()
        if name in flat and tuple(flat[name].shape) != tuple(leaf.shape)
    ]
    if problems:
        raise ValueError("the checkpoint was made by another agent: " + "; ".join(problems[:8]))
    return jax.tree.unflatten(
        jax.tree.structure(like), [jnp.array(flat[path_name(path)], dtype=leaf.dtype) for path, leaf in wanted]
    )
