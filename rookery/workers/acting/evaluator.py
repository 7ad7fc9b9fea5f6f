"""The Evaluator: plays whole episodes, with the greedy policy unless told otherwise, on environments of its own.

Each environment plays one episode, the first, so that short episodes are not counted more often than long ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from rookery.envs import Restarts
from rookery.signals import Interrupted
from rookery.types import Agent, EnvPool, PyTree, TimeStep
from rookery.workers.acting.policy import Policy


class Evaluation(NamedTuple):
    returns: list[float]  # one per episode
    lengths: list[int]
    seconds: float
    cut: int  # episodes that were still running at the limit of steps

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


class Evaluator:
    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, seed: int, max_steps: int = 27_000, env_restarts: int = 10,
        wanted: Callable[[], bool] = lambda: True, explore: float = 0.0,
    ) -> None:  # fmt: skip
        """max_steps: per episode; 27,000 agent steps are Atari's 108,000 frames. wanted: asked before every step. explore: 0
        takes the best action, 1 explores as in training."""
        self._agent, self._make_pool, self._seed, self._max_steps = agent, make_pool, seed, max_steps
        self._env_restarts, self._wanted, self._explore = env_restarts, wanted, explore
        self._pool: EnvPool | None = None  # made when first needed, then kept: a second evaluation starts at once

    def evaluate(self, params: PyTree) -> Evaluation:
        """Play one episode in each environment, always from the same seeds; Interrupted where nobody waits any more."""
        begin = time.perf_counter()
        if self._pool is None:
            self._pool = self._make_pool()
        pool = self._pool
        restarts = Restarts(pool, allowed=self._env_restarts)
        policy = Policy(self._agent, pool.spec, params)
        now, memory = restarts.reset(self._seed), None
        total, length = np.zeros(pool.num_envs), np.zeros(pool.num_envs, int)
        running = np.ones(pool.num_envs, bool)
        pool.take_episodes()
        for _ in range(self._max_steps):
            if not self._wanted():
                raise Interrupted
            action, memory = policy.batch(now.observation, memory, first=now.first, reward=now.reward, explore=self._explore)
            now = step_all(pool, restarts, action)
            total += now.reward * running
            length += running
            for failure in restarts.take():  # begun anew
                lost = list(failure.env_ids)
                total[lost] = length[lost] = 0
            for episode in pool.take_episodes():  # the pool knows when a game is over; a lost life is not the end
                if running[episode.env_id]:  # and what was played, whatever reward the agent is shown
                    running[episode.env_id] = False
                    total[episode.env_id], length[episode.env_id] = episode.total_reward, episode.length
            if not running.any():
                break
        return Evaluation(total.tolist(), length.tolist(), time.perf_counter() - begin, int(running.sum()))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def step_all(pool: EnvPool, restarts: Restarts, action: PyTree) -> TimeStep:
    """Step every environment once, whatever its group."""
    for group, part in enumerate(pool.groups):
        pool.send(jax.tree.map(lambda x, p=part: x[p], action), group)
    parts = [restarts.recv(group) for group in range(len(pool.groups))]
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
