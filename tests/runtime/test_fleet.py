"""The shell of a fleet on workers that do what the test says: losses, silence, late answers, room."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rookery.runtime.fleet import Fleet, Reply
from rookery.runtime.interface import WorkerLost
from rookery.runtime.roster import Life, Roster, Terms


class Asked:
    """What the workers would be; nobody makes one."""

    def collect(self, out: Any) -> None: ...
    def evaluate(self, share: int) -> None: ...
    def learn(self, generation: int) -> None: ...
    def publish(self, version: int) -> None: ...
    def restore(self) -> None: ...
    def snapshot(self) -> str: ...


class Worker:
    """A handle whose calls are answered by the test."""

    def __init__(self, life: Life) -> None:
        self.life, self.name, self.ready, self.killed = life, f"worker-{life.place}", Future(), 0  # type: ignore[var-annotated]
        self.calls: list[Future] = []
        self.told: list[Any] = []

    def call(self, method: Callable[..., Any], *args: Any) -> Future:
        self.calls.append(Future())
        return self.calls[-1]

    def fill(self, method: Callable[..., Any], out: Any) -> Future:
        return self.call(method, out)

    def now(self, method: Callable[..., Any], *args: Any) -> None:
        self.told.append(args)

    def kill(self) -> None:
        self.killed += 1


class Bench:
    """A runtime of such workers, a clock that the test moves, and a fleet on both."""

    def __init__(self, **terms: Any) -> None:
        self.time, self.capacity, self.made, self.greeted = 0.0, 0, [], []  # type: float, int, list[Worker], list[Any]
        self.fleet = Fleet(
            self,
            "worker",
            Roster(Terms(**terms)),
            self.start,
            self.greeted.append,
            clock=lambda: self.time,  # type: ignore[arg-type]
        )

    def start(self, life: Life) -> Worker:
        self.made.append(Worker(life))
        return self.made[-1]

    def room(self, role: str, live: int) -> int:
        return self.capacity

    def after(self, seconds: float) -> list[Reply]:
        """Time passes; every future that is done is taken in, and the fleet is tended."""
        self.time += seconds
        answers = self.fleet.take([future for future in self.fleet.waiting() if future.done()])
        self.fleet.tend()
        return answers

    def begin(self) -> None:
        self.fleet.tend()
        for worker in self.made:
            worker.ready.set_result(None)
        self.after(0.0)


def test_a_lost_worker_owes_all_its_calls_and_the_next_life_is_greeted_before_it_is_asked() -> None:
    bench = Bench(in_flight=2)
    bench.begin()
    first = bench.made[0]
    for tag in "ab":
        bench.fleet.ask(Life(0, 0), tag, Asked.collect, None)
    first.calls[0].set_exception(WorkerLost("killed"))
    assert bench.after(0.0) == [Reply("a", None), Reply("b", None)] and first.killed == 1
    assert not bench.fleet.busy and bench.fleet.within(9.0) == pytest.approx(0.1)
    bench.after(0.2)
    second = bench.made[1]
    assert second.life == Life(0, 1) and bench.fleet.next() is None and len(bench.greeted) == 1
    second.ready.set_result(None)
    bench.after(1.0)
    assert bench.greeted == [first, second] and bench.fleet.next() == Life(0, 1)


def test_a_silent_worker_is_ended_and_what_it_says_later_is_dropped_and_counted() -> None:
    bench = Bench(call_deadline=10.0)
    bench.begin()
    bench.fleet.ask(Life(0, 0), "a", Asked.collect, None)
    assert bench.after(9.0) == [] and not bench.made[0].killed
    bench.after(2.0)
    assert bench.made[0].killed == 1 and bench.fleet.take([]) == [Reply("a", None)]
    bench.made[0].calls[0].set_result("late")
    assert bench.after(0.0) == [] and bench.fleet.roster.late == 1


def test_a_worker_that_cannot_be_made_in_time_or_dies_in_the_making_is_tried_again() -> None:
    bench = Bench(start_deadline=30.0)
    bench.fleet.tend()
    bench.after(31.0)
    bench.after(0.2)
    bench.made[1].ready.set_exception(WorkerLost("killed in its constructor"))
    bench.after(0.0)
    bench.after(0.3)
    assert [worker.life.number for worker in bench.made] == [0, 1, 2]
    assert [worker.killed for worker in bench.made] == [1, 1, 0]


@pytest.mark.parametrize("where", ["constructor", "call"])
def test_what_a_worker_raises_is_no_loss_and_comes_out_as_it_is(where: str) -> None:
    bench = Bench()
    bench.fleet.tend()
    future = bench.made[0].ready
    if where == "call":
        future.set_result(None)
        bench.after(0.0)
        bench.fleet.ask(Life(0, 0), "a", Asked.collect, None)
        future = bench.made[0].calls[0]
    future.set_exception(error := ZeroDivisionError("mine"))
    with pytest.raises(ZeroDivisionError) as caught:
        bench.after(0.0)
    assert caught.value is error


def test_a_fleet_looks_for_room_now_and_then_and_stops_those_for_whom_there_is_none() -> None:
    bench = Bench(least=1, most=3)
    bench.begin()
    assert len(bench.made) == 1
    bench.capacity = 3
    bench.after(1.0)
    assert len(bench.made) == 1, "looking has a price"
    bench.after(1.5)
    assert [worker.life.place for worker in bench.made] == [0, 1, 2]
    for worker in bench.made[1:]:
        worker.ready.set_result(None)
    bench.after(0.0)
    bench.capacity = 1
    bench.after(2.5)
    assert [worker.killed for worker in bench.made] == [0, 1, 1]


def test_publishing_reaches_those_that_are_made_and_gathering_names_the_lost() -> None:
    bench = Bench(least=3, most=3)
    bench.fleet.tend()
    for worker in bench.made[:2]:
        worker.ready.set_result(None)
    bench.after(0.0)
    assert bench.fleet.publish(Asked.publish, 7) == 2 and [w.told for w in bench.made] == [[(7,)], [(7,)], []]
    for worker, answer in zip(bench.made, ("state", WorkerLost("killed"))):
        future: Future = Future()
        (future.set_exception if isinstance(answer, Exception) else future.set_result)(answer)  # type: ignore[operator]
        worker.call = lambda method, f=future: f  # type: ignore[method-assign, misc]
    assert bench.fleet.gather(Asked.snapshot) == ["state", None, None]
    assert bench.fleet.roster.lives == [0, 1, 0]


def test_calls_are_answered_with_their_tags_and_what_is_told_reaches_everybody_in_order() -> None:
    bench = Bench(least=2, most=2)
    bench.after(0)
    made = bench.made
    assert bench.fleet.tell(Asked.learn, 1) == 2, "those being made are told, too: it waits until they are"
    assert [len(worker.calls) for worker in made] == [1, 1]
    for worker in made:
        worker.ready.set_result(None)
    bench.after(0)
    life = bench.fleet.next()
    assert life is not None
    bench.fleet.call(life, "share 3", Asked.evaluate, 3)
    assert bench.fleet.busy and bench.fleet.tell_one(life, Asked.restore) is True
    assert [len(worker.calls) for worker in made] == [3, 1]
    made[0].calls[0].set_exception(WorkerLost("told in vain"))  # nobody waits for it
    made[0].calls[1].set_result("score")
    assert bench.after(0) == [Reply("share 3", "score")]
    bench.fleet.call(life, "share 4", Asked.evaluate, 4)
    made[0].calls[-1].set_exception(WorkerLost("killed"))
    assert bench.after(0) == [Reply("share 4", None)] and made[0].killed == 1
    assert bench.fleet.tell_one(life, Asked.restore) is False and len(made[0].calls) == 4, "whoever is gone is not told"
