"""Parts that every pool needs: groups, the actions between send and recv, seeds, episode counts, errors.

A pool is any class that follows `rookery.types.EnvPool`; nothing inherits from anything here. A pool whose
environments live in other processes can use the same pieces.
"""

from __future__ import annotations

import math
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from rookery.trees import tree_map
from rookery.types import Array, Episode, PyTree, TimeStep

MAX_SEED = 2**31  # ALE takes a C int; the same range everywhere
UNBOUNDED = 1e6  # what an infinity becomes where its space has no bound: squares of it are still finite

OnNan = Literal["stop", "drop-episode", "clip"]
Kind = Literal["failed", "not finite", "dropped", "recycled", "clipped"]


class EnvironmentFailed(RuntimeError):
    """An environment raised, or answered something that its spaces do not allow.

    After `pool.rebuild(error.env_id)` the same `recv` can be called again: the other environments of the group
    keep their step and the rebuilt one answers `first`. The broken episode is not counted.
    """

    def __init__(self, message: str, env_id: int, lost: tuple[int, ...] = (), kind: Kind = "failed") -> None:
        """lost: all the environments that are rebuilt with this one, because they lived in the same process.

        kind: "not finite" is not to be rebuilt, "dropped" is, and "recycled" was no fault of anybody's."""
        super().__init__(message)
        self.env_id, self.lost, self.kind = env_id, lost or (env_id,), kind

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be pickled, to come from another process."""
        return EnvironmentFailed, (str(self), self.env_id, self.lost, self.kind)


def split(num_envs: int, groups: int) -> tuple[slice, ...]:
    """Cut environments into `groups` contiguous slices of nearly equal size."""
    if not 1 <= groups <= num_envs:
        raise ValueError(f"{num_envs} environments cannot be split into {groups} groups: take 1 to {num_envs}")
    edges = [num_envs * g // groups for g in range(groups + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def group_of(groups: tuple[slice, ...], env_id: int) -> int:
    """Return the index of the group that holds the environment."""
    for index, group in enumerate(groups):
        if group.start <= env_id < group.stop:
            return index
    raise IndexError(f"there is no environment {env_id}: they count from 0 to {groups[-1].stop - 1}")


def env_ids(group: slice) -> Array:
    """Return the environments of a group: [B] int32, read-only, as it is handed out again and again."""
    ids = np.arange(group.start, group.stop, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def derive_seed(seed: int, *key: int) -> int:
    """Derive a seed in [0, 2**31) for e.g. (environment, incarnation); different keys give unrelated streams."""
    return int(np.random.SeedSequence((check_seed(seed), *key)).generate_state(1)[0]) % MAX_SEED


def check_seed(seed: int) -> int:
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return seed


def not_finite(array: Array) -> Array:
    """Return the rows [n] of `array` [B, ...] with a NaN or an infinity; empty, after one dot product, if there are none."""
    if array.dtype.kind != "f":
        return ()
    flat = array.reshape(-1)
    if math.isfinite(flat.dot(flat)):  # twice as fast as a sum; one that overflows is looked into below
        return ()
    return np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))


def find_not_finite(step: TimeStep, leaves: list[tuple[str, tuple[Any, ...]]]) -> tuple[str, int] | None:
    """Return (name, row) of a reward or a leaf of the observation, given as (name, keys), that is not finite; None: all are."""
    for name, keys in [("reward", None), *leaves]:
        leaf = step.reward if keys is None else step.observation
        for key in keys or ():
            leaf = leaf[key]
        bad = not_finite(leaf)
        if len(bad):
            return name, int(bad[0])
    return None


def not_finite_kind(on_nan: OnNan) -> Kind:
    """Return the kind of failure that a NaN or an infinity is."""
    return "dropped" if on_nan == "drop-episode" else "not finite"


def clipped(array: Array, low: Any = -np.inf, high: Any = np.inf) -> Array:
    """Return a copy of `array` in which NaN is 0 and an infinity is the bound on its side, or UNBOUNDED where there is none."""
    low, high = (np.where(np.isfinite(bound), bound, side * UNBOUNDED) for bound, side in ((low, -1), (high, 1)))
    finite = np.where(np.isnan(array), np.clip(0, low, high), np.where(array < 0, low, high))
    return np.where(np.isfinite(array), array, finite).astype(array.dtype)


def clip_step(step: TimeStep, observation: Any) -> tuple[TimeStep, int]:
    """Make the numbers of a step finite, in a copy where some are not; with how many rows had such. observation: its space."""
    bad = np.zeros(len(step.reward), bool)

    def leaf(array: Array, low: Any = -np.inf, high: Any = np.inf) -> Array:
        rows = not_finite(array)
        bad[list(rows)] = True
        return clipped(array, low, high) if len(rows) else array

    def tree(space: Any, value: PyTree) -> PyTree:
        if isinstance(value, dict):
            return {key: tree(space[key], part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(tree(space[i], part) for i, part in enumerate(value))
        return leaf(value, getattr(space, "low", -np.inf), getattr(space, "high", np.inf))

    found = step._replace(observation=tree(observation, step.observation), reward=leaf(step.reward))
    return found, int(bad.sum())


def join(steps: list[TimeStep]) -> TimeStep:
    """Join the steps of all groups into one TimeStep: a copy, so that it outlives the next `send`."""
    return TimeStep(*(tree_map(lambda *leaves: np.concatenate(leaves), *parts) for parts in zip(*steps)))


def read_options(cls: type, id: str, options: dict[str, Any]) -> Any:
    """Make an instance of the dataclass `cls`; an unknown option is an error that names the near one."""
    check_options(id, options, [field.name for field in fields(cls)])
    return cls(**options)


def check_options(id: str, options: dict[str, Any], known: list[str]) -> None:
    """Refuse an option that is not among the known ones, naming the near one."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{id!r} has no option {name!r}: {hint}Its options are {', '.join(known) or 'none'}.")


