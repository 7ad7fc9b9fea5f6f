"""A ParameterShard: owns some leaves of the parameters and applies gradients to them on arrival (Nair et al. 2015, GORILA).

A shard holds the trees of the whole with None, an empty subtree, for every leaf that another shard owns, so `Agent.apply`
runs on it unchanged: clipping is done before, and what is left works leaf by leaf. The one shard of one owns everything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.types import Agent, Array, Gradients, PyTree, TrainState
from rookery.workers.learning.learner import initial
from rookery.workers.learning.nonfinite import NonFinite
from rookery.workers.learning.tree_paths import from_flat, path_name, to_flat


class Applied(NamedTuple):
    """The state of a shard after an update."""

    version: int  # updates applied so far
    params: PyTree  # never donated: may be held and published
    slow: PyTree
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0  # from the end of the update before to the start of this one


class ParameterShard:
    def __init__(self, agent: Agent, *, seed: int, index: int = 0, num_shards: int = 1, snapshot: PyTree | None = None) -> None:
        """snapshot: of the whole state, as a Learner's is."""
        whole, self.version = state_of(agent, seed, snapshot), int(snapshot["version"]) if snapshot else 0
        self._agent, self._index = agent, index
        self._state: TrainState = owned(whole, trained(whole.params), index, num_shards)
        self._apply = jax.jit(self._guarded, donate_argnums=(2,))
        self._ended = time.perf_counter()

    def pull(self) -> Applied:
        return Applied(self.version, self._state.params, self._state.slow)

    def apply(self, tree: PyTree) -> Applied:
        """Apply this shard's part of a gradient, and wait until the update is ready."""
        begin = time.perf_counter()
        params, slow, optimizer, updates = self._state
        self._state, finite = self._apply(params, slow, optimizer, updates, tree)
        finite = np.asarray(finite)  # waits for the update
        if not finite.all():
            leaves = jax.tree_util.tree_leaves_with_path(self._state.params)
            names = [path_name(path) for (path, _), ok in zip(leaves, finite) if not ok]
            raise NonFinite(
                f"update {self.version + 1} was not applied: parameters {', '.join(names)} would have become non-finite. "
                "Try a lower learning rate."
            )
        self.version += 1
        end = time.perf_counter()
        idle, self._ended = begin - self._ended, end
        return Applied(self.version, self._state.params, self._state.slow, end - begin, idle)

    def _guarded(
        self, params: PyTree, slow: PyTree, optimizer: PyTree, updates: Array, tree: PyTree
    ) -> tuple[TrainState, Array]:
        """Apply; keep the old state where the new one is not finite. finite: [leaves of params]."""
        assert self._agent.apply is not None
        old = TrainState(params, slow, optimizer, updates)
        new = self._agent.apply(old, Gradients(tree, {}))
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new.params)])
        return jax.tree.map(lambda to, kept: jnp.where(finite.all(), to, kept), new, old), finite

    def state(self) -> TrainState:
        """Return the leaves that this shard owns, to be saved with the others'."""
        return self._state

    def snapshot(self) -> PyTree:
        """Save a shard that owns everything, in the form of a Learner's snapshot."""
        return {"state": to_flat(self._state), "version": self.version}

    def close(self) -> None:
        pass


# ------------------------------------------------------------------------------------------------------- cutting


def state_of(agent: Agent, seed: int, snapshot: PyTree | None) -> TrainState:
    """Return the state that a Learner of that seed begins with, or that of a snapshot."""
    if snapshot is None:
        return initial(agent)(jax.random.fold_in(ops.random.key(seed), 0))
    return from_flat(jax.eval_shape(agent.init, ops.random.key(seed)), snapshot["state"])


def trained(tree: PyTree) -> PyTree:
    """Select what an optimizer steps, of parameters or of a gradient: the network, where other parts (normalisers, what they
    have seen) stand beside it."""
    return tree["network"] if isinstance(tree, dict) and "network" in tree else tree


def owned(tree: PyTree, like: PyTree, shard: int, num_shards: int) -> PyTree:
    """Select the leaves of a shard in every subtree that is shaped like the trained parameters; scalars stay whole.

    An optimizer may keep a moment of all parameters as one vector (algorithms/optimizers.py does): its segments are dealt
    out as the leaves are.
    """
    if num_shards == 1:
        return tree
    shape: Any = jax.tree.structure(like)
    sizes = [leaf.size for leaf in jax.tree.leaves(like)]
    ends = np.cumsum(sizes)
    mine = [i % num_shards == shard for i in range(len(sizes))]

    def keep(part: PyTree) -> PyTree:
        if jax.tree.structure(part) == shape:
            leaves = [leaf if own else None for leaf, own in zip(jax.tree.leaves(part), mine)]
            return jax.tree.unflatten(shape, leaves)
        if getattr(part, "shape", None) == (int(ends[-1]),):
            return jnp.concatenate([part[end - size : end] for size, end, own in zip(sizes, ends, mine) if own])
        return part

    return jax.tree.map(keep, tree, is_leaf=lambda part: jax.tree.structure(part) == shape)


def whole_state(parts: Sequence[TrainState], like: TrainState) -> TrainState:
    """Rejoin the state that `owned` divided; like: one of the same shapes, undivided."""
    shape: Any = jax.tree.structure(trained(like.params))
    sizes = [leaf.size for leaf in jax.tree.leaves(trained(like.params))]

    def join(whole: PyTree, *pieces: PyTree) -> PyTree:
        if jax.tree.structure(whole) == shape:
            return joined(pieces)
        if getattr(whole, "shape", None) != (sum(sizes),):
            return pieces[0]
        taken = [0] * len(pieces)
        segments = []
        for i, size in enumerate(sizes):
            shard = i % len(pieces)
            segments.append(pieces[shard][taken[shard] : taken[shard] + size])
            taken[shard] += size
        return jnp.concatenate(segments)

    return jax.tree.map(join, like, *parts, is_leaf=lambda part: jax.tree.structure(part) == shape)


def joined(parts: Sequence[PyTree]) -> PyTree:
    """Rejoin subtrees shaped like the parameters, which `owned` divided."""
    hole = lambda x: x is None
    rows = zip(*(jax.tree.leaves(part, is_leaf=hole) for part in parts))
    whole: Any = jax.tree.structure(parts[0], is_leaf=hole)
    return jax.tree.unflatten(whole, [next(leaf for leaf in row if leaf is not None) for row in rows])
