"""A Fleet: N interchangeable workers of a runtime that survives the loss of some.

The roster decides (see roster.py), this does: it starts and stops workers, asks them, and takes their answers. A worker
that is gone is known by the error of its calls, not by a time-out; one that keeps a call waiting past its deadline is
ended and then gone too. What a worker raises itself is not a loss and ends the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from rookery.runtime.interface import ArgumentLost, Handle, Runtime, WorkerLost
from rookery.runtime.roster import Life, Roster, Start

ROOM_SECONDS = 2.0  # between looks at what the cluster has
_logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    tag: Any  # what the call was asked with
    result: Any  # None: the worker is gone, and the call was not done


class Fleet:
    def __init__(
        self,
        runtime: Runtime,
        role: str,
        roster: Roster,
        start: Callable[[Life], Handle],
        greet: Callable[[Handle], None] = lambda handle: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """start: spawns the worker of a life; greet: tells a worker that is made what it must know before its first call."""
        self.runtime, self.role, self.roster = runtime, role, roster
        self._start, self._greet, self._clock = start, greet, clock
        self._handles: dict[Life, Handle] = {}
        self._starting: dict[Future, Life] = {}
        self._calls: dict[Future, tuple[Life, Any]] = {}
        self._dropped: list[Any] = []  # tags of calls whose worker is gone, not told yet
        self._looked, self._room = float("-inf"), None  # type: float, int | None

    def tend(self) -> None:
        """Gives up whom nobody can wait for any longer, fills places and empties those for which there is no room."""
        now = self._clock()
        for life in self.roster.overdue(now):
            self._lose(life, f"{self._handles[life].name} has not answered in time")
        for step in self.roster.plan(now, self._look(now)):
            if isinstance(step, Start):
                handle = self._handles[step.life] = self._start(step.life)
                self._starting[handle.ready] = step.life
            else:
                self._handles.pop(step.life).kill()

    def next(self) -> Life | None:
        """Whom to ask next; None when everyone has enough to do."""
        return self.roster.next()

    def next_of(self, places: Iterable[int]) -> Life | None:
        """The first of these places whose worker may be asked."""
        return self.roster.next(places)

    def ask(self, life: Life, method: str, out: Any, tag: Any) -> None:
        """Lets a worker write into `out`; its answer comes out of `take` with `tag`."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].fill(method, out)] = (life, tag)

    def call(self, life: Life, method: str, *args: Any, tag: Any) -> None:
        """Any other call; its answer comes out of `take` with `tag`: an ArgumentLost where what it was to be given is gone."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].call(method, *args)] = (life, tag)

    def keep(self, life: Life, method: str, *args: Any, tag: Any) -> None:
        """A call that answers a pair; of the second part only a reference comes out of `take`, for calls of other workers."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].keep(method, *args)] = (life, tag)

    def tell(self, method: str, *args: Any, only: Life | None = None) -> int:
        """Calls every worker (or one), those being made too, between what it was asked before and will be after this.

        -> how many. Nobody waits for an answer: a worker that is gone, or cannot go on, shows in its next."""
        told = [handle for life, handle in self._handles.items() if only in (None, life)]
        for handle in told:
            handle.call(method, *args)
        return len(told)

    def waiting(self) -> list[Future]:
        """What to wait for: calls, and workers that are being made."""
        return [*self._starting, *self._calls]

    def within(self, seconds: float) -> float:
        """How long a wait may last: until a place may be filled again."""
        return min(seconds, self.roster.wakes(self._clock()))

    @property
    def busy(self) -> bool:
        """Is an answer owed?"""
        return bool(self._dropped) or any(self.roster.alive(life) for life, _ in self._calls.values())

    def take(self, ready: Iterable[Future]) -> list[Answer]:
        """The answers among the futures that are done; those of calls that will never be answered have no result."""
        answers, now = [], self._clock()
        for future in ready:
            if future in self._starting:
                self._made(future, self._starting.pop(future), now)
            elif future in self._calls:
                life, tag = self._calls[future]
                if future.cancelled() or isinstance(future.exception(), WorkerLost):
                    self._lose(life, "cancelled" if future.cancelled() else str(future.exception()))
                    del self._calls[future]
                    continue
                del self._calls[future]
                if self.roster.answered(life, now):
                    error = future.exception()
                    answers.append(Answer(tag, error if isinstance(error, ArgumentLost) else future.result()))
        dropped, self._dropped = self._dropped, []
        return [*answers, *(Answer(tag, None) for tag in dropped)]

    def publish(self, method: str, *args: Any) -> int:
        """Tells every worker that is made, beside its calls and before the next. -> how many were told."""
        made = [handle for life, handle in self._handles.items() if handle.ready not in self._starting]
        for handle in made:
            handle.now(method, *args)
        return len(made)

    def gather(self, method: str) -> list[Any]:
        """Calls every worker and waits: an answer for each place, None where nobody is, or was lost meanwhile."""
        assert not self.busy, "calls are in flight"
        answers: list[Any] = [None] * self.roster.terms.most
        made = {life: handle for life, handle in self._handles.items() if handle.ready not in self._starting}
        futures = {life: handle.call(method) for life, handle in made.items()}
        for life, future in futures.items():
            answers[life.place] = self._await(life, method, future)
        return answers

    def fetch(self, life: Life, method: str, *args: Any) -> Any:
        """Calls one worker and waits: its answer, or None where it is gone."""
        handle = self._handles.get(life)
        return None if handle is None else self._await(life, method, handle.call(method, *args))

    def _await(self, life: Life, method: str, future: Future) -> Any:
        answer, limit = None, self.roster.terms.call_deadline
        try:
            if not future.done() and limit is not None and not self.runtime.wait([future], limit)[0]:
                raise WorkerLost(f"{self._handles[life].name} did not answer {method}() in {limit:g} s")
            answer = future.result()
        except WorkerLost as error:
            self._lose(life, str(error))
        self.roster.seen(life, self._clock())
        return answer

    def _made(self, future: Future, life: Life, now: float) -> None:
        if isinstance(error := future.exception(), WorkerLost):
            self._lose(life, str(error))
            return
        future.result()  # what a constructor raises is nobody's loss
        if self.roster.ready(life, now):
            self._greet(self._handles[life])

    def _lose(self, life: Life, why: str) -> None:
        handle = self._handles.pop(life, None)
        if handle is None:
            return
        handle.kill()  # from here on nothing is written by it
        self._starting.pop(handle.ready, None)
        theirs = [future for future, (owner, _) in self._calls.items() if owner == life]
        self._dropped += [self._calls[future][1] for future in theirs]
        for future in theirs:
            self._calls[future] = (life, None)
        self._looked = float("-inf")  # its machine may have gone with it
        self.roster.lost(life, self._clock(), why)
        _logger.warning("%s is gone with %d calls unanswered and will be replaced: %s", handle.name, len(theirs), why)

    def _look(self, now: float) -> int | None:
        terms = self.roster.terms
        if terms.least < terms.most and now - self._looked >= ROOM_SECONDS:
            self._looked, self._room = now, self.runtime.room(self.role, len(self._handles))
        return self._room
