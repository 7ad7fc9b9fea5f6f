"""Environments that fail are rebuilt, within a budget: a run survives a crash now and then, but not a crash loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rookery.envs.pool import EnvironmentFailed
from rookery.types import EnvPool, TimeStep

WINDOW = 60.0  # seconds


class Mended(NamedTuple):
    """A failure that was survived."""

    env_ids: tuple[int, ...]  # those that were rebuilt
    message: str


class Mender:
    """Resets and receives from a pool; what fails is rebuilt, at most `restarts` times within a minute."""

    def __init__(self, pool: EnvPool, *, restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._restarts, self._clock = pool, restarts, clock
        self._times: deque[float] = deque()
        self._mended: list[Mended] = []

    def reset(self, seed: int) -> TimeStep:
        while True:
            try:
                return self._pool.reset(seed)
            except EnvironmentFailed as error:
                self._mend(error)

    def recv(self, group: int = 0) -> TimeStep:
        while True:
            try:
                return self._pool.recv(group)
            except EnvironmentFailed as error:
                self._mend(error)

    def take(self) -> list[Mended]:
        """What was mended since the last call."""
        mended, self._mended = self._mended, []
        return mended

    def _mend(self, error: EnvironmentFailed) -> None:
        while True:
            self._spend(error)
            self._mended.append(Mended(error.lost, str(error)))
            try:
                return self._pool.rebuild(error.env_id)
            except EnvironmentFailed as again:
                error = again

    def _spend(self, error: EnvironmentFailed) -> None:
        now = self._clock()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self._restarts:
            budget = f"it may be rebuilt {self._restarts} times within {WINDOW:g} s (--env-restarts), and was"
            given_up = "it was not to be rebuilt (--env-restarts 0)" if self._restarts == 0 else budget
            raise EnvironmentFailed(f"{error}\n{given_up}", error.env_id, error.lost) from error
        self._times.append(now)
