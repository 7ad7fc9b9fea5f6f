"""Streams: what each slot of environments plays, and what acting needs of its past.

A stream is a line of steps that follow each other; a slot whose environment was lost begins a new one. Whoever steps
environments (a Collector, or central inference) keeps one `Streams` for all its slots, writes rows through it, and saves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from rookery import spaces
from rookery.data.chunks import INCARNATIONS
from rookery.envs import Restarts
from rookery.trees import tree_map
from rookery.types import Agent, EnvPool, PyTree, TimeStep
from rookery.workers.acting.rows import Rows
from rookery.workers.acting.step import return_discount, with_previous

Slots = slice | np.ndarray | Sequence[int]


class Streams:
    def __init__(self, agent: Agent, pool: EnvPool, *, index: int, num_workers: int, incarnation: int) -> None:
        B = pool.num_envs
        self._agent, self._needs = agent, agent.needs
        self._num_envs, self._env_index = B * num_workers, index * B + np.arange(B)
        self._return_discount: float | np.floating | None = agent.needs.return_discount
        # all that follows is in snapshot()
        self.env_steps = 0  # valid rows of all slots
        self.steps, self.ids = np.zeros(B, np.int64), self._env_index * INCARNATIONS + incarnation
        self._returns = np.zeros(B, np.float32)  # discounted so far in the running episode
        self._reward, self._action = np.zeros(B, np.float32), spaces.zeros(pool.spec.action, (B,))  # the previous ones

    def explore(self, params: PyTree) -> PyTree:
        """Return what the next rollout explores with; it is played with these parameters, and their discount."""
        gamma = return_discount(params, self._needs)
        self._return_discount = None if gamma is None else np.float32(gamma)
        played = self.env_steps * self._num_envs // len(self.steps)  # by all collectors, if they play alike
        return self._agent.explore(params, self._env_index, self._num_envs, played)

    def observation(self, now: TimeStep, slots: slice) -> PyTree:
        """Return the agent's view of a step, with previous action and reward where it needs them."""
        if not self._needs.previous:
            return now.observation
        action = jax.tree.map(lambda x: x[slots], self._action)
        return with_previous(now.observation, action, self._reward[slots], now.first)

    def decided(
        self, rows: Rows, t: int, seen: PyTree, memory: PyTree, action: PyTree, extras: PyTree, weight: PyTree, slots: slice
    ) -> None:
        """Write row t but for its outcome; seen, memory: what the decision was taken on, kept of the first row."""
        if t == 0:
            rows.write(rows.observation, 0, seen)
            for to, source in zip(rows.memory, jax.tree.leaves(memory)):
                to[:] = source
        rows.write(rows.action, t, action)
        rows.write(rows.extras, t, extras)
        if rows.weight:
            rows.weight[0][t] = weight
        if self._needs.previous:
            jax.tree.map(lambda to, source: to.__setitem__(slots, source), self._action, action)

    def outcome(self, rows: Rows, t: int, now: TimeStep, slots: slice) -> None:
        """Write the outcome of row t, and the observation of row t + 1."""
        rows.reward[t] = now.reward
        np.subtract(1.0, now.terminated, out=rows.discount[t])
        np.subtract(1.0, now.first, out=rows.valid[t])
        if self._needs.previous:
            self._reward[slots] = now.reward
        if self._return_discount is not None:
            returns = self._returns[slots] * self._return_discount * rows.valid[t] + now.reward
            self._returns[slots] = rows.extras_by_name["discounted_return"][t] = returns
        rows.write(rows.observation, t + 1, self.observation(now, slots))

    def begin(self, slots: Slots) -> None:
        """Begin new streams in these slots: what follows is no continuation."""
        self.ids[slots] += 1
        self.steps[slots] = 0

    def first_step(self, pool: EnvPool, restarts: Restarts, snapshot: PyTree | None, entropy: tuple[int, ...]) -> TimeStep:
        """Restore or reset the pool; new episodes begin new streams where some were played. -> the first observations."""
        if snapshot is not None and snapshot["pool"] is not None:
            return pool.restore(snapshot["pool"])
        if snapshot is not None:
            self.begin(slice(None))
        return restarts.reset(int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1))

    def snapshot(self) -> dict[str, PyTree]:
        return {
            "env_steps": self.env_steps,
            "steps": self.steps.copy(),
            "streams": self.ids.copy(),
            "returns": self._returns.copy(),
            "previous_reward": self._reward.copy(),
            "previous_action": jax.tree.map(np.copy, self._action),
        }

    def restore(self, snapshot: PyTree) -> None:
        self.env_steps = int(snapshot["env_steps"])
        self.steps, self.ids = np.array(snapshot["steps"]), np.array(snapshot["streams"])
        if snapshot["pool"] is not None:  # else the episodes are new ones
            self._returns, self._reward = np.array(snapshot["returns"]), np.array(snapshot["previous_reward"])
            tree_map(np.copyto, self._action, snapshot["previous_action"])  # its tuples may be lists now
