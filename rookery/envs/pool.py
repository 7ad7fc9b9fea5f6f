"""What every pool needs: groups, the letter box between send and recv, seeds, episode counts, errors.

A pool is any class that follows `rookery.types.EnvPool`; nothing inherits from anything here. A pool whose
environments live in other processes can use the same pieces.
"""

from __future__ import annotations

import math
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np

from rookery.spaces import map_tree
from rookery.types import Array, Episode, PyTree, TimeStep

MAX_SEED = 2**31  # ALE takes a C int; the same range everywhere


class EnvironmentFailed(RuntimeError):
    """An environment raised, or answered something that its spaces do not allow.

    After `pool.rebuild(error.env_id)` the same `recv` can be called again: the other environments of the group
    keep their step and the rebuilt one answers `first`. The broken episode is not counted.
    """

    def __init__(self, message: str, env_id: int) -> None:
        super().__init__(message)
        self.env_id = env_id


def split(num_envs: int, groups: int) -> tuple[slice, ...]:
    """`groups` contiguous slices of nearly equal size."""
    if not 1 <= groups <= num_envs:
        raise ValueError(f"{num_envs} environments cannot be split into {groups} groups: take 1 to {num_envs}")
    edges = [num_envs * g // groups for g in range(groups + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def env_ids(group: slice) -> Array:
    """[B] int32, read-only: it is handed out again and again."""
    ids = np.arange(group.start, group.stop, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def derive_seed(seed: int, *key: int) -> int:
    """A seed in [0, 2**31) for e.g. (environment, incarnation); different keys give unrelated streams."""
    return int(np.random.SeedSequence((check_seed(seed), *key)).generate_state(1)[0]) % MAX_SEED


def check_seed(seed: int) -> int:
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return seed


def not_finite(array: Array) -> Array:
    """Rows [n] of `array` [B, ...] with a NaN or an infinity; empty, after one dot product, if there are none."""
    if array.dtype.kind != "f" or math.isfinite(np.vdot(array, array)):
        return ()
    return np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))


def join(steps: list[TimeStep]) -> TimeStep:
    """One TimeStep of every group: a copy, so that it outlives the next `send`."""
    return TimeStep(*(map_tree(lambda *leaves: np.concatenate(leaves), *parts) for parts in zip(*steps)))


def read_options(cls: type, id: str, options: dict[str, Any]) -> Any:
    """An instance of the dataclass `cls`; an unknown option is an error that names the near one."""
    known = [field.name for field in fields(cls)]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{id!r} has no option {name!r}: {hint}Its options are {', '.join(known) or 'none'}.")
    return cls(**options)


class LetterBox:
    """The action of each group between `send` and `recv`, with the two ways to misuse them."""

    def __init__(self, groups: int) -> None:
        self._actions: list[PyTree | None] = [None] * groups
        self.ready = False  # set by reset and restore

    def put(self, action: PyTree, group: int) -> None:
        if not self.ready:
            raise RuntimeError("send() before reset(): the environments have no state yet")
        if self._actions[group] is not None:
            raise RuntimeError(f"send() twice to group {group}: recv({group}) comes between")
        self._actions[group] = action

    def peek(self, group: int) -> PyTree:
        if self._actions[group] is None:
            raise RuntimeError(f"recv() from group {group} without a send() to it")
        return self._actions[group]

    def pending(self, group: int) -> bool:
        return self._actions[group] is not None

    def clear(self, group: int) -> None:
        self._actions[group] = None

    def clear_all(self) -> None:
        self._actions = [None] * len(self._actions)
        self.ready = True

    def require_idle(self, doing: str) -> None:
        if not self.ready:
            raise RuntimeError(f"{doing} before reset(): there is nothing to save")
        busy = [group for group, action in enumerate(self._actions) if action is not None]
        if busy:
            raise RuntimeError(f"{doing} while groups {busy} are stepping: recv() from them first")


class Tally:
    """Return and length of the running episodes; no Python loop over environments while they run.

    Rows that start an episode count for nothing: their reward is 0, and a length starts at -1 so that the row
    brings it to 0.
    """

    def __init__(self, groups: tuple[slice, ...]) -> None:
        self._total = np.zeros(groups[-1].stop, np.float64)
        self._length = np.zeros(groups[-1].stop, np.int64)
        self._views = [(self._total[g], self._length[g], g.start) for g in groups]
        self._ended: list[tuple[int, Array, Array, Array]] = []  # start of the group, mask, total, length
        self._restored: list[Episode] = []

    def start_all(self) -> None:
        self._total[:] = 0
        self._length[:] = 0
        self._ended, self._restored = [], []

    def abort(self, env_id: int) -> None:
        """Forget the running episode; the next row is the first of another."""
        self._total[env_id] = 0
        self._length[env_id] = -1

    def add(self, group: int, reward: Array) -> None:
        """One row [B] of every environment of the group."""
        total, length, _ = self._views[group]
        np.add(total, reward, out=total)
        np.add(length, 1, out=length)

    def end(self, group: int, ended: Array) -> None:
        """The episodes of `ended` [B] are over with the rows added so far; the next row is a first one."""
        if not np.count_nonzero(ended):  # five times cheaper than ended.any() at B = 64
            return
        total, length, start = self._views[group]
        self._ended.append((start, ended.copy(), total.copy(), length.copy()))  # read when they are asked for
        np.copyto(total, 0, where=ended)
        np.copyto(length, -1, where=ended)

    def take(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        restored, self._restored = self._restored, []
        return restored + [
            Episode(start + int(row), float(total[row]), int(length[row]))
            for start, mask, total, length in ended
            for row in np.flatnonzero(mask)
        ]

    def snapshot(self) -> dict[str, Array]:
        """With the episodes that nobody has taken yet, which stay to be taken."""
        self._restored = self.take()
        return {
            "total": self._total.copy(),
            "length": self._length.copy(),
            "ended": np.array(self._restored).reshape(-1, 3),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        self._total[:] = saved["total"]
        self._length[:] = saved["length"]
        self._ended = []
        self._restored = [Episode(int(env), float(total), int(length)) for env, total, length in saved["ended"]]
