"""The roster of a fleet under any order of events: nobody is in two places, nobody old is heard, losses have a budget."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rookery.runtime.roster import Exhausted, Life, Roster, Start, Stop, Terms, span


def started(roster: Roster, now: float = 0.0, room: int | None = None) -> list[Life]:
    """Everything that is to be started is, and is ready at once."""
    lives = [step.life for step in roster.plan(now, room) if isinstance(step, Start)]
    for life in lives:
        roster.ready(life, now)
    return lives


def test_work_goes_to_the_one_with_the_fewest_calls_and_stops_at_the_limit() -> None:
    roster = Roster(Terms(least=2, most=2, in_flight=2))
    assert roster.next() is None, "nobody is there yet"
    started(roster)
    order = []
    while (life := roster.next()) is not None:
        order.append(life.place)
        roster.asked(life, 0.0)
    assert order == [0, 1, 0, 1]
    roster.answered(Life(1, 0), 1.0)
    assert roster.next() == Life(1, 0) and roster.next([0]) is None


def test_a_worker_that_is_being_made_is_not_asked() -> None:
    roster = Roster(Terms())
    assert roster.plan(0.0) == [Start(Life(0, 0))] and roster.plan(0.0) == []
    assert roster.next() is None
    roster.ready(Life(0, 0), 1.0)
    assert roster.next() == Life(0, 0)


def test_each_loss_without_progress_doubles_the_wait_and_one_too_many_ends_the_fleet() -> None:
    terms = Terms(back_off=0.1, back_off_most=0.5, losses=5)
    roster, now, waits = Roster(terms), 100.0, []
    for number in range(5):
        assert started(roster, now) == [Life(0, number)]
        assert roster.lost(Life(0, number), now, "killed")
        assert started(roster, now + 0.09) == []
        waits.append(roster.wakes(now))
        now += waits[-1]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    started(roster, now)
    with pytest.raises(Exhausted, match=r"6 times without enough answers.*the last traceback") as error:
        roster.lost(Life(0, 5), now, "the last traceback")
    assert error.value.exit_code == 7


def test_one_that_is_lost_while_it_leaves_is_not_replaced_before_its_wait_is_over() -> None:
    roster = Roster(Terms(least=1, most=2, back_off=0.1))
    started(roster)
    for place in (0, 1):
        roster.asked(Life(place, 0), 0.0)
    assert roster.plan(1.0, room=1) == [], "it ends what it is at, and leaves"
    assert roster.lost(Life(1, 0), 1.0, "killed")
    assert roster.plan(1.05) == [] and roster.plan(1.1) == [Start(Life(1, 1))], "there is room again"


def test_losses_are_forgiven_for_what_was_answered_since() -> None:
    roster = Roster(Terms(losses=1))
    for number in range(20):
        now = 0.2 * number
        started(roster, now)
        roster.asked(Life(0, number), now)
        roster.answered(Life(0, number), now)
        roster.lost(Life(0, number), now, "killed")
        assert roster.wakes(now) == pytest.approx(0.1)


def test_the_budget_is_of_each_place_so_that_a_machine_may_take_many_with_it() -> None:
    roster = Roster(Terms(least=16, most=16, losses=2))
    for life in started(roster):
        roster.lost(life, 0.0, "its machine is gone")
    assert len(started(roster, 1.0)) == 16 and roster.lost_workers == 16


def test_what_an_earlier_life_says_is_counted_and_not_heard() -> None:
    roster = Roster(Terms(in_flight=3))
    old = started(roster)[0]
    for _ in range(3):
        roster.asked(old, 0.0)
    roster.lost(old, 0.0, "cut off")
    new = started(roster, 1.0)[0]
    assert new == Life(0, 1) and roster.lost_calls == 3
    assert not roster.answered(old, 2.0) and not roster.ready(old, 2.0) and not roster.lost(old, 2.0, "again")
    assert roster.late == 1 and roster.lost_workers == 1 and roster.alive(new)


def test_a_fleet_grows_into_the_room_there_is_and_gives_it_back_when_idle() -> None:
    roster = Roster(Terms(least=2, most=4))
    assert [life.place for life in started(roster, 0.0, room=0)] == [0, 1], "the least are started whatever there is"
    assert [life.place for life in started(roster, 1.0, room=3)] == [2]
    assert [life.place for life in started(roster, 1.0, room=9)] == [3]
    roster.asked(Life(3, 0), 2.0)
    assert roster.plan(3.0, room=2) == [Stop(Life(2, 0))], "the busy one ends what it is at"
    assert roster.next([3]) is None
    assert roster.answered(Life(3, 0), 4.0)
    assert roster.plan(4.0, room=2) == [Stop(Life(3, 0))]
    assert started(roster, 5.0, room=4) == [Life(2, 1), Life(3, 1)], "new lives"


def test_a_lost_worker_is_replaced_only_where_there_is_room() -> None:
    roster = Roster(Terms(least=1, most=3))
    started(roster, 0.0, room=3)
    for place in (1, 2):
        roster.lost(Life(place, 0), 0.0, "its machine is gone")
    assert roster.plan(50.0, room=1) == []
    assert started(roster, 60.0, room=2) == [Life(1, 1)]


def test_the_silent_are_overdue_and_the_idle_are_not() -> None:
    roster = Roster(Terms(least=3, most=3, call_deadline=10.0, start_deadline=30.0, in_flight=2))
    lives = [step.life for step in roster.plan(0.0)]
    for life in lives[:2]:
        roster.ready(life, 5.0)
    roster.asked(lives[0], 100.0)  # an old idle time is not held against it
    roster.asked(lives[0], 105.0)
    assert roster.overdue(29.0) == []
    assert roster.overdue(109.0) == [lives[2]], "too long in the making"
    assert roster.overdue(111.0) == [lives[0], lives[2]]
    roster.answered(lives[0], 109.0)
    assert roster.overdue(111.0) == [lives[2]], "the second call began when the first was answered"


def test_a_continued_fleet_begins_with_the_lives_it_was_at() -> None:
    roster = Roster(Terms(least=2, most=2), [3, 0])
    assert started(roster) == [Life(0, 3), Life(1, 0)]
    roster.lost(Life(1, 0), 0.0, "killed")
    assert roster.lives == [3, 1]


@pytest.mark.parametrize(("text", "least", "most"), [(4, 4, 4), ("4", 4, 4), ("2..16", 2, 16), ("3..3", 3, 3)])
def test_a_number_or_a_range_of_collectors(text: int | str, least: int, most: int) -> None:
    assert span(text) == (least, most)


@pytest.mark.parametrize("text", ["", "..", "2..", "..3", "4..2", "0", 0, -1, "two", "1.5", "0..4", "1...4"])
def test_what_is_no_range_is_refused_with_an_example(text: int | str) -> None:
    with pytest.raises(ValueError, match=r"--collectors"):
        span(text)


class AnyOrder(RuleBasedStateMachine):
    """Events in any order, late ones of dead lives included, against a record of what happened."""

    @initialize(least=st.integers(1, 3), more=st.integers(0, 3), in_flight=st.integers(1, 3), losses=st.integers(1, 4))
    def begin(self, least: int, more: int, in_flight: int, losses: int) -> None:
        self.terms = Terms(least=least, most=least + more, in_flight=in_flight, losses=losses)
        self.roster, self.now = Roster(self.terms), 0.0
        self.owed: dict[Life, int] = {}  # calls of each life that was ever started
        self.alive: set[Life] = set()
        self.ready: set[Life] = set()
        self.lost_at: dict[int, float] = {}
        self.spent: dict[int, int] = {}  # of each place, losses that no answer made up for
        self.lost_calls = self.late = 0
        self.ended = False

    running = precondition(lambda self: not self.ended)

    @rule(seconds=st.sampled_from([0.0, 0.05, 1.0, 7.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @running
    @rule(room=st.none() | st.integers(0, 8))
    def plan(self, room: int | None) -> None:
        for step in self.roster.plan(self.now, room):
            if isinstance(step, Stop):
                assert self.owed[step.life] == 0, "stopped with calls in flight"
                self.alive.remove(step.life)
                continue
            place, number = step.life
            assert all(place != other.place for other in self.alive), "two workers in one place"
            assert all(number > other.number for other in self.owed if other.place == place), "a life twice"
            assert self.now >= self.lost_at.get(place, float("-inf")) + 0.1, "no back-off"
            self.alive.add(step.life)
            self.owed[step.life] = 0
        wanted = self.terms.most if room is None else min(self.terms.most, max(self.terms.least, room))
        busy = sum(1 for life in self.alive if self.owed[life])
        assert len(self.alive) <= wanted + busy

    @running
    @rule(data=st.data())
    def is_ready(self, data: st.DataObject) -> None:
        if self.owed:
            life = data.draw(st.sampled_from(sorted(self.owed)))
            assert self.roster.ready(life, self.now) == (life in self.alive)
            self.ready |= {life} & self.alive

    @running
    @rule()
    def ask(self) -> None:
        if (life := self.roster.next()) is not None:
            assert life in self.alive & self.ready
            assert self.owed[life] == min(n for other, n in self.owed.items() if other in self.asking)
            self.roster.asked(life, self.now)
            self.owed[life] += 1

    @property
    def asking(self) -> set[Life]:
        return {p.life for p in self.roster._places if p.state == "working"}

    @running
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        owing = sorted(life for life, calls in self.owed.items() if calls)
        if owing:
            life = data.draw(st.sampled_from(owing))
            self.owed[life] -= 1
            heard = self.roster.answered(life, self.now)
            assert heard == (life in self.alive)
            self.late += not heard
            if heard:
                self.spent[life.place] = max(0, self.spent.get(life.place, 0) - 1)

    @running
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if not self.owed:
            return
        life = data.draw(st.sampled_from(sorted(self.owed)))
        spent = self.spent.get(life.place, 0)
        try:
            known = not self.roster.lost(life, self.now, "killed")
        except Exhausted:
            assert spent >= self.terms.losses, "gave up too early"
            self.ended = True
            return
        assert known == (life not in self.alive)
        if not known:
            assert spent < self.terms.losses, "more losses than the budget"
            self.spent[life.place], self.lost_at[life.place] = spent + 1, self.now
            self.alive.remove(life)
            self.lost_calls += self.owed[life]

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "roster") and not self.ended:
            assert self.roster.late == self.late and self.roster.lost_calls == self.lost_calls
            assert {life for life in self.owed if self.roster.alive(life)} == self.alive
            assert all(calls <= self.terms.in_flight for calls in self.owed.values())

    def teardown(self) -> None:
        """When no more is lost, everybody is there again after a while."""
        if hasattr(self, "roster") and not self.ended:
            now = self.now + 100.0
            for _ in range(2):
                for step in self.roster.plan(now):
                    if isinstance(step, Start):
                        self.alive.add(step.life)
            for life in self.alive:
                self.roster.ready(life, now)
            assert self.roster.count("working") == self.terms.most


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
