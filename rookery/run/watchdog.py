"""Says when an environment that is stepped in this process does not answer, and ends the run when it has not for too long.

A call that hangs in a thread cannot be interrupted: the run can only be told of it, or left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rookery.envs import EnvironmentFailed
from rookery.envs.pools.stalls import Stalls

WARN_SECONDS = 10.0
LOOK_SECONDS = 0.5
REMEDY = "Environments in processes of their own are replaced when they hang: --env-processes 1"


class Watchdog:
    """A thread that looks at the environments of this process, from `start` to `stop`."""

    def __init__(
        self, limit_seconds: float, *, warn: Callable[[str], None], give_up: Callable[[EnvironmentFailed], None]
    ) -> None:
        """limit_seconds: how long one call may take; give_up: called once, from the watchdog's thread."""
        self._limit, self._warn, self._give_up = limit_seconds, warn, give_up
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        stalls, warned = Stalls(), False
        while not self._over.wait(min(LOOK_SECONDS, self._limit / 4)):
            stall = stalls.look(time.monotonic())
            seconds = stall.seconds if stall else 0.0
            if stall and seconds >= self._limit:
                message = f"{stall.what} for {self._limit:g} s (--env-step-seconds). {REMEDY}"
                self._give_up(EnvironmentFailed(message, stall.env_id))
                return
            if stall and seconds >= WARN_SECONDS and not warned:
                left = f"after {self._limit:g} s (--env-step-seconds) the run ends"
                self._warn(f"{stall.what} for {seconds:.0f} s; {left}. {REMEDY}")
            warned = seconds >= WARN_SECONDS
