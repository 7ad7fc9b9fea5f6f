"""A Peer: collector and learner in one, which averages its parameters with what another peer sent (GALA).

Parameters are averaged, never gradients and never the optimizer's moments (Assran et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Agent, Array, Batch, EnvPool, PyTree
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.step import discount
from rookery.workers.learning.learner import Learner, Update


class PeerStep(NamedTuple):
    """One update of a peer."""

    update: Update  # with parameters only from the first peer: whoever evaluates looks at its
    collected: Collected
    distance: float | None  # from what was mixed in, before it was; None: nothing was


class Peer:
    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, index: int = 0, num_workers: int = 1, seed: int = 0,
        incarnation: int = 0, env_restarts: int = 10, snapshot: PyTree | None = None,
    ) -> None:  # fmt: skip
        self._shown, self._needs = index == 0, agent.needs
        inspected = agent if self._shown else agent._replace(inspect=None)
        self._learner = Learner(inspected, seed=seed, snapshot=snapshot["learner"] if snapshot else None)
        self._collector = Collector(
            agent, make_pool, index=index, num_workers=num_workers, seed=seed, incarnation=incarnation,
            env_restarts=env_restarts, snapshot=snapshot["collector"] if snapshot else None,
        )  # fmt: skip

    def step(self, heard: PyTree | None, weight: float) -> tuple[PeerStep, PyTree]:
        """Average with the parameters heard, collect a rollout, learn from it. -> statistics, and parameters to send on.

        weight: of what was heard; 1: it replaces the parameters that were there.
        """
        distance = None
        if heard is not None:
            mixed, apart = _mix(self._learner.params, heard, np.float32(weight))
            self._learner.replace(mixed)
            distance = float(apart)
        self._collector.publish(*self._learner.published())
        collected = self._collector.collect()
        gamma = np.float32(discount(self._learner.params, self._needs))
        rollout = collected.rollout._replace(discount=collected.rollout.discount * gamma)
        columns = rollout.reward.shape[1]
        update = self._learner.learn(Batch(rollout, np.ones(columns, np.float32), np.zeros(columns, np.int64)))
        told = update if self._shown else update._replace(params=None)
        return PeerStep(told, collected._replace(rollout=None), distance), update.params

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters of this peer by name: they are its own, and no average."""
        self._learner.tune(values)

    def inspect(self) -> dict[str, float]:
        return self._learner.inspect()

    def snapshot(self) -> PyTree:
        return {"learner": self._learner.snapshot(), "collector": self._collector.snapshot()}

    def close(self) -> None:
        self._collector.close()


@jax.jit
def _mix(mine: PyTree, heard: PyTree, weight: Array) -> tuple[PyTree, Array]:
    """Average: (1 − weight) · mine + weight · heard, and the distance of the two. Hyper-parameters stay mine, but for what
    replaces all that was there."""
    mixed = jax.tree.map(lambda x, y: ((1 - weight) * x + weight * y).astype(x.dtype), mine, heard)
    if isinstance(mine, dict) and "hyper" in mine:
        own = jax.tree.map(lambda x, y: jnp.where(weight == 1, y, x), mine["hyper"], heard["hyper"])
        mine, heard, mixed = mine | {"hyper": ()}, heard | {"hyper": ()}, mixed | {"hyper": own}
    squares = [jnp.sum(jnp.square(x - y)) for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(heard))]
    return mixed, jnp.sqrt(sum(squares, jnp.zeros(())))
