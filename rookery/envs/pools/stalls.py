"""Find environments of this process that hang: a call of `reset` or `step` that does not return.

Worker processes that hang are killed by their pool. A call in this process cannot be interrupted: another thread (the
watchdog, `run/watchdog.py`) looks at it here, and can only say so or end the run.
"""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

from rookery.envs.gym_envs import GymEnvs

_watched: weakref.WeakSet[GymEnvs] = weakref.WeakSet()
_lock = threading.Lock()


class Stall(NamedTuple):
    """An environment that has not come back from a call."""

    env_id: int
    what: str  # which one, and which call
    seconds: float


def watch(gym_envs: GymEnvs) -> None:
    """Register environments to be looked at, for as long as they exist."""
    with _lock:
        _watched.add(gym_envs)


class Stalls:
    """Time the call that each GymEnvs is in, as seen from outside: `look` is to be called again and again."""

    def __init__(self) -> None:
        self._since: weakref.WeakKeyDictionary[GymEnvs, tuple[tuple[int, int], float]] = weakref.WeakKeyDictionary()

    def look(self, now: float) -> Stall | None:
        """Return the call that has taken longest so far, as far as was seen; None: nobody is in one."""
        longest = None
        with _lock:
            watched = list(_watched)
        for gym_envs in watched:
            if not gym_envs.busy:
                self._since.pop(gym_envs, None)
                continue
            mark = (gym_envs.calls, int(gym_envs.now[0]))
            if self._since.get(gym_envs, (None, now))[0] != mark:
                self._since[gym_envs] = (mark, now)
            seconds = now - self._since[gym_envs][1]
            if longest is None or seconds > longest.seconds:
                longest = Stall(mark[1], f"{gym_envs.place(mark[1])}: {gym_envs.doing(mark[1])} has not returned", seconds)
        return longest
