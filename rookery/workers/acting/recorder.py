"""The recorder: plays one episode in each environment of a pool and keeps all of it, as demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from rookery.data.demonstrations import Played
from rookery.envs import Restarts
from rookery.types import EnvPool, PyTree, TimeStep
from rookery.workers.acting.evaluator import step_all


class _RecordedRow(NamedTuple):
    observation: PyTree
    action: PyTree
    reward: np.float32
    discount: np.float32


def play(
    pool: EnvPool, act: Callable[[TimeStep], PyTree], *, seed: int, max_steps: int = 27_000, env_restarts: int = 10
) -> list[Played]:
    """Play the first episode of every environment; act: what all environments answered -> their canonical actions [B, ...].

    An episode whose environment fails is begun anew; one that is still running after max_steps is cut there.
    """
    restarts = Restarts(pool, allowed=env_restarts)
    now = restarts.reset(seed)
    rows: list[list[_RecordedRow]] = [[] for _ in range(pool.num_envs)]
    played: dict[int, Played] = {}
    pool.take_episodes()
    at = lambda tree, env: jax.tree.map(lambda x: np.array(x[env]), tree)
    for step in range(max_steps):
        action = act(now)
        running = [env for env in range(pool.num_envs) if env not in played]
        before = {env: (at(now.observation, env), at(action, env)) for env in running}
        now = step_all(pool, restarts, action)
        ended = {episode.env_id for episode in pool.take_episodes()}
        for env in running:
            if now.first[env]:  # nothing led here: its environment failed and is a new one
                rows[env].clear()
                continue
            rows[env].append(_RecordedRow(*before[env], now.reward[env], np.float32(not now.terminated[env])))
            if env in ended or step == max_steps - 1:
                played[env] = _episode(rows[env], at(now.observation, env))
                rows[env] = []
        if len(played) == pool.num_envs:
            break
    return [played[env] for env in sorted(played)]


def _episode(rows: list[_RecordedRow], last: PyTree) -> Played:
    stack = lambda *leaves: np.stack(leaves)
    observation = jax.tree.map(stack, *(row.observation for row in rows), last)
    action = jax.tree.map(stack, *(row.action for row in rows))
    return Played(observation, action, np.array([row.reward for row in rows]), np.array([row.discount for row in rows]))
