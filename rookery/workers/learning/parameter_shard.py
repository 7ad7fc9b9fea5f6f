"""A ParameterShard: owns some leaves of the parameters and applies gradients to them on arrival (Nair et al. 2015, GORILA).

A shard holds the trees of the whole with None, an empty subtree, for every leaf that another shard owns, so `Agent.apply`
runs on it unchanged: clipping is done before, and what is left works leaf by leaf. The one shard of one owns everything.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.algorithms import hyper
from rookery.algorithms.sharing import program_of
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


@functools.lru_cache(maxsize=16)
def compiled_apply(agent: Agent) -> Callable[..., tuple[TrainState, Array]]:
    """Compile, once per process and agent: apply; keep the old state where the new one is not finite.

    (params, slow, optimizer, updates, tree) -> state, finite [leaves of params]."""
    assert agent.apply is not None
    apply = agent.apply

    def guarded(params: PyTree, slow: PyTree, optimizer: PyTree, updates: Array, tree: PyTree) -> tuple[TrainState, Array]:
        old = TrainState(params, slow, optimizer, updates)
        new = apply(old, Gradients(tree, {}))
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new.params)])
        return jax.tree.map(lambda to, kept: jnp.where(finite.all(), to, kept), new, old), finite

    return jax.jit(guarded, donate_argnums=(2,))


class ParameterShard:
    def __init__(self, agent: Agent, *, seed: int, index: int = 0, num_shards: int = 1, snapshot: PyTree | None = None) -> None:
        """snapshot: of the whole state, as a Learner's is."""
        whole, self.version = state_of(agent, seed, snapshot), int(snapshot["version"]) if snapshot else 0
        self._agent, self._index = agent, index
        self._state: TrainState = owned(agent, whole, whole.params, index, num_shards)
        self._apply = compiled_apply(program_of(agent))
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

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name, which every shard has, from the next update on. ValueError: one is unknown."""
        self._state = self._state._replace(params=hyper.tuned(self._state.params, values))

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


class TrainedPart(NamedTuple):
    """A part of the parameters that is trained, of those of an agent: its leaves are dealt out to shards one by one."""

    like: PyTree  # arrays, or their shapes
    number: int  # of its first leaf, counted over all parts

    def fits(self, tree: PyTree) -> bool:
        """Tell whether it is a tree of this part's structure and shapes. A counter of an optimizer is not, beside a part of
        one number."""
        mine: Any = jax.tree.structure(self.like)
        if jax.tree.structure(tree) != mine:
            return False
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(self.like))
        return all(np.shape(x) == y.shape and jnp.result_type(x) == y.dtype for x, y in pairs)

    def is_flat(self, tree: PyTree) -> bool:
        """Tell whether it is one vector of all numbers of this part, as algorithms/optimizers.py keeps moments."""
        return getattr(tree, "shape", None) == (sum(self.sizes),)

    @property
    def sizes(self) -> list[int]:
        return [leaf.size for leaf in jax.tree.leaves(self.like)]

    def shards(self, num_shards: int) -> list[int]:
        """List the shard that owns each leaf."""
        return [(self.number + i) % num_shards for i in range(len(self.sizes))]


def trained(agent: Agent, tree: PyTree) -> dict[str, PyTree]:
    """Select what optimizers step, of parameters or of a gradient, by its names (`Agent.trained`); all of it is called ""."""
    return {"": tree} if agent.trained is None else {name: tree[name] for name in agent.trained}


def owned(agent: Agent, tree: PyTree, like: PyTree, shard: int, num_shards: int) -> PyTree:
    """Select the leaves of a shard, of a TrainState or of a gradient: None for every leaf of a trained part that another shard
    owns, in the parts themselves, in their optimizers and in what is slow and shaped like them. All else stays whole.

    like: the parameters, or a gradient. An optimizer may keep a moment of a whole part as one vector (algorithms/optimizers.py
    does): its segments are dealt out as the leaves are.
    """
    if num_shards == 1:
        return tree

    def cut(part: TrainedPart, piece: PyTree) -> PyTree:
        mine = [owner == shard for owner in part.shards(num_shards)]
        if part.fits(piece):
            leaves = [leaf if own else None for leaf, own in zip(jax.tree.leaves(piece), mine)]
            structure: Any = jax.tree.structure(piece)
            return jax.tree.unflatten(structure, leaves)
        ends = np.cumsum(part.sizes)
        kept = [piece[end - size : end] for size, end, own in zip(part.sizes, ends, mine) if own]
        return jnp.concatenate(kept) if kept else piece[:0]

    return _by_part(agent, cut, like, tree)


def whole_state(agent: Agent, parts: Sequence[TrainState], like: TrainState) -> TrainState:
    """Rejoin the state that `owned` divided; like: one of the same shapes, undivided."""

    def join(part: TrainedPart, whole: PyTree, *pieces: PyTree) -> PyTree:
        if part.fits(whole):
            return joined(pieces)
        taken, segments = [0] * len(pieces), []
        for size, owner in zip(part.sizes, part.shards(len(pieces))):
            segments.append(pieces[owner][taken[owner] : taken[owner] + size])
            taken[owner] += size
        return jnp.concatenate(segments)

    joint: TrainState = _by_part(agent, join, like.params, like, *parts)
    return joint


def _by_part(agent: Agent, function: Callable[..., PyTree], like: PyTree, tree: PyTree, *others: PyTree) -> PyTree:
    """Call function(part, subtree, *the others') where a subtree of `tree`, a TrainState or a gradient, is a trained part or a
    flat vector of one; of all else, the first of the others (or `tree`) stays."""
    found, number = {}, 0
    for name, piece in trained(agent, like).items():
        found[name] = TrainedPart(piece, number)
        number += len(found[name].sizes)

    def within(part: TrainedPart, tree: PyTree, *others: PyTree) -> PyTree:
        is_one = lambda x: part.fits(x) or part.is_flat(x)
        one = lambda x, *rest: function(part, x, *rest) if is_one(x) else rest[0] if rest else x
        return jax.tree.map(one, tree, *others, is_leaf=is_one)

    def named(tree: PyTree, *others: PyTree) -> PyTree:
        """Map the parts by their names, of params, optimizers and gradients."""
        if "" in found:
            return within(found[""], tree, *others)
        rest = others[0] if others else tree
        there = {name: part for name, part in found.items() if name in tree}
        return rest | {name: within(part, tree[name], *(o[name] for o in others)) for name, part in there.items()}

    def slow(tree: PyTree, *others: PyTree) -> PyTree:
        """Map parts by name where it has names, else whatever is shaped like a part. A lone number is shaped like too much."""
        if isinstance(tree, dict) and "" not in found and found.keys() & tree.keys():
            return named(tree, *others)
        part = next((part for part in found.values() if any(jnp.ndim(x) for x in jax.tree.leaves(part.like))), None)
        return (others or (tree,))[0] if part is None else within(part, tree, *others)

    if not isinstance(tree, TrainState):
        return named(tree, *others)
    of = lambda name: [getattr(state, name) for state in (tree, *others)]
    updates = (others or (tree,))[0].updates
    return TrainState(named(*of("params")), slow(*of("slow")), named(*of("optimizer")), updates)


def joined(parts: Sequence[PyTree]) -> PyTree:
    """Rejoin subtrees shaped like the parameters, which `owned` divided."""
    hole = lambda x: x is None
    rows = zip(*(jax.tree.leaves(part, is_leaf=hole) for part in parts))
    whole: Any = jax.tree.structure(parts[0], is_leaf=hole)
    return jax.tree.unflatten(whole, [next(leaf for leaf in row if leaf is not None) for row in rows])
