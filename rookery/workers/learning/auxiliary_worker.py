"""The AuxiliaryWorker: computes gradients of a loss beside the main one (`Agent.auxiliary`) on batches of its own."""

from __future__ import annotations

import numpy as np

from rookery.types import Agent, Batch, PyTree
from rookery.workers.learning.gradient_worker import Found, differentiator


class AuxiliaryWorker:
    def __init__(self, agent: Agent, *, index: int = 0, seed: int = 0, incarnation: int = 0) -> None:
        assert agent.auxiliary is not None, "topologies refuse agents without"
        own = int(np.random.SeedSequence((seed, 1, index)).generate_state(1)[0] >> 1)  # not the keys of the learner's updates
        beside = agent._replace(gradients=agent.auxiliary.gradients)
        self._differentiate = differentiator(beside, own, incarnation)
        self._published: tuple[PyTree, PyTree, int] | None = None
        self._count = 0

    def publish(self, params: PyTree, slow: PyTree, version: int) -> None:
        """Take the newest parameters; an older version than the one held is ignored."""
        if self._published is None or version >= self._published[2]:
            self._published = params, slow, version

    def find(self, batch: Batch) -> Found:
        """Compute the gradient on a batch; when this returns, nothing reads it any more."""
        if self._published is None:
            raise RuntimeError("find() before the first publish(): there are no parameters to differentiate at")
        params, slow, version = self._published
        self._count += 1
        return self._differentiate(params, slow, batch, version, self._count)[0]

    def close(self) -> None:
        pass
