"""A Fleet: N interchangeable workers of a runtime, which survives the loss of some by replacing them.

The roster (roster.py) is the state machine that decides; the Fleet acts: it spawns and kills workers, calls them and takes
their replies. A dead worker is known by the error of its calls, not by a time-out; one that keeps a call waiting past its
deadline is killed and then dead too. What a worker raises itself is not a loss and ends the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, NamedTuple

from rookery.runtime.interface import ArgumentLost, Handle, Out, P, R, Runtime, W, WorkerLost
from rookery.runtime.roster import Life, Roster, Start

ROOM_SECONDS = 2.0  # between looks at what the cluster has
_logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    tag: Any  # what the call was asked with
    result: Any  # None: the worker is gone, and the call was not done


class Fleet(Generic[W]):
    def __init__(
        self,
        runtime: Runtime,
        role: str,
        roster: Roster,
        start: Callable[[Life], Handle[W]],
        greet: Callable[[Handle[W]], None] = lambda handle: None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """start: spawns the worker of a life; greet: sends a new worker what it needs before its first call (parameters);
        clock: by default that of the runtime, where it has one of its own (a simulated one)."""
        self.runtime, self.role, self.roster = runtime, role, roster
        self._start, self._greet = start, greet
        own: Callable[[], float] = getattr(runtime, "monotonic", time.monotonic)
        self._clock = clock or own
        self._handles: dict[Life, Handle[W]] = {}
        self._starting: dict[Future, Life] = {}
        self._calls: dict[Future, tuple[Life, Any]] = {}
        self._dropped: list[Any] = []  # tags of calls whose worker is gone, not told yet
        self._looked, self._room = float("-inf"), None  # type: float, int | None

    def tend(self) -> None:
        """Kill workers past their deadline, replace dead ones after their back-off, and scale to the room in the cluster."""
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
        """Choose the worker to call next; None when all have as many calls in flight as they may."""
        return self.roster.next()

    def next_of(self, places: Iterable[int]) -> Life | None:
        """Choose the worker to call next among those of some places, the first that is free."""
        return self.roster.next(places)

    def ask(self, life: Life, tag: Any, method: Callable[[W, Out], Any], out: Out) -> None:
        """Ask a worker to write a rollout into `out`; `take` returns the answer with `tag`."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].fill(method, out)] = (life, tag)

    def call(self, life: Life, tag: Any, method: Callable[Concatenate[W, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a worker; `take` returns the answer with `tag`: an ArgumentLost where an argument by reference is gone."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].call(method, *args, **kwargs)] = (life, tag)

    def keep(
        self, life: Life, tag: Any, method: Callable[Concatenate[W, P], tuple[Any, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call a method that answers a pair; `take` returns its second part as a reference, for calls of other workers."""
        self.roster.asked(life, self._clock())
        self._calls[self._handles[life].keep(method, *args, **kwargs)] = (life, tag)

    def tell(self, method: Callable[Concatenate[W, P], Any], *args: P.args, **kwargs: P.kwargs) -> int:
        """Broadcast to all workers, starting ones included; ordered with their other calls; fire and forget.

        -> how many. A worker that is gone, or that raised, shows in its next answer."""
        for handle in self._handles.values():
            handle.call(method, *args, **kwargs)
        return len(self._handles)

    def tell_one(self, life: Life, method: Callable[Concatenate[W, P], Any], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Send to one worker what `tell` broadcasts. False: it is gone."""
        if (handle := self._handles.get(life)) is not None:
            handle.call(method, *args, **kwargs)
        return handle is not None

    def waiting(self) -> list[Future]:
        """List the futures to wait for: calls, and workers that are starting."""
        return [*self._starting, *self._calls]

    def within(self, seconds: float) -> float:
        """Shorten a wait so that it ends when a back-off does."""
        return min(seconds, self.roster.wakes(self._clock()))

    @property
    def busy(self) -> bool:
        """Whether a reply is outstanding."""
        return bool(self._dropped) or any(self.roster.alive(life) for life, _ in self._calls.values())

    def take(self, ready: Iterable[Future]) -> list[Reply]:
        """Return the replies among the futures that are done; the calls of a dead worker are replied to with None."""
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
                    answers.append(Reply(tag, error if isinstance(error, ArgumentLost) else future.result()))
        dropped, self._dropped = self._dropped, []
        return [*answers, *(Reply(tag, None) for tag in dropped)]

    def publish(self, method: Callable[Concatenate[W, P], Any], *args: P.args, **kwargs: P.kwargs) -> int:
        """Broadcast to all workers that are made, on the lane beside their calls and before the next. -> how many."""
        made = [handle for life, handle in self._handles.items() if handle.ready not in self._starting]
        for handle in made:
            handle.now(method, *args, **kwargs)
        return len(made)

    def gather(self, method: Callable[[W], R]) -> list[R | None]:
        """Call all workers and wait: an answer for each place, None where nobody is, or was lost meanwhile."""
        assert not self.busy, "calls are in flight"
        answers: list[R | None] = [None] * self.roster.terms.most
        made = {life: handle for life, handle in self._handles.items() if handle.ready not in self._starting}
        futures = {life: handle.call(method) for life, handle in made.items()}
        for life, future in futures.items():
            answers[life.place] = self._await(life, method.__name__, future)
        return answers

    def fetch(self, life: Life, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call one worker and wait: its answer, or None where it is gone."""
        if (handle := self._handles.get(life)) is None:
            return None
        return self._await(life, method.__name__, handle.call(method, *args, **kwargs))

    def _await(self, life: Life, method: str, future: Future[R]) -> R | None:
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
