"""Supervise workers that may be lost: places, lives, back-off, and a budget of losses that progress refills.

    absent ──start──▶ starting ──ready──▶ working ──lose──▶ lost ──await_back_off──▶ waiting ──start──▶ starting, the next life
                          └───────────────lose──────────────▲

Pure state machines: no clock, no process, no file descriptor. They are told what happened and when, and say what is due.
A place (0, 1, ...) is the same logical worker for ever; each worker put there is a new life of it. Three supervisors are
made of these parts:

- `runtime.roster.Roster`, the places of a fleet. It adds calls in flight and growing and shrinking with the cluster. Lost
  and waiting are one event there, answered calls refill the budget, and a place that has spent it ends the fleet.
- `envs.processes.supervisor.Supervisor`, the worker processes of a pool. A process is lost when it dies, and waits only
  once the caller asks for a replacement (`rebuild`): until then the caller may give up instead. Its budget has no end and
  only doubles the back-off, because one process hosts many environments and these are charged one by one, by
- `envs.pools.restarts.Restarts`, which has no places: environments are rebuilt at once, within a `Budget` each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal["absent", "waiting", "starting", "working", "leaving", "lost"]
MOST_DOUBLINGS = 60  # of a back-off: far beyond any limit, and still a float


class Life(NamedTuple):
    """One worker: the place that it fills and how many were there before it."""

    place: int
    number: int


class Start(NamedTuple):
    """Start the worker of this life."""

    life: Life


class BackOff(NamedTuple):
    """Exponential back-off, in seconds: how long to wait before a lost worker is started again."""

    first: float
    most: float

    def seconds(self, losses_in_a_row: int) -> float:
        """Return the wait after so many losses without progress in between, at least 1."""
        return min(self.most, self.first * 2.0 ** min(losses_in_a_row - 1, MOST_DOUBLINGS))


@dataclass
class Budget:
    """Count losses against progress, not against the clock.

    A budget per minute never ends a crash loop that back-off slows down, and ends a quick run whose failures are rare. So
    each loss takes one restart, and what is done in between gives restarts back.
    """

    restarts: float  # math.inf: losses are counted for the back-off alone
    spent: float = 0.0

    def spend(self) -> bool:
        """Take one restart for a loss. False: there is none left."""
        if self.spent > self.restarts - 1:
            return False
        self.spent += 1
        return True

    def earn(self, restarts: float) -> None:
        """Give restarts back for what was done since the last loss."""
        self.spent = max(0.0, self.spent - restarts)

    @property
    def in_a_row(self) -> int:
        """Return the losses without much progress in between, for a back-off that doubles."""
        return math.ceil(self.spent)


@dataclass(eq=False)
class Place:
    """The state machine of one place."""

    life: Life
    budget: Budget
    back_off: BackOff
    state: State = "absent"
    since: float = -math.inf  # absent, waiting: not to be started before; starting, working: the last sign of life

    @property
    def alive(self) -> bool:
        """Return whether there is a worker, or one is being started."""
        return self.state in ("starting", "working", "leaving")

    def due(self, now: float) -> bool:
        """Return whether a worker may be started here now: nobody is there, and the back-off is over."""
        return self.state in ("absent", "waiting") and now >= self.since

    def overdue(self, now: float, limit: float | None) -> bool:
        """Return whether the last sign of life is longer ago than the limit. None: there is no limit."""
        return limit is not None and now - self.since > limit

    def start(self, now: float) -> Start:
        """Begin the life whose number it is."""
        self.state, self.since = "starting", now
        return Start(self.life)

    def ready(self, now: float) -> None:
        """Note that the worker is made; one that is to leave still is."""
        self.state, self.since = ("working" if self.state == "starting" else self.state), now

    def seen(self, now: float) -> None:
        """Note a sign of life."""
        self.since = now

    def vacate(self, state: State = "absent") -> None:
        """End this life, whose place is then absent or lost; the next one has the next number."""
        self.life, self.state = Life(self.life.place, self.life.number + 1), state

    def lose(self, now: float) -> None:
        """Note that the worker is gone."""
        self.vacate("lost")
        self.since = now

    def await_back_off(self, now: float) -> None:
        """Let the place wait to be filled again, by how many losses its budget has counted."""
        self.state, self.since = "waiting", now + self.back_off.seconds(self.budget.in_a_row)
