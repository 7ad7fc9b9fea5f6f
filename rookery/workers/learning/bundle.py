"""A Bundle: actor, local replay and the loss in one; only gradients leave it (GORILA's bundled mode, Nair et al. 2015).

It acts and differentiates with the parameters that it was given last, however old they are by now.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rookery.data.replay import table_for
from rookery.types import Agent, EnvPool, PyTree, Spec
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.gradient_worker import Found, differentiator
from rookery.workers.learning.learner import data_lag


class Bundle:
    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, spec: Spec, num_envs: int, index: int = 0,
        num_workers: int = 1, seed: int = 0, incarnation: int = 0, env_restarts: int = 10, snapshot: PyTree | None = None,
    ) -> None:  # fmt: skip
        """num_envs: of this bundle."""
        self._collector = Collector(
            agent, make_pool, index=index, num_workers=num_workers, seed=seed, incarnation=incarnation,
            env_restarts=env_restarts, snapshot=snapshot["collector"] if snapshot else None,
        )  # fmt: skip
        own = int(np.random.SeedSequence((seed, index, incarnation)).generate_state(1)[0])
        self._table = table_for(
            agent.needs, rollout_specs(agent, spec, num_envs), collectors=1, in_flight=1, parts=1, slots=1, prefetch=0,
            seed=own if index or incarnation else seed,
        )  # fmt: skip
        if snapshot is not None:
            self._table.restore(snapshot["table"])
        self._differentiate = differentiator(agent, seed, incarnation, inspects=index == 0)
        self._index, self._num_workers = index, num_workers
        self._count = int(snapshot["count"]) if snapshot else 0
        self._held: tuple[PyTree, PyTree, int] | None = None

    def work(self, params: PyTree | None, slow: PyTree, version: int) -> Found:
        """Compute a gradient on a batch of its replay; where there is none, collect a rollout first, and try again.

        params: None: it goes on with those that it has.
        """
        if params is not None:
            self._held = params, slow, version
            self._collector.publish(params, version)
        assert self._held is not None, "a bundle is given parameters before it works"
        taken, collected = self._table.take(), None
        if taken is None:
            collected = self._play()
            taken = self._table.take()
        if taken is None:
            return Found(None, {}, self._held[2], 0, 0.0, collected)
        self._count += 1
        number = 1 + self._index + self._num_workers * (self._count - 1)  # no two bundles draw the same
        found, priorities = self._differentiate(*self._held[:2], taken.batch, self._held[2], number)
        mean, peak = data_lag(taken.batch, self._held[2])
        self._table.release(taken.slot, priorities)
        return found._replace(collected=collected, report=found.report | self._table.metrics(), lag_mean=mean, lag_max=peak)

    def _play(self) -> Collected:
        part = self._table.claim()
        assert part is not None, "a replay that gives no batch takes a rollout"
        collected = self._collector.collect(part.rollout)
        self._table.commit(part, collected.priorities)
        return collected._replace(rollout=None, priorities=None)

    def snapshot(self) -> PyTree:
        return {"collector": self._collector.snapshot(), "table": self._table.snapshot(), "count": self._count}

    def close(self) -> None:
        self._collector.close()
