"""The supervisor of worker processes under a simulated clock, and in any order of events: no process is started for it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rookery import supervision
from rookery.envs.processes import supervisor
from rookery.envs.processes.supervisor import BACK_OFF, GOOD_LIFE, KillWorker, Supervisor
from rookery.supervision import BackOff, Life, Start


def supervise(workers: int = 1, *, max_mb: float | None = None) -> Supervisor:
    return Supervisor(workers, start_seconds=120.0, step_seconds=60.0, max_mb=max_mb)


def started(machine: Supervisor, now: float) -> list[Life]:
    """Everything that is due is started, and is ready at once."""
    lives = [start.life for start in machine.due(now)]
    for life in lives:
        machine.ready(life.place, now)
    return lives


def test_all_workers_are_due_at_first_and_once() -> None:
    machine = supervise(3)
    assert machine.due(0.0) == [Start(Life(place, 0)) for place in range(3)] and machine.due(1.0) == []
    assert not machine.asked(0, 1.0), "it is being started"
    machine.ready(0, 2.0)
    assert machine.asked(0, 3.0) and not machine.is_starting(0) and machine.is_starting(1)


def test_a_dead_worker_is_replaced_only_when_asked_for_and_after_its_back_off() -> None:
    machine = supervise(2)
    started(machine, 0.0)
    machine.died(1, 100.0)
    assert machine.is_lost(1) and machine.due(1000.0) == [], "the caller may give up instead"
    assert not machine.asked(1, 1000.0) and machine.asked(0, 1000.0)
    machine.replace(1, 1000.0)
    assert not machine.is_lost(1) and machine.due(1000.09) == []
    assert machine.due(1000.1) == [Start(Life(1, 1))], "its next life, counted from when it was asked for"
    with pytest.raises(AssertionError):
        machine.replace(1, 1001.0)


class Clock:
    now = 0.0


def waits(machine: Supervisor, clock: Clock, lives: int, seconds: float) -> list[float]:
    """The back-off after each of some lives that last so long, by trying every 1/100 s."""
    found = []
    for _ in range(lives):
        assert machine.is_starting(0) or machine.due(clock.now)
        machine.ready(0, clock.now)
        clock.now += seconds
        machine.died(0, clock.now)
        machine.replace(0, clock.now)
        wait = next(tick / 100 for tick in range(1000) if machine.due(clock.now + tick / 100 + 1e-6))
        clock.now += wait + 1e-6
        found.append(wait)
    return found


def test_short_lives_double_the_back_off_up_to_its_limit_and_a_good_one_ends_the_row() -> None:
    machine, clock = supervise(), Clock()
    assert waits(machine, clock, 6, seconds=0.5 * GOOD_LIFE) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert waits(machine, clock, 3, seconds=2 * GOOD_LIFE) == [0.1, 0.1, 0.1]
    assert waits(machine, clock, 2, seconds=0.0) == [0.2, 0.4]
    assert waits(machine, clock, 3000, seconds=0.0)[-1] == BACK_OFF.most, "no number of losses ends it, or overflows"


def test_to_be_long_in_the_making_is_no_good_life() -> None:
    machine, now = supervise(), 0.0
    for _ in range(4):
        machine.due(now)
        machine.died(0, now + 50.0)  # while it was starting
        machine.replace(0, now + 50.0)
        now += 100.0
    assert machine._places[0].since == pytest.approx(now - 50.0 + 0.8)


def test_who_makes_its_environments_too_late_is_killed_and_who_has_made_them_is_not() -> None:
    machine = supervise(2)
    machine.due(0.0)
    machine.ready(0, 119.0)
    assert machine.late(120.0) == []
    (kill,) = machine.late(121.0)
    assert kill == KillWorker(1, "its environments were not made within 120 s; it was killed")
    machine.died(1, 121.0)
    assert machine.late(1000.0) == [], "the idle and the dead are not late"


def test_who_steps_the_same_environment_for_too_long_hangs_and_a_slow_one_does_not() -> None:
    machine = supervise(2)
    started(machine, 0.0)
    for place in (0, 1):
        machine.asked(place, 1000.0)  # an old idle time is not held against it
    for seconds in range(0, 200, 20):
        now, slow = 1000.0 + seconds, seconds // 20
        kills = machine.hung(now, {0: 7, 1: slow})
        assert kills == ([] if seconds <= 60 else [KillWorker(0, "has not answered for 60 s and was killed")]), now
    machine.asked(0, 1200.0)
    assert machine.hung(1230.0, {0: 7}) == [] and machine.hung(1290.0, {0: 7}) == [], "it was first seen at 1230"
    machine.died(0, 1291.0)
    assert machine.hung(2000.0, {0: 7}) == []


def test_who_has_outgrown_the_limit_is_known_until_it_is_replaced() -> None:
    machine = supervise(max_mb=200.0)
    started(machine, 0.0)
    assert machine.weighs(0.0) and not machine.weighs(0.5) and machine.weighs(1.5)
    machine.weighed(0, 200.0)
    assert machine.outgrown(0) is None
    machine.weighed(0, 201.0)
    assert machine.outgrown(0) == KillWorker(0, "has grown to 201 MB (--env-max-mb 200) and was replaced")
    machine.died(0, 2.0)
    machine.replace(0, 2.0)
    started(machine, 3.0)
    assert machine.outgrown(0) is None, "the next one has not been weighed"
    unlimited = supervise()
    assert not unlimited.weighs(0.0) and unlimited.outgrown(0) is None


def test_a_back_off_doubles_from_the_first_to_the_most() -> None:
    assert [BackOff(0.5, 3.0).seconds(losses) for losses in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("module", [supervision, supervisor])
def test_the_machines_are_pure(module: object) -> None:
    """Neither a clock nor anything of the operating system is imported."""
    tree = ast.parse(Path(module.__file__).read_text())  # type: ignore[attr-defined]
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found <= {"__future__", "collections.abc", "dataclasses", "math", "typing", "rookery.supervision"}


class AnyEvents(RuleBasedStateMachine):
    """Two workers, events in any order, against a record of what happened."""

    @initialize()
    def begin(self) -> None:
        self.machine, self.now = supervise(2), 0.0
        self.alive: set[int] = set()
        self.ready: set[int] = set()
        self.lost: set[int] = set()
        self.lives: list[Life] = []
        self.not_before = {0: 0.0, 1: 0.0}

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 2.0, 61.0, 121.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start(self) -> None:
        for start in self.machine.due(self.now):
            place = start.life.place
            assert place not in self.alive | self.lost, "two processes in one place, or one that nobody asked for"
            assert start.life not in self.lives, "a life twice"
            assert self.now >= self.not_before[place], "no back-off"
            self.alive.add(place)
            self.lives.append(start.life)

    @rule(place=st.sampled_from([0, 1]))
    def make(self, place: int) -> None:
        if place in self.alive - self.ready:
            self.machine.ready(place, self.now)
            self.ready.add(place)

    @rule(place=st.sampled_from([0, 1]))
    def ask(self, place: int) -> None:
        assert self.machine.asked(place, self.now) == (place in self.ready)

    @rule(place=st.sampled_from([0, 1]))
    def die(self, place: int) -> None:
        self.machine.died(place, self.now)  # also when it is known already
        self.lost |= {place} & self.alive
        self.alive.discard(place)
        self.ready.discard(place)

    @rule(place=st.sampled_from([0, 1]))
    def replace(self, place: int) -> None:
        assert self.machine.is_lost(place) == (place in self.lost)
        if place in self.lost:
            self.machine.replace(place, self.now)
            self.lost.remove(place)
            self.not_before[place] = self.now + BACK_OFF.first

    @rule(stepping=st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 1)))
    def look(self, stepping: dict[int, int]) -> None:
        assert {kill.place for kill in self.machine.hung(self.now, stepping)} <= self.ready & set(stepping)
        assert {kill.place for kill in self.machine.late(self.now)} <= self.alive - self.ready

    def teardown(self) -> None:
        """When no more die, everybody is there again after a while."""
        if hasattr(self, "machine"):
            for place in self.lost:
                self.machine.replace(place, self.now)
            self.machine.due(self.now + 2 * BACK_OFF.most)
            for place in (0, 1):
                assert self.machine.is_starting(place) or self.machine.is_working(place)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
