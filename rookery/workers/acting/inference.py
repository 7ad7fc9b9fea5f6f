"""Central inference (SEED RL, Espeholt et al. 2020): a Collector whose environments live elsewhere.

    group 0 ──observation, reward──▶ ┌ memory, partial rollout ┐
    group 1 ─────────────▶  batch  ──▶ act                     ├──the first that is complete──▶ collect()
    group 2 ◀──────actions─────────  └ of each group           ┘

A group is what answers together: a slice of a pool, or what lives on one host. Whichever groups have answered are decided
on in one call, padded to a fixed size: when the batch is full, or when the first of them has waited `wait_seconds`. A slow
group holds up nobody. Parameters are read at every decision, so they may change inside a rollout; each row has its version.

A group that is lost as a whole (its host is gone) comes back as a new incarnation: its memory is reset, its partial
rollout is discarded and counted, its streams are new. Where only some slots of a group are lost, the row in between is no
transition and their streams end with the rollout, as in a Collector. No other slot is touched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.data import arrays
from rookery.envs import Incident, Restarts
from rookery.trees import tree_map
from rookery.types import Agent, EnvPool, PyTree, Rollout, TimeStep
from rookery.workers.acting.collector import Collected
from rookery.workers.acting.rows import Rows
from rookery.workers.acting.shapes import played_specs, process
from rookery.workers.acting.step import compiled_step
from rookery.workers.acting.streams import Streams


class AnyCollector(Protocol):
    """Collect rollouts: a Collector, or Inference in its place. Topologies call either by these methods."""

    def publish(self, params: PyTree, version: int) -> None: ...
    def collect(self, out: Rollout | None = None) -> Collected: ...
    def snapshot(self) -> PyTree: ...


class InferenceReport(NamedTuple):
    """Statistics that central inference adds to those of a Collector."""

    moved: dict[str, int]  # items per edge since the last rollout
    workers: dict[str, int]  # how it stands: hosts, and what was discarded since the start


class _Lane:
    """The state of a group of environments beside the policy: recurrent state, exploration, partial rollout."""

    def __init__(self, slots: slice, rollout: Rollout, memory: PyTree, current: TimeStep) -> None:
        self.slots, self.rollout, self.rows = slots, rollout, Rows(rollout)
        self.memory, self.current = memory, current
        self.explore: PyTree = None
        self.t = 0  # rows that are complete; row t is decided while the group steps
        self.shown_at = 0.0  # when what is to be decided on came
        self.void = False  # the answer that is owed belongs to no row
        self.lost = False  # nothing but first observations since the group was lost

    def forget(self, flying: bool) -> None:
        """Drop the partial rollout of a group that was lost."""
        self.t, self.void, self.lost = 0, flying, True


class Inference:
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
        batch: int = 0,
        wait_seconds: float | None = None,
        max_lag: int | None = None,
    ) -> None:
        """batch: slots that are decided on together, a multiple of a group; 0: one group. wait_seconds: None: until full.

        max_lag: updates that may be published during a rollout; one that took longer is discarded. None: any number.
        """
        self.index, self._agent, self._needs = index, agent, agent.needs
        self._pool = pool = make_pool()
        self._restarts, self._incidents = Restarts(pool, allowed=env_restarts), []  # type: Restarts, list[Incident]
        B, self._size = pool.num_envs, pool.groups[0].stop
        self._batch, self._wait, self._max_lag = batch or self._size, wait_seconds, max_lag
        self._key = jax.random.fold_in(jax.random.fold_in(ops.random.key(seed), index), incarnation)
        self._step = compiled_step(agent)
        self._published: tuple[PyTree, int] | None = None
        self._seconds = {"env": 0.0, "inference": 0.0, "transfer": 0.0}
        self._moved = {"observations": 0, "actions": 0}
        self._discarded = 0
        self._counter = 0  # decisions taken, as in a Collector
        self._streams = Streams(agent, pool, index=index, num_workers=num_workers, incarnation=incarnation)
        self._ends = np.zeros(B, bool)  # its stream ends with the rollout that it is in
        self._flying: deque[int] = deque()  # groups that step, in the order in which they were sent to
        self._shown: deque[int] = deque()  # groups that wait for a decision, the longest first
        self._complete: deque[int] = deque()  # groups whose rollout waits to be delivered
        self._ready: Callable[[float | None], Sequence[int]] = getattr(pool, "ready_groups", None) or self._oldest
        if snapshot is not None:
            self._restore_counters(snapshot)
        whole = self._streams.first_step(pool, self._restarts, snapshot, (seed, index, incarnation, self._counter))
        specs = played_specs(agent, pool.spec, self._size)
        self._lanes = [
            _Lane(g, arrays.allocate(specs), agent.memory(self._size), jax.tree.map(lambda x, g=g: x[g], whole))
            for g in pool.groups
        ]
        if snapshot is not None and snapshot["pool"] is not None:
            self._restore_lanes(snapshot)
        else:
            self._shown.extend(range(len(self._lanes)))

    def publish(self, params: PyTree, version: int) -> None:
        """Take the newest parameters, from the next decision on; an older version than the one held is ignored."""
        if self._published is None or version >= self._published[1]:
            self._published = (params, version)

    def collect(self, out: Rollout | None = None) -> Collected:
        """Return the next rollout that a group completes; `out`: where to write it, else it is allocated."""
        if self._published is None:
            raise RuntimeError("collect() before the first publish(): there are no parameters to act with")
        while (group := self._next_complete()) is None:
            left = self._until_due()
            if left == 0.0:
                self._decide([self._shown.popleft() for _ in range(min(len(self._shown), self._batch // self._size))])
            else:
                self._receive(left)
        return self._deliver(group, out)

    def _next_complete(self) -> int | None:
        """Pop the group whose rollout has waited longest; discard rollouts whose policy lag is beyond `max_lag`."""
        assert self._published is not None
        while self._complete:
            group = self._complete.popleft()
            lane = self._lanes[group]
            if self._max_lag is None or self._published[1] - lane.rollout.version.min() <= self._max_lag:
                return group
            self._discard(lane)
            lane.t = 0
            self._shown.append(group)
        return None

    def _until_due(self) -> float | None:
        """Return the seconds until the waiting groups are decided on; 0: now, None: when more have come."""
        if not self._shown:
            return None
        full = min(self._batch // self._size, len(self._shown) + len(self._flying))  # more cannot come
        if len(self._shown) >= full:
            return 0.0
        waited = time.perf_counter() - self._lanes[self._shown[0]].shown_at
        return None if self._wait is None else max(0.0, self._wait - waited)

    # ------------------------------------------------------------------------------------------------- deciding

    def _decide(self, groups: list[int]) -> None:
        """Decide for these groups in one compiled call, record each one's row, and let them step."""
        assert self._published is not None
        (params, version), begin = self._published, time.perf_counter()
        lanes = [self._lanes[group] for group in groups]
        for lane in lanes:
            if lane.t == 0 or lane.explore is None:  # None: its rollout was restored
                lane.explore = jax.tree.map(lambda x, at=lane.slots: x[at], self._streams.explore(params))
        seen = [self._streams.observation(lane.current, lane.slots) for lane in lanes]
        shown = [(o, lane.memory, lane.current.first, lane.explore) for o, lane in zip(seen, lanes)]
        together = shown[0] if self._batch == self._size else _joined(shown, self._batch)
        observation, memory, first, explore = together
        before, decision = self._step(params, observation, memory, first, explore, self._key, np.uint32(self._counter))
        action = jax.tree.map(np.asarray, decision.action)  # waits for the decision
        self._counter += 1
        decided = time.perf_counter()
        self._seconds["inference"] += decided - begin
        answer = (before, decision.memory, action, decision.extras, decision.weight)
        for place, (group, lane) in enumerate(zip(groups, lanes)):
            part = answer if self._batch == self._size else _part(answer, place, self._size)
            self._remember(lane, seen[place], part, version)
            written = time.perf_counter()
            self._pool.send(part[2], group)
            self._flying.append(group)
            sent = time.perf_counter()
            self._seconds["transfer"] += written - decided
            self._seconds["env"] += sent - written
            decided = sent
        self._moved["actions"] += len(groups)

    def _remember(self, lane: _Lane, seen: PyTree, decided: tuple[PyTree, ...], version: int) -> None:
        """Write row t of the group's rollout: all but its outcome."""
        before, lane.memory, action, extras, weight = decided
        lane.rollout.version[lane.t] = version
        self._streams.decided(lane.rows, lane.t, seen, before, action, extras, weight, lane.slots)

    # ------------------------------------------------------------------------------------------------ receiving

    def _oldest(self, timeout: float | None) -> list[int]:
        """Return the group that was sent to first, for a pool that cannot tell which has answered."""
        return [self._flying[0]]

    def _receive(self, timeout: float | None) -> None:
        """Receive from the groups that have answered, once one has or the time is over."""
        begin = time.perf_counter()
        for group in self._ready(timeout):
            now = self._restarts.try_recv(group)
            received = time.perf_counter()
            self._seconds["env"] += received - begin
            for failure in self._restarts.take():
                self._lose(failure)
            if now is None:  # it is being rebuilt and answers later, as may those that were lost with it: nobody waits for them
                return
            self._flying.remove(group)
            self._moved["observations"] += 1
            self._take(group, now)
            begin = time.perf_counter()
            self._seconds["transfer"] += begin - received

    def _take(self, group: int, now: TimeStep) -> None:
        """Record the outcome of row t and the observation of row t + 1."""
        lane = self._lanes[group]
        lane.current, lane.shown_at = now, time.perf_counter()
        if lane.void or (lane.lost and now.first.all()):  # no row of anyone's
            lane.void = False
            self._shown.append(group)
            return
        self._streams.outcome(lane.rows, lane.t, now, lane.slots)
        lane.t, lane.lost = lane.t + 1, False
        (self._shown if lane.t < self._needs.rollout_length else self._complete).append(group)

    def _lose(self, failure: Incident) -> None:
        """Handle rebuilt environments: a group that lost all of its own starts anew, of any other some streams will end."""
        self._incidents.append(failure)
        lost = np.zeros(len(self._ends), bool)
        lost[list(failure.env_ids)] = True
        for group, lane in enumerate(self._lanes):
            if not lost[lane.slots].all() or group in self._complete:  # what is complete was played before the loss
                self._ends[lane.slots] |= lost[lane.slots]
            else:
                self._discard(lane)
                lane.forget(flying=group in self._flying)

    def _discard(self, lane: _Lane) -> None:
        self._discarded += 1
        self._begin_streams(np.arange(lane.slots.start, lane.slots.stop))

    def _begin_streams(self, slots: np.ndarray) -> None:
        self._streams.begin(slots)
        self._ends[slots] = False

    # ----------------------------------------------------------------------------------------------- delivering

    def _deliver(self, group: int, out: Rollout | None) -> Collected:
        lane, begin = self._lanes[group], time.perf_counter()
        slots, T = lane.slots, self._needs.rollout_length
        streams = self._streams
        lane.rollout.stream[:], lane.rollout.step[:] = streams.ids[slots], streams.steps[slots]
        env_steps = int(lane.rollout.valid.sum())
        streams.steps[slots] += T
        streams.env_steps += env_steps
        self._begin_streams(slots.start + np.flatnonzero(self._ends[slots]))
        lane.t = 0
        self._shown.append(group)
        assert self._published is not None
        rollout, priorities = process(self._agent, self._published[0], lane.rollout, out)
        if out is None:  # the lane is written over as soon as the group goes on
            rollout = tree_map(np.array, rollout)
        self._seconds["transfer"] += time.perf_counter() - begin
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        moved, self._moved = self._moved, dict.fromkeys(self._moved, 0)
        incidents, self._incidents = self._incidents, []
        workers = getattr(self._pool, "workers", dict)() | {"rollouts_discarded": self._discarded}
        episodes, said = self._pool.take_episodes(), InferenceReport(moved, workers)
        return Collected(self.index, env_steps, episodes, seconds, rollout, incidents, priorities, said)

    # ------------------------------------------------------------------------------------------------ snapshots

    def snapshot(self) -> PyTree:
        """Wait for groups that step; partial rollouts are saved where the environments can be, else they are lost."""
        while self._flying:
            self._receive(None)
        pool = self._pool.snapshot()
        lanes = [] if pool is None else [
            {"rollout": tree_map(np.copy, lane.rollout)._asdict(), "memory": jax.tree.map(np.array, lane.memory), "t": lane.t}
            for lane in self._lanes
        ]  # fmt: skip
        return {
            "pool": pool,
            "lanes": lanes,
            "order": [*self._complete, *self._shown],
            "counter": self._counter,
            "discarded": self._discarded,
            "ends": self._ends.copy(),
            **self._streams.snapshot(),
        }

    def _restore_counters(self, snapshot: PyTree) -> None:
        self._counter, self._discarded = int(snapshot["counter"]), int(snapshot["discarded"])
        self._streams.restore(snapshot)
        if snapshot["pool"] is not None:
            self._ends = np.array(snapshot["ends"])

    def _restore_lanes(self, snapshot: PyTree) -> None:
        for lane, saved in zip(self._lanes, snapshot["lanes"]):
            tree_map(np.copyto, lane.rollout._asdict(), saved["rollout"])
            leaves = [jnp.array(leaf) for leaf in jax.tree.leaves(saved["memory"])]
            lane.memory, lane.t = jax.tree.unflatten(jax.tree.structure(lane.memory), leaves), int(saved["t"])
        for group in map(int, snapshot["order"]):
            done = self._lanes[group].t == self._needs.rollout_length
            (self._complete if done else self._shown).append(group)

    def close(self) -> None:
        self._pool.close()


def _joined(shown: list[tuple[PyTree, ...]], size: int) -> tuple[PyTree, ...]:
    """Join what several groups show into one batch of `size` rows, padded with zeros."""

    def join(*parts: np.ndarray) -> np.ndarray:
        whole = np.zeros((size, *parts[0].shape[1:]), parts[0].dtype)
        np.concatenate([np.asarray(part) for part in parts], out=whole[: sum(map(len, parts))])
        return whole

    return jax.tree.map(join, *shown)


def _part(answer: tuple[PyTree, ...], place: int, size: int) -> tuple[PyTree, ...]:
    """Slice out the rows of one group."""
    return jax.tree.map(lambda x: np.asarray(x)[place * size : (place + 1) * size], answer)
