"""Decide which worker processes of a pool are started, killed and replaced, and when. A pure state machine.

    due: Start ──▶ starting ──ready──▶ working ──died──▶ lost ──replace──▶ waiting (back-off) ──▶ due: Start
                      └── late: Kill     └── hung, outgrown: Kill

It has no clock, no process and no file descriptor: `worker_processes.WorkerProcesses` forks, listens and kills, tells it
what happened and when, and does what it says. Places, lives and back-off are those of `rookery.supervision`, as for the
places of a fleet (`runtime.roster.Roster`). What differs, and why:

- A worker that died is lost, and waits for its back-off only when the pool's caller has asked for a replacement: the caller
  holds the budget, of each environment by itself (`pools.restarts.Restarts`), and may end the run instead. So the budget
  here has no end and only doubles the back-off.
- A good life, and not an answer, ends a row of losses: a worker answers thousands of times a second.
- The number of a life fences nothing off. Whatever a worker can reach (shared memory, eventfds, socket) is given to the
  next one only when its pidfd says that it is dead, so no message of an earlier life can come.
- A worker hosts many environments and is late only when it is seen stepping the same one for too long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rookery.supervision import BackOff, Budget, Life, Place, Start

BACK_OFF = BackOff(0.1, 1.0)  # at most 1 s: `Restarts` ends a crash loop
GOOD_LIFE = 1.0  # seconds: a worker that worked so long is not one that fails again and again
WEIGH_SECONDS = 1.0  # between looks at the memory of workers
NOBODY = -1  # no environment was seen being stepped


class KillWorker(NamedTuple):
    """Kill the worker in this place; `why` goes on from "worker process 17 ..."."""

    place: int
    why: str


@dataclass(eq=False)
class _ProcessPlace(Place):
    stepping: int = NOBODY  # the environment that it was last seen stepping
    ready_at: float = 0.0
    megabytes: float = 0.0  # of resident memory, when it was last weighed


class Supervisor:
    """Supervise `workers` processes, each in a place of its own."""

    def __init__(self, workers: int, *, start_seconds: float, step_seconds: float, max_mb: float | None = None) -> None:
        """start_seconds, step_seconds: the deadlines for making environments and for one step; max_mb: of resident memory."""
        self._start_seconds, self._step_seconds, self._max_mb = start_seconds, step_seconds, max_mb
        self._places = [_ProcessPlace(Life(place, 0), Budget(math.inf), BACK_OFF) for place in range(workers)]
        self._weighed = -math.inf

    # ------------------------------------------------------------------------------------------ what to do

    def due(self, now: float) -> list[Start]:
        """Begin the lives that are due: all at first, later those whose back-off is over."""
        return [place.start(now) for place in self._places if place.due(now)]

    def late(self, now: float) -> list[KillWorker]:
        """List the workers that have not made their environments in time."""
        why = f"its environments were not made within {self._start_seconds:g} s; it was killed"
        starting = [place for place in self._places if place.state == "starting"]
        return [KillWorker(place.life.place, why) for place in starting if place.overdue(now, self._start_seconds)]

    def hung(self, now: float, stepping: Mapping[int, int]) -> list[KillWorker]:
        """List the workers that hang. stepping: of each that owes an answer, which environment it is stepping now.

        To go on to another environment is a sign of life: only one that stays with the same one for too long hangs."""
        kills = []
        for index, env in stepping.items():
            place = self._places[index]
            if place.state != "working":
                continue
            if env != place.stepping:
                place.stepping = env
                place.seen(now)
            elif place.overdue(now, self._step_seconds):
                kills.append(KillWorker(index, f"has not answered for {self._step_seconds:g} s and was killed"))
        return kills

    def weighs(self, now: float) -> bool:
        """Return whether the memory of workers is to be looked at now."""
        if self._max_mb is None or now - self._weighed < WEIGH_SECONDS:
            return False
        self._weighed = now
        return True

    def outgrown(self, place: int) -> KillWorker | None:
        """Return what to do about a worker whose memory has grown beyond the limit; None: it has not."""
        mb, limit = self._places[place].megabytes, self._max_mb
        if limit is None or mb <= limit or not self.is_working(place):
            return None
        return KillWorker(place, f"has grown to {mb:.0f} MB (--env-max-mb {limit:g}) and was replaced")

    # ------------------------------------------------------------------------------------------ what happened

    def ready(self, place: int, now: float) -> None:
        """Note that a worker has made its environments."""
        self._places[place].ready(now)
        self._places[place].ready_at = now

    def asked(self, place: int, now: float) -> bool:
        """Note that a worker owes answers from now on. False: it is not there to be asked."""
        asked = self._places[place]
        if asked.state != "working":
            return False
        asked.stepping, asked.since = NOBODY, now
        return True

    def weighed(self, place: int, megabytes: float) -> None:
        """Note how much memory a worker holds."""
        self._places[place].megabytes = megabytes

    def died(self, place: int, now: float) -> None:
        """Note that a worker is dead; a good life makes up for the losses before it."""
        dead = self._places[place]
        if dead.state == "working" and now - dead.ready_at >= GOOD_LIFE:
            dead.budget.earn(math.inf)
        if dead.alive:
            dead.megabytes = 0.0
            dead.lose(now)

    def replace(self, place: int, now: float) -> None:
        """Order a replacement for a lost worker, after a back-off that doubles with each short life."""
        lost = self._places[place]
        assert lost.state == "lost", lost
        lost.budget.spend()
        lost.await_back_off(now)

    # ---------------------------------------------------------------------------------------------- how it stands

    def is_starting(self, place: int) -> bool:
        return self._places[place].state == "starting"

    def is_working(self, place: int) -> bool:
        return self._places[place].state == "working"

    def is_lost(self, place: int) -> bool:
        """Return whether a worker is dead, and nobody has asked for a replacement yet."""
        return self._places[place].state == "lost"
