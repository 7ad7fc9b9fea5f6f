"""The Collector: steps a pool of environments with the newest published parameters and writes rollouts.

It knows nothing of threads or clusters. `publish` may be called at any time from any thread; what it brings is used from
the next rollout on. `collect` fills one rollout, group by group: while one group of environments steps, the next group
is being decided on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.data import arrays
from rookery.envs import Incident, Restarts
from rookery.types import Agent, EnvPool, Episode, PyTree, Rollout
from rookery.workers.acting.rows import Rows
from rookery.workers.acting.shapes import played_specs, process, rollout_specs
from rookery.workers.acting.step import compiled_step
from rookery.workers.acting.streams import Streams


class Collected(NamedTuple):
    """A rollout, and its statistics."""

    collector: int
    env_steps: int  # valid rows
    episodes: list[Episode]
    seconds: dict[str, float]  # env, inference, transfer
    rollout: Any  # the Rollout; None where it stays with the worker that learns from it
    incidents: Sequence[Incident] = ()  # environments that failed and were rebuilt
    priorities: np.ndarray | None = None  # [T, B] of its rows
    said: Any = None  # by central inference (inference.InferenceReport)


class Collector:
    def __init__(
        self,
        agent: Agent,
        make_pool: Callable[[], EnvPool],
        *,
        index: int = 0,
        num_workers: int = 1,
        seed: int = 0,
        incarnation: int = 0,
        env_restarts: int = 10,
        snapshot: PyTree | None = None,
    ) -> None:
        self.index, self._agent, self._needs = index, agent, agent.needs
        self._pool = make_pool()
        self._restarts = Restarts(self._pool, allowed=env_restarts)
        self._key = jax.random.fold_in(jax.random.fold_in(ops.random.key(seed), index), incarnation)
        self._step = compiled_step(agent)
        self._published: tuple[PyTree, int] | None = None
        self._specs = played_specs(agent, self._pool.spec, self._pool.num_envs)
        stored = rollout_specs(agent, self._pool.spec, self._pool.num_envs)
        self._apart = stored != self._specs
        #   whether `process` gives a rollout of another form: then it is played into memory of the collector's own
        self._seconds = {"env": 0.0, "inference": 0.0, "transfer": 0.0}
        # the state of the worker: all of it is in snapshot()
        self._counter = 0  # decisions taken: with the key, the only source of randomness
        self._streams = Streams(agent, self._pool, index=index, num_workers=num_workers, incarnation=incarnation)
        self._memory = [agent.memory(g.stop - g.start) for g in self._pool.groups]
        if snapshot is not None:
            self._counter = int(snapshot["counter"])
            self._streams.restore(snapshot)
        whole = self._streams.first_step(self._pool, self._restarts, snapshot, (seed, index, incarnation, self._counter))
        if snapshot is not None and snapshot["pool"] is not None:
            leaves = [jnp.array(leaf) for leaf in jax.tree.leaves(snapshot["memory"])]
            self._memory = jax.tree.unflatten(jax.tree.structure(self._memory), leaves)
        self._current = [jax.tree.map(lambda x, p=part: x[p], whole) for part in self._pool.groups]

    def publish(self, params: PyTree, version: int) -> None:
        """Take the newest parameters; an older version than the one held is ignored."""
        if self._published is None or version >= self._published[1]:
            self._published = (params, version)

    def collect(self, out: Rollout | None = None) -> Collected:
        """Fill a rollout of `needs.rollout_length` steps; `out`: where to write it, else it is allocated."""
        if self._published is None:
            raise RuntimeError("collect() before the first publish(): there are no parameters to act with")
        params, version = self._published
        rollout = arrays.allocate(self._specs) if out is None or self._apart else out
        streams, explore = self._streams, self._streams.explore(params)
        rollout.version[:], rollout.stream[:], rollout.step[:] = version, streams.ids, streams.steps
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
        streams.steps += self._needs.rollout_length
        streams.env_steps += env_steps
        rollout, priorities = process(self._agent, params, rollout, out)
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        incidents = self._restarts.take()
        for failure in incidents:  # their streams end with this rollout
            streams.begin(list(failure.env_ids))
        return Collected(self.index, env_steps, self._pool.take_episodes(), seconds, rollout, incidents, priorities)

    def _decide(self, group: int, rows: Rows, t: int, params: PyTree, explore: PyTree) -> None:
        """Act on the newest observation of a group, record the decision in row t, and let the group step."""
        now, slots = self._current[group], self._pool.groups[group]
        begin = time.perf_counter()
        observation = self._streams.observation(now, slots)
        counter = np.uint32(self._counter)
        memory, decision = self._step(params, observation, self._memory[group], now.first, explore, self._key, counter)
        action = jax.tree.map(np.asarray, decision.action)  # waits for the decision
        self._counter += 1
        self._memory[group] = decision.memory
        decided = time.perf_counter()
        self._streams.decided(rows, t, observation, memory, action, decision.extras, decision.weight, slots)
        written = time.perf_counter()
        self._pool.send(action, group)
        sent = time.perf_counter()
        seconds = self._seconds
        seconds["inference"] += decided - begin
        seconds["transfer"] += written - decided
        seconds["env"] += sent - written

    def _receive(self, group: int, rows: Rows, t: int) -> None:
        """Receive the answer to action t - 1: the outcome of row t - 1 and the observation of row t."""
        begin = time.perf_counter()
        now = self._current[group] = self._restarts.recv(group)
        received = time.perf_counter()
        self._streams.outcome(rows, t - 1, now, self._pool.groups[group])
        self._seconds["env"] += received - begin
        self._seconds["transfer"] += time.perf_counter() - received

    def snapshot(self) -> PyTree:
        """Return all that is needed to resume; `pool` is None where its environments cannot be saved."""
        return {
            "pool": self._pool.snapshot(),
            "memory": jax.tree.map(np.array, self._memory),
            "counter": self._counter,
            **self._streams.snapshot(),
        }

    def close(self) -> None:
        self._pool.close()
