"""The pool of the toys: one set of arrays for all environments, of which groups are slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery import spaces
from rookery.envs.pools.pool import PendingActions, Tally, check_seed, env_ids, join, read_options, split
from rookery.envs.toys import TOYS, Draws, State, Toy
from rookery.types import Episode, PyTree, TimeStep


class ToyPool:
    """Many copies of a toy; groups are slices of the same arrays."""

    stack_axis: int | None = None

    def __init__(self, id: str, num_envs: int, *, seed: int = 0, groups: int = 1, **options: Any) -> None:
        self.toy: Toy = read_options(TOYS[id], id, options)
        self.id, self.num_envs, self.groups, self._seed = id, num_envs, split(num_envs, groups), seed
        self.spec = spaces.spec_of(self.toy.observation, self.toy.action, id)
        self._ids = [env_ids(group) for group in self.groups]
        self._encode = [spaces.action_encoder(self.toy.action, len(ids)) for ids in self._ids]
        self._box, self._tally = PendingActions(groups), Tally(self.groups)
        self._state: State = {}
        self._last: list[TimeStep] = []

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._seed = self._seed if seed is None else seed
        own = {"ended": np.bool_, "time": np.int32, "counter": np.uint64, "incarnation": np.int32}
        self._state = {name: np.zeros(self.num_envs, dtype) for name, dtype in own.items()}
        self._state["env_id"] = np.arange(self.num_envs, dtype=np.int32)
        self._state["key"] = np.array([self._key(env) for env in range(self.num_envs)], np.uint64)
        self._state |= self.toy.start(Draws(self._state, np.arange(self.num_envs)))
        self._tally.start_all()
        self._box.clear_all()
        self._last = []
        for ids, group in zip(self._ids, self.groups):
            zero, false = np.zeros(len(ids), np.float32), np.zeros(len(ids), bool)
            self._last.append(TimeStep(ids, self.toy.observe(self._part(group)), zero, false, false, ~false))
        return join(self._last)

    def send(self, action: PyTree, group: int = 0) -> None:
        self._box.put(self._encode[group](action).copy(), group)

    def recv(self, group: int = 0) -> TimeStep:
        action, state = self._box.peek(group), self._part(self.groups[group])
        self._box.clear(group)
        first = state["ended"].copy()
        reward = self.toy.step(state, action, ~first, Draws(state, np.arange(len(first)))).astype(np.float32)
        state["time"] += 1
        rows = np.flatnonzero(first)
        if len(rows):
            for name, value in self.toy.start(Draws(state, rows)).items():
                state[name][rows] = value
            state["time"][rows] = 0
            reward[rows] = 0
        late = state["time"] == self.toy.length
        over = state["over"].copy() if "over" in state else np.zeros_like(late)
        flags = (over, late & ~over) if self.toy.truncates else (over | late, np.zeros_like(late))
        ended = state["ended"][:] = over | late
        self._last[group] = TimeStep(self._ids[group], self.toy.observe(state), reward, *flags, first)
        self._tally.add(group, reward, ended)
        return self._last[group]

    def rebuild(self, env_id: int) -> None:
        self._tally.abort(env_id)
        self._state["incarnation"][env_id] += 1
        self._state["key"][env_id], self._state["counter"][env_id] = self._key(env_id), 0
        self._state["ended"][env_id] = True

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    def snapshot(self) -> PyTree | None:
        self._box.require_idle("snapshot()")
        last = dict(zip(TimeStep._fields, join(self._last)))
        state = {name: value.copy() for name, value in self._state.items()}
        return {"state": state, "last": last, "tally": self._tally.snapshot(), "seed": np.array(self._seed)}

    def restore(self, snapshot: PyTree) -> TimeStep:
        """Continue bit for bit; the number of groups may differ from that of the pool that was saved."""
        saved = len(snapshot["state"]["key"])
        if saved != self.num_envs:
            raise ValueError(f"the snapshot has {saved} environments, this pool {self.num_envs}")
        self._state = {name: np.array(value) for name, value in snapshot["state"].items()}
        last, self._seed = tuple(snapshot["last"][name] for name in TimeStep._fields), int(snapshot["seed"])
        self._last = [TimeStep(*spaces.take(last, group)) for group in self.groups]
        self._tally.restore(snapshot["tally"])
        self._box.clear_all()
        return join(self._last)

    def close(self) -> None:
        self._state = {}

    def _part(self, group: slice) -> State:
        return {name: value[group] for name, value in self._state.items()}

    def _key(self, env: int) -> int:
        incarnation = int(self._state["incarnation"][env])
        return int(np.random.SeedSequence((check_seed(self._seed), env, incarnation)).generate_state(1, np.uint64)[0])
