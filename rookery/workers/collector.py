"""The Collector: steps a pool of environments with the newest published parameters and writes rollouts.

It knows nothing of threads or clusters. `publish` may be called at any time from any thread; what it brings is used from
the next rollout on. `collect` fills one rollout, group by group: while one group of environments steps, the next group
is being decided on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.data import arrays
from rookery.data.chunks import INCARNATIONS
from rookery.envs import Mended, Mender
from rookery.trees import tree_map
from rookery.types import Agent, EnvPool, Episode, PyTree, Rollout, TimeStep
from rookery.workers.acting import compiled_step, with_previous
from rookery.workers.rows import Rows
from rookery.workers.shapes import rollout_specs


class Collected(NamedTuple):
    """What is said of a rollout beside the rollout itself."""

    collector: int
    env_steps: int  # valid rows
    episodes: list[Episode]
    seconds: dict[str, float]  # env, inference, transfer
    rollout: Rollout
    mended: Sequence[Mended] = ()  # environments that failed and were rebuilt
    priorities: np.ndarray | None = None  # [T, B] of its rows


class Collector:
    def __init__(
        self,
        agent: Agent,
        make_pool: Callable[[], EnvPool],
        *,
        index: int = 0,
        num_collectors: int = 1,
        seed: int = 0,
        incarnation: int = 0,
        env_restarts: int = 20,
        snapshot: PyTree | None = None,
    ) -> None:
        self.index, self._agent, self._needs = index, agent, agent.needs
        self._pool = make_pool()
        self._mender = Mender(self._pool, restarts=env_restarts)
        B = self._pool.num_envs
        self._num_envs = B * num_collectors
        self._env_index = index * B + np.arange(B)
        self._key = jax.random.fold_in(jax.random.fold_in(ops.random.key(seed), index), incarnation)
        self._step = compiled_step(agent)
        self._published: tuple[PyTree, int] | None = None
        self._specs = rollout_specs(agent, self._pool.spec, B)
        self._seconds = {"env": 0.0, "inference": 0.0, "transfer": 0.0}
        # the state of the streams: all of it is in snapshot()
        self._counter = 0  # decisions taken: with the key, the only source of randomness
        self._steps, self._env_steps = np.zeros(B, np.int64), 0
        self._streams = self._env_index * INCARNATIONS + incarnation
        self._returns = np.zeros(B, np.float32)  # discounted so far in the running episode
        self._memory = [agent.memory(g.stop - g.start) for g in self._pool.groups]
        self._previous_action = spaces.zeros(self._pool.spec.action, (B,))
        self._previous_reward = np.zeros(B, np.float32)
        if snapshot is not None:
            self._restore_counters(snapshot)
        if snapshot is not None and snapshot["pool"] is not None:
            whole = self._pool.restore(snapshot["pool"])
            leaves = [jnp.array(leaf) for leaf in jax.tree.leaves(snapshot["memory"])]
            self._memory = jax.tree.unflatten(jax.tree.structure(self._memory), leaves)
        else:  # a pool that cannot be saved starts new episodes in new streams
            if snapshot is not None:
                self._streams += 1
                self._steps[:] = 0
            entropy = np.random.SeedSequence((seed, index, incarnation, self._counter))
            whole = self._mender.reset(int(entropy.generate_state(1)[0] >> 1))
        self._current = [jax.tree.map(lambda x, p=part: x[p], whole) for part in self._pool.groups]

    def publish(self, params: PyTree, version: int) -> None:
        """Newest wins; an older version than the one held is ignored."""
        if self._published is None or version >= self._published[1]:
            self._published = (params, version)

    def collect(self, out: Rollout | None = None) -> Collected:
        """Fills a rollout of `needs.rollout_length` steps; `out`: where to write it, else it is allocated."""
        if self._published is None:
            raise RuntimeError("collect() before the first publish(): there are no parameters to act with")
        params, version = self._published
        rollout = arrays.allocate(self._specs) if out is None else out
        played = self._env_steps * self._num_envs // len(self._steps)  # by all collectors, if they play alike
        explore = self._agent.explore(self._env_index, self._num_envs, played)
        rollout.version[:], rollout.stream[:], rollout.step[:] = version, self._streams, self._steps
        parts = [arrays.columns(rollout, columns) for columns in self._pool.groups]
        rows = [Rows(part) for part in parts]
        explores = [jax.tree.map(lambda x, c=columns: x[c], explore) for columns in self._pool.groups]
        for t in range(self._needs.rollout_length):
            for group in range(len(parts)):
                if t > 0:
                    self._receive(group, rows[group], t)
                self._decide(group, rows[group], t, params, explores[group])
        for group in range(len(parts)):
            self._receive(group, rows[group], self._needs.rollout_length)
        env_steps = int(rollout.valid.sum())
        self._steps += self._needs.rollout_length
        self._env_steps += env_steps
        priorities = None
        if self._agent.process is not None:
            processed, priorities = self._agent.process(params, rollout)
            if out is None:
                rollout = processed
            elif processed is not rollout:  # what was asked for is learned from where it was asked for
                jax.tree.map(np.copyto, rollout, jax.block_until_ready(processed))
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        mended = self._mender.take()
        for failure in mended:  # their streams end with this rollout
            self._streams[list(failure.env_ids)] += 1
            self._steps[list(failure.env_ids)] = 0
        return Collected(self.index, env_steps, self._pool.take_episodes(), seconds, rollout, mended, priorities)

    def _decide(self, group: int, rows: Rows, t: int, params: PyTree, explore: PyTree) -> None:
        """Acts on what the group shows now, remembers the decision in row t, and lets the group step."""
        now = self._current[group]
        begin = time.perf_counter()
        observation = self._observation(group, now)
        counter = np.uint32(self._counter)
        memory, decision = self._step(params, observation, self._memory[group], now.first, explore, self._key, counter)
        action = jax.tree.map(np.asarray, decision.action)  # waits for the decision
        self._counter += 1
        self._memory[group] = decision.memory
        decided = time.perf_counter()
        if t == 0:
            rows.write(rows.observation, 0, observation)
            for to, source in zip(rows.memory, jax.tree.leaves(memory)):
                to[:] = source
        rows.write(rows.action, t, action)
        rows.write(rows.extras, t, decision.extras)
        if self._needs.previous:
            part = self._pool.groups[group]
            jax.tree.map(lambda to, source: to.__setitem__(part, source), self._previous_action, action)
        written = time.perf_counter()
        self._pool.send(action, group)
        sent = time.perf_counter()
        seconds = self._seconds
        seconds["inference"] += decided - begin
        seconds["transfer"] += written - decided
        seconds["env"] += sent - written

    def _receive(self, group: int, rows: Rows, t: int) -> None:
        """Takes the answer to action t - 1: the outcome of row t - 1 and the observation of row t."""
        begin = time.perf_counter()
        now = self._current[group] = self._mender.recv(group)
        received = time.perf_counter()
        rows.reward[t - 1] = now.reward
        np.subtract(1.0, now.terminated, out=rows.discount[t - 1])
        np.subtract(1.0, now.first, out=rows.valid[t - 1])
        if self._needs.previous:
            self._previous_reward[self._pool.groups[group]] = now.reward
        if self._needs.return_discount is not None:
            part = self._pool.groups[group]
            returns = self._returns[part] * self._needs.return_discount * rows.valid[t - 1] + now.reward
            self._returns[part] = rows.extras_by_name["discounted_return"][t - 1] = returns
        rows.write(rows.observation, t, self._observation(group, now))
        self._seconds["env"] += received - begin
        self._seconds["transfer"] += time.perf_counter() - received

    def _observation(self, group: int, now: TimeStep) -> PyTree:
        if not self._needs.previous:
            return now.observation
        part = self._pool.groups[group]
        action = jax.tree.map(lambda x: x[part], self._previous_action)
        return with_previous(now.observation, action, self._previous_reward[part], now.first)

    def snapshot(self) -> PyTree:
        """Everything this worker would need to go on; `pool` is None where its environments cannot be saved."""
        return {
            "pool": self._pool.snapshot(),
            "memory": jax.tree.map(np.array, self._memory),
            "counter": self._counter,
            "env_steps": self._env_steps,
            "steps": self._steps.copy(),
            "streams": self._streams.copy(),
            "returns": self._returns.copy(),
            "previous_reward": self._previous_reward.copy(),
            "previous_action": jax.tree.map(np.copy, self._previous_action),
        }

    def _restore_counters(self, snapshot: PyTree) -> None:
        self._counter, self._env_steps = int(snapshot["counter"]), int(snapshot["env_steps"])
        self._steps, self._streams = np.array(snapshot["steps"]), np.array(snapshot["streams"])
        if snapshot["pool"] is not None:
            self._returns, self._previous_reward = np.array(snapshot["returns"]), np.array(snapshot["previous_reward"])
            tree_map(np.copyto, self._previous_action, snapshot["previous_action"])  # its tuples may be lists now

    def close(self) -> None:
        self._pool.close()
