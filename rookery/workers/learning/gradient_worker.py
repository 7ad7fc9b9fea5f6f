"""The GradientWorker: plays a rollout and differentiates the loss on it, with the same parameters; both stay with it.

Only the gradient and what is told of the rollout leave the worker (A3C and asynchronous Q-learning, Mnih et al. 2016).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.algorithms.sharing import program_of
from rookery.types import Agent, Array, Batch, EnvPool, Gradients, PyTree, TrainState
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.step import discount
from rookery.workers.learning.inspection import Inspector
from rookery.workers.learning.learner import device_part
from rookery.workers.learning.nonfinite import NonFinite, culprit


class Found(NamedTuple):
    """A gradient, with the statistics of its rollout and loss."""

    tree: PyTree  # shaped like what is trained; None: none was found, there was not enough to learn from
    report: dict[str, float]
    version: int  # of the parameters that acted and that it was computed with
    trained_steps: int
    busy_seconds: float
    collected: Collected | None = None  # what was played for it; the rollout itself stays behind
    lag_mean: float = 0.0  # of the data, in updates
    lag_max: int = 0


class GradientWorker:
    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, index: int = 0, num_workers: int = 1, seed: int = 0,
        incarnation: int = 0, env_restarts: int = 10, snapshot: PyTree | None = None,
    ) -> None:  # fmt: skip
        self._num_workers, self._index = num_workers, index
        self._collector = Collector(
            agent, make_pool, index=index, num_workers=num_workers, seed=seed, incarnation=incarnation,
            env_restarts=env_restarts, snapshot=snapshot["collector"] if snapshot else None,
        )  # fmt: skip
        self._differentiate = differentiator(agent, seed, incarnation, inspects=index == 0)
        self._agent = agent
        self._count = int(snapshot["count"]) if snapshot else 0

    def find(self, params: PyTree, slow: PyTree, version: int) -> Found:
        """Collect a rollout with these parameters and compute its gradient, which is ready when this returns."""
        self._collector.publish(params, version)
        collected = self._collector.collect()
        rollout, gamma = collected.rollout, discount(params, self._agent.needs)  # a Batch's discount contains gamma
        rollout = rollout._replace(discount=rollout.discount * np.float32(gamma))
        batch = Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ())
        self._count += 1
        number = 1 + self._index + self._num_workers * (self._count - 1)  # no two workers draw the same
        found, _ = self._differentiate(params, slow, batch, version, number)
        return found._replace(collected=collected._replace(rollout=None))

    def snapshot(self) -> PyTree:
        return {"collector": self._collector.snapshot(), "count": self._count}

    def close(self) -> None:
        self._collector.close()


Differentiate = Callable[[PyTree, PyTree, Batch, int, int], tuple[Found, np.ndarray | None]]


def differentiator(agent: Agent, seed: int, incarnation: int, *, inspects: bool = False) -> Differentiate:
    """Build the function (params, slow, batch, version, number) -> Found, new priorities; the number keys what is random in a
    loss. inspects: one worker looks for all."""
    key = ops.random.key(seed)
    key = jax.random.fold_in(key, incarnation) if incarnation else key
    compiled = _compiled(program_of(agent))
    inspector = Inspector(agent if inspects else agent._replace(inspect=None))

    def differentiate(params: PyTree, slow: PyTree, batch: Batch, version: int, number: int) -> tuple[Found, np.ndarray | None]:
        begin = time.perf_counter()
        seen = device_part(batch)
        gradients, finite = compiled(params, slow, seen, key, np.uint32(number))
        finite = np.asarray(finite)  # waits: nothing reads the batch any more
        report = {name: float(value) for name, value in jax.device_get(gradients.report).items()}
        if not finite.all():
            raise NonFinite(culprit(version + 1, batch.rollout, report, finite, gradients.tree))
        report |= inspector.look(lambda: TrainState(params, slow, (), np.int32(version)), seen)
        trained = int(batch.rollout.valid.sum())
        priorities = None if gradients.priorities is None else np.asarray(gradients.priorities)
        return Found(gradients.tree, report, version, trained, time.perf_counter() - begin), priorities

    return differentiate


@functools.lru_cache(maxsize=16)
def _compiled(agent: Agent) -> Callable[..., Any]:
    """Compile the gradient once per process and agent, so that many workers share it. finite: [1 + leaves of the gradient]."""
    assert agent.gradients is not None, "topologies refuse agents without gradients"
    differentiate = agent.gradients

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array, number: Array) -> tuple[Gradients, Array]:
        found = differentiate(params, slow, batch, jax.random.fold_in(key, number))
        told = [jnp.asarray(value, jnp.float32) for value in found.report.values()]
        finite = [jnp.isfinite(jnp.array(told)).all(), *(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found.tree))]
        return found, jnp.stack(finite)

    return jax.jit(gradients)

