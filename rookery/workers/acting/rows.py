"""Rows of a rollout, as whoever steps environments writes them."""

from __future__ import annotations

import jax
import numpy as np

from rookery.types import PyTree, Rollout


class Rows:
    """The leaves of a rollout's part, flattened once per rollout instead of at every step."""

    def __init__(self, part: Rollout) -> None:
        self.observation, self.action = jax.tree.leaves(part.observation), jax.tree.leaves(part.action)
        self.extras_by_name = part.extras
        self.extras = jax.tree.leaves({k: v for k, v in part.extras.items() if k != "discounted_return"})
        self.memory, self.weight = jax.tree.leaves(part.memory), jax.tree.leaves(part.weight)
        self.reward, self.discount, self.valid = part.reward, part.discount, part.valid

    @staticmethod
    def write(leaves: list[np.ndarray], t: int, tree: PyTree) -> None:
        for to, source in zip(leaves, jax.tree.leaves(tree)):
            to[t] = source
