"""The Refiner: a worker between a table and a learner. It makes of each batch what the agent's `refine` says, with the newest
parameters that were published to it (QT-Opt's Bellman updaters, Kalashnikov et al. 2018; MuZero's reanalyze)."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery import ops
from rookery.types import Agent, Array, Batch, PyTree
from rookery.workers.learning.learner import device_part


class RefinedBatch(NamedTuple):
    """A batch, refined, and how that went."""

    batch: Batch
    version: int  # of the parameters that it was refined with
    seconds: float


class Refiner:
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

    def refine(self, batch: Batch) -> RefinedBatch:
        """Refine a batch; when this returns, nothing reads it any more, and the result is a copy."""
        if self._published is None:
            raise RuntimeError("refine() before the first publish(): there are no parameters to refine with")
        begin, (params, slow, version) = time.perf_counter(), self._published
        self._counter += 1
        made: Any = jax.tree.map(np.array, self._refine(params, slow, device_part(batch), np.uint32(self._counter)))
        rollout = made.rollout._replace(stream=np.array(batch.rollout.stream), step=np.array(batch.rollout.step))
        return RefinedBatch(Batch(rollout, made.weight, np.array(batch.key)), version, time.perf_counter() - begin)

    def close(self) -> None:
        pass
