"""Membership of a fleet: which places are filled, who may be called, who is replaced and when. A pure state machine.

    absent ──Start──▶ starting ──ready──▶ working ──lost──▶ waiting (back-off) ──Start──▶ starting, the next life
                          └──────────lost───────────────────▲             working ──Stop──▶ absent (no room)

It has no clock, no thread and no worker: it is told what happened and when, and `plan` says what to start and stop. Its
places, their lives, back-off and budgets are those of `rookery.supervision`, which the worker processes of environments
have too; calls, room and the end of a fleet are its own. Whatever an earlier life still says is not heard. A place that is
lost again and again without progress in between ends the fleet: `Exhausted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rookery.runtime.interface import WorkerLost
from rookery.supervision import BackOff, Budget, Life, Place, Start, State

__all__ = ["Exhausted", "Life", "Roster", "Start", "Stop", "Terms", "span"]  # who has a roster speaks of lives and starts


class Stop(NamedTuple):
    """Stop the worker of this life: there is no room for it."""

    life: Life


class Exhausted(WorkerLost):
    """A place of a fleet was lost too often; more tries would be a loop that nobody sees."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How large a fleet is and what is done about losses. Times are in seconds."""

    least: int = 1
    most: int = 1
    in_flight: int = 1  # calls per worker
    back_off: float = 0.1  # before the first replacement of a place; doubles with each loss without progress
    back_off_most: float = 30.0
    losses: int = 5  # of one place without progress in between; one more ends the fleet
    good_calls: float = 1  # answered ones that give back one loss (see supervision.Budget)
    call_deadline: float | None = None  # for an answer; None: a call may take for ever
    start_deadline: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a fleet of {self.least}..{self.most} workers: it needs at least 1, and no fewer at most")


@dataclass(eq=False)
class _CalledPlace(Place):
    calls: int = 0  # in flight

    def vacate(self, state: State = "absent") -> None:
        self.calls = 0
        super().vacate(state)


class Roster:
    def __init__(self, terms: Terms, lives: Sequence[int] = ()) -> None:
        """lives: the number of the life with which each place begins, where a fleet is continued."""
        self.terms = terms
        numbers = [*lives, *[0] * terms.most][: terms.most]
        back_off = BackOff(terms.back_off, terms.back_off_most)
        self._places = [_CalledPlace(Life(i, number), Budget(terms.losses), back_off) for i, number in enumerate(numbers)]
        self.lost_calls = self.lost_workers = self.late = 0

    # ------------------------------------------------------------------------------------------ what to do

    def plan(self, now: float, room: int | None = None) -> list[Start | Stop]:
        """Plan the starts and stops that are due now. room: how many workers could live; None: as many as are wanted."""
        terms = self.terms
        wanted = terms.most if room is None else min(terms.most, max(terms.least, room))
        steps: list[Start | Stop] = []
        filled = sorted((p for p in self._places if p.state != "absent"), key=lambda p: p.state == "waiting")
        for place in filled[:wanted]:
            if place.state == "leaving":  # there is room again
                place.state = "working"
            if place.due(now):
                steps.append(place.start(now))
        for place in filled[wanted:]:  # no room for these: they end what they are at, and leave
            place.state = "absent" if place.state == "waiting" else "leaving"
            if place.state == "leaving" and place.calls == 0:
                steps.append(Stop(place.life))
                place.vacate()
        free = [p for p in self._places if p.state == "absent" and p.due(now)]
        vacant = max(0, wanted - sum(p.state != "absent" for p in self._places))
        return steps + [place.start(now) for place in free[:vacant]]

    def wakes(self, now: float) -> float:
        """Return the seconds until the next back-off ends."""
        return max(0.0, min((p.since - now for p in self._places if p.state == "waiting"), default=float("inf")))

    def next(self, places: Iterable[int] | None = None) -> Life | None:
        """Choose the worker with the fewest calls in flight, the first of them; None when all have enough.

        places: only among these."""
        among = self._places if places is None else [self._places[place] for place in places]
        working = [place for place in among if place.state == "working"]
        place = min(working, key=lambda p: p.calls, default=None)
        return place.life if place is not None and place.calls < self.terms.in_flight else None

    def overdue(self, now: float) -> list[Life]:
        """List the workers past the deadline of a call, or of their start."""
        limits: dict[State, float | None] = {"starting": self.terms.start_deadline, "working": self.terms.call_deadline}
        limits["leaving"] = limits["working"]
        owing = [p for p in self._places if p.calls or p.state == "starting"]
        return [p.life for p in owing if p.overdue(now, limits.get(p.state))]

    # ------------------------------------------------------------------------------------------ what happened

    def ready(self, life: Life, now: float) -> bool:
        """Note that a worker is made. False: it is of an earlier life."""
        if not self.alive(life):
            return False
        self._places[life.place].ready(now)
        return True

    def asked(self, life: Life, now: float) -> None:
        place = self._places[life.place]
        assert self.alive(life) and place.state == "working" and place.calls < self.terms.in_flight, life
        place.since = now if place.calls == 0 else place.since
        place.calls += 1

    def answered(self, life: Life, now: float) -> bool:
        """Note a reply. False: it is of an earlier life and does not count."""
        place = self._places[life.place]
        if not self.alive(life):
            self.late += 1
            return False
        place.calls -= 1
        place.since = now
        self.earned(life)
        return True

    def earned(self, life: Life) -> None:
        """Credit a worker's progress to its budget of losses."""
        if self.alive(life):
            self._places[life.place].budget.earn(1 / self.terms.good_calls)

    def seen(self, life: Life, now: float) -> None:
        """Note a sign of life of a worker."""
        if self.alive(life):
            self._places[life.place].seen(now)

    def lost(self, life: Life, now: float, why: str) -> bool:
        """Note the loss of a worker and of its unanswered calls, and back off. False: that was known. Raises Exhausted."""
        place, terms = self._places[life.place], self.terms
        if not self.alive(life):
            return False
        leaving = place.state == "leaving"
        self.lost_calls += place.calls
        self.lost_workers += 1
        if not place.budget.spend():
            times = f"{terms.losses + 1} times without enough answers in between"
            raise Exhausted(f"worker {life.place} was lost {times}. The last time: {why}")
        place.vacate()
        place.await_back_off(now)
        if leaving:
            place.state = "absent"  # and not to be filled before the back-off is over, should there be room again
        return True

    # ---------------------------------------------------------------------------------------------- how it stands

    def alive(self, life: Life) -> bool:
        place = self._places[life.place]
        return place.life == life and place.alive

    @property
    def lives(self) -> list[int]:
        """The number of the life that each place is at: what a resumed fleet begins with."""
        return [place.life.number for place in self._places]

    def count(self, *states: State) -> int:
        return sum(place.state in states for place in self._places)


def span(collectors: int | str) -> tuple[int, int]:
    """Read how many collectors there may be, at least and at most: 4 -> (4, 4); "2..16" -> (2, 16)."""
    least, dots, most = str(collectors).partition("..")
    if not least.isdigit() or (dots and not most.isdigit()):
        raise ValueError(f"--collectors {collectors}: write a number (4) or a range (2..16)")
    low, high = int(least), int(most or least)
    if not 1 <= low <= high:
        raise ValueError(f"--collectors {collectors}: it must be at least 1, and a range goes upwards")
    return low, high