class PendingActions:
    """Hold the action of each group between `send` and `recv`; raise where these are called out of turn."""

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
    """Count return and length of the episodes.

    `add` only notes a row; a block of rows is worked off at once, when it is full or somebody asks. That costs a
    fifth of counting at each step, where a dozen cold numpy calls are dear. A row that starts an episode counts
    for nothing: its reward is 0, and lengths are counted from it.
    """

    BLOCK = 128  # rows

    def __init__(self, groups: tuple[slice, ...], *, late: bool = False) -> None:
        """late: the `ended` of a row tells which episodes were over *before* it, not with it."""
        self._groups, self._late = groups, late
        self._counts = [_Count(group.stop - group.start) for group in groups]
        self._ended: list[tuple[int, Episode]] = []  # with the row, to give them in the order of time

    def start_all(self) -> None:
        self._counts = [_Count(group.stop - group.start) for group in self._groups]
        self._ended = []

    def abort(self, env_id: int) -> None:
        """Forget the running episode; the next row is the first of another."""
        group = group_of(self._groups, env_id)
        self._work_off(group)
        count, b = self._counts[group], env_id - self._groups[group].start
        count.total[b], count.began[b] = 0, count.row[b] + 1

    def add(self, group: int, reward: Array, ended: Array) -> None:
        """Add one row [B] of every environment of the group."""
        count = self._counts[group]
        count.reward[count.noted], count.ended[count.noted] = reward, ended
        count.noted += 1
        if count.noted == self.BLOCK:
            self._work_off(group)

    def take(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order of time (and of environments within a row)."""
        for group in range(len(self._groups)):
            self._work_off(group)
        ended, self._ended = self._ended, []
        return [episode for _, episode in sorted(ended)]

    def snapshot(self) -> dict[str, Array]:
        """Save the running episodes, and those that nobody has taken yet, which stay to be taken."""
        for group in range(len(self._groups)):
            self._work_off(group)
        return {
            "total": np.concatenate([count.total for count in self._counts]),
            "began": np.concatenate([count.began for count in self._counts]),
            "row": np.concatenate([count.row for count in self._counts]),
            "ended": np.array([(row, *episode) for row, episode in self._ended], np.float64).reshape(-1, 4),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        self.start_all()
        for count, group in zip(self._counts, self._groups):
            count.total[:], count.began[:] = saved["total"][group], saved["began"][group]
            count.row[:] = saved["row"][group]
        self._ended = [(int(row), Episode(int(env), float(total), int(n))) for row, env, total, n in saved["ended"]]

    def _work_off(self, group: int) -> None:
        count, start = self._counts[group], self._groups[group].start
        some = count.ended[: count.noted].any(axis=1)
        for row in range(count.noted):
            if not self._late:
                count.total += count.reward[row]
                count.row += 1
            if some[row]:
                for b in count.ended[row].nonzero()[0].tolist():
                    self._end(count, start + b, b)
            if self._late:
                count.total += count.reward[row]
                count.row += 1
        count.noted = 0

    def _end(self, count: _Count, env: int, b: int) -> None:
        row = int(count.row[b])
        self._ended.append((row, Episode(env, float(count.total[b]), row - int(count.began[b]))))
        count.total[b], count.began[b] = 0, row + 1


class _Count:
    """The running episodes of a group, and the rows that are noted but not counted."""

    def __init__(self, size: int) -> None:
        self.reward: Array = np.zeros((Tally.BLOCK, size), np.float32)
        self.ended: Array = np.zeros((Tally.BLOCK, size), bool)
        self.noted = 0
        self.total = np.zeros(size, np.float64)
        self.began = np.zeros(size, np.int64)  # the row that started the episode
        self.row = np.zeros(size, np.int64)  # rows so far
