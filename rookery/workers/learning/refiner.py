"""The Refiner: a worker between a table and a learner. It makes of each batch what the agent's `refine` says, with the newest
parameters that were published to it (QT-Opt's Bellman updaters, Kalashnikov et al. 2018; MuZero's reanalyze)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rookery import ops
from rookery.data import arrays
from rookery.data.refined import RefinedBatch
from rookery.trees import tree_map
from rookery.types import BATCH_MAJOR, Agent, Array, Batch, PyTree, Rollout
from rookery.workers.learning.learner import device_part


class Refiner:
    takes_views = True  # of batches whose keys have 64 bits, which jax would cut to 32

    def __init__(self, agent: Agent, *, index: int = 0, seed: int = 0, incarnation: int = 0) -> None:
        assert agent.refine is not None, "a plan with refiners is for agents that have something to refine"
        refine, key = agent.refine, jax.random.fold_in(jax.random.fold_in(ops.random.key(seed), index), incarnation)

        def refined(params: PyTree, slow: PyTree, batch: Batch, counter: Array) -> Batch:
            return refine(params, slow, batch, jax.random.fold_in(key, counter))

        self._refine, self._counter = jax.jit(refined), 0
        self._published: tuple[PyTree, PyTree, int] | None = None

    def publish(self, params: PyTree, slow: PyTree, version: int) -> None:
        """Take the newest parameters; an older version than the one held is ignored."""
        if self._published is None or version >= self._published[2]:
            self._published = params, slow, version

    def refine(self, *batches: Batch) -> RefinedBatch:
        """Refine a batch, or one of the columns of several; when this returns, nothing reads them any more, and the result is a
        copy."""
        if self._published is None:
            raise RuntimeError("refine() before the first publish(): there are no parameters to refine with")
        begin, (params, slow, version) = time.perf_counter(), self._published
        self._counter += 1
        batch = batches[0] if len(batches) == 1 else joined(batches)
        made: Any = jax.tree.map(np.array, self._refine(params, slow, device_part(batch), np.uint32(self._counter)))
        rollout = made.rollout._replace(stream=np.array(batch.rollout.stream), step=np.array(batch.rollout.step))
        return RefinedBatch(Batch(rollout, made.weight, np.array(batch.key)), version, time.perf_counter() - begin)

    def close(self) -> None:
        pass


def joined(batches: Sequence[Batch]) -> Batch:
    """Join the columns of batches into one, those of each spread evenly over it (`arrays.spread_evenly`)."""
    order = arrays.spread_evenly([len(batch.weight) for batch in batches])

    def join(axis: int, *parts: Any) -> PyTree:
        return tree_map(lambda *xs: np.take(np.concatenate(xs, axis), order, axis), *parts)

    fields = zip(Rollout._fields, zip(*(batch.rollout for batch in batches)))
    rollout = Rollout(*(join(0 if name in BATCH_MAJOR else 1, *parts) for name, parts in fields))
    return Batch(rollout, *(join(0, *parts) for parts in zip(*(batch[1:] for batch in batches))))
