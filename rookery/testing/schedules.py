"""Schedules of a LockstepRuntime: how long each call takes, and which worker is killed in which call."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class ScheduledCall(NamedTuple):
    """A call that takes time (snapshots and the like take none)."""

    worker: str  # "collector-0"
    role: str
    method: str
    number: int  # of those of a worker of this name, over all its lives, from 1

    @property
    def place(self) -> int:
        """The number at the end of the worker's name; 0 where there is none."""
        tail = self.worker.rpartition("-")[2]
        return int(tail) if tail.isdigit() else 0


Seconds = Callable[[ScheduledCall], float]
Dies = Callable[[ScheduledCall], bool]


def even(seconds: float = 1.0) -> Seconds:
    """Let every call take as long as every other."""
    return lambda call: seconds


def paced(roles: Mapping[str, float | Sequence[float]], *, jitter: float = 0.0, seed: int = 0) -> Seconds:
    """Give each role its pace, in seconds per call, or several for its workers in turn; jitter: the share that is random."""
    rng = random.Random(seed)

    def seconds(call: ScheduledCall) -> float:
        paces = roles.get(call.role, 1.0)
        mean = paces if isinstance(paces, (int, float)) else paces[call.place % len(paces)]
        return mean * (1 - jitter + 2 * jitter * rng.random())

    return seconds


def shuffled(seed: int, *, least: float = 0.05, most: float = 3.0) -> Seconds:
    """Draw the duration of every call: an order of completions that depends on the seed alone."""

    def seconds(call: ScheduledCall) -> float:
        return random.Random(f"{seed} {call.worker} {call.number}").uniform(least, most)

    return seconds


def never(call: ScheduledCall) -> bool:
    """Kill nobody."""
    return False


def kill_at(*moments: tuple[str, int]) -> Dies:
    """Kill workers, by name, in the middle of their so-manieth call: `kill_at(("collector-0", 3))`."""
    return lambda call: (call.worker, call.number) in moments


def kill_every(calls: int, role: str) -> Dies:
    """Kill each worker of a role in the middle of every so-manieth call of its place."""
    return lambda call: call.role == role and call.number % calls == calls - 1
