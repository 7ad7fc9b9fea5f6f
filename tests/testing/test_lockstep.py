"""The runtime in lock-step: the order of its schedule, a clock of its own, losses at chosen moments, and what it forbids."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import WorkerLost
from rookery.runtime.roster import Roster, Terms
from rookery.testing import Deadlock, LockstepRuntime, even, kill_at, kill_every, paced, shuffled
from rookery.testing.schedules import ScheduledCall


class Worker:
    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError("too small")
        self.value, self.closed = start, False

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def fails(self) -> None:
        raise KeyError("on purpose")

    def publish(self, value: int) -> None:
        self.value = value

    def learn(self, batch: np.ndarray) -> float:
        return float(batch.sum())

    def fill(self, out: np.ndarray) -> np.ndarray:
        out[:] = self.value
        return out

    def snapshot(self) -> int:
        return self.value

    def close(self) -> None:
        self.closed = True


def order_of(runtime: LockstepRuntime, calls: int = 3) -> list[str]:
    """Which of three workers answer one after the other."""
    handles = [runtime.spawn(Worker, name=f"worker-{i}", role="worker") for i in range(3)]
    waiting: dict[Future, str] = {h.call(Worker.add, 1): h.name for h in handles for _ in range(calls)}
    seen = []
    while waiting:
        ready, _ = runtime.wait([*waiting])
        seen += [waiting.pop(future) for future in ready]
    return seen


def test_calls_end_in_the_order_of_the_schedule_and_the_clock_tells_when() -> None:
    runtime = LockstepRuntime(paced({"worker": (5.0, 1.0, 2.0)}))
    assert order_of(runtime) == [f"worker-{i}" for i in (1, 1, 2, 1, 2, 0, 2, 0, 0)]
    assert runtime.clock == 15.0


def test_a_seed_is_an_order_and_another_seed_is_another() -> None:
    orders = [order_of(LockstepRuntime(shuffled(seed))) for seed in (0, 0, 1, 2)]
    assert orders[0] == orders[1] and len({tuple(order) for order in orders}) == 3


def test_a_call_is_computed_when_it_starts_and_answered_when_it_ends() -> None:
    runtime = LockstepRuntime(even(2.0))
    handle = runtime.spawn(Worker, name="worker-0", role="worker")
    first, second = handle.call(Worker.add, 1), handle.call(Worker.add, 1)
    handle.now(Worker.publish, 10)
    assert runtime.wait([first], 1.0) == ([], [first]) and runtime.clock == 1.0
    assert (second.result(), first.result()) == (11, 1), "the first had begun before it was told"
    assert runtime.clock == 4.0


def test_a_result_that_is_asked_for_lets_the_clock_run_and_what_is_raised_comes_out() -> None:
    runtime = LockstepRuntime()
    handle = runtime.spawn(Worker, 5, name="worker-0", role="worker")
    assert handle.call(Worker.snapshot).result() == 5 and runtime.clock == 0.0, "a snapshot takes no time"
    with pytest.raises(KeyError, match="on purpose"):
        handle.call(Worker.fails).result()
    with pytest.raises(TimeoutError):
        handle.call(Worker.add, 1).result(0.5)
    unmade = runtime.spawn(Worker, -1, name="worker-1", role="worker")
    with pytest.raises(ValueError, match="too small"):
        unmade.call(Worker.add, 1).result()


def test_a_batch_that_changes_while_it_is_learned_from_is_an_error() -> None:
    runtime = LockstepRuntime()
    handle, batch = runtime.spawn(Worker, name="learner", role="learner"), np.ones(3)
    assert handle.call(Worker.learn, batch).result() == 3.0
    future = handle.call(Worker.learn, batch)
    batch[0] = 7
    with pytest.raises(AssertionError, match="a batch changed"):
        future.result()


def test_who_waits_for_nobody_is_told_and_with_a_timeout_only_time_passes() -> None:
    runtime = LockstepRuntime()
    with pytest.raises(Deadlock):
        runtime.wait([Future()])
    assert runtime.wait([], 3.0) == ([], []) and runtime.clock == 3.0


def test_a_busy_worker_is_not_asked_what_may_be_asked_at_rest_alone() -> None:
    handle = LockstepRuntime(at_rest={"snapshot"}).spawn(Worker, name="worker-0", role="worker")
    assert handle.call(Worker.snapshot).result() == 0
    handle.call(Worker.add, 1)
    with pytest.raises(AssertionError, match=r"snapshot\(\) was asked of worker-0 while it is busy"):
        handle.call(Worker.snapshot)


def test_a_worker_is_killed_in_the_middle_of_its_call_with_half_a_rollout_written() -> None:
    runtime = LockstepRuntime(even(2.0), dies=kill_at(("worker-0", 2)))
    handle, out = runtime.spawn(Worker, 3, name="worker-0", role="worker"), np.zeros(2)
    assert handle.fill(Worker.fill, out).result() is out and out.tolist() == [3, 3]
    lost, behind = handle.fill(Worker.fill, out), handle.call(Worker.add, 1)
    for future in (lost, behind, handle.call(Worker.add, 1)):
        with pytest.raises(WorkerLost, match="worker-0 was killed"):
            future.result()
    assert out.tolist() == [-1, -1] and runtime.clock == 3.0
    with pytest.raises(WorkerLost):
        handle.call(Worker.add, 1).result()


def test_a_fleet_counts_its_back_off_and_its_deadlines_on_the_simulated_clock() -> None:
    hangs = lambda call: 100.0 if call.number == 4 else 1.0
    runtime = LockstepRuntime(hangs, dies=kill_at(("worker-0", 2)))
    terms = Terms(least=1, most=1, call_deadline=30.0, back_off=8.0)
    start = lambda life: runtime.spawn(Worker, name=f"worker-{life.place}", role="worker")
    fleet: Fleet[Worker] = Fleet(runtime, "worker", Roster(terms), start)
    answers: list[tuple[float, int | None]] = []
    while len(answers) < 5:
        fleet.tend()
        if (who := fleet.next()) is not None:
            fleet.call(who, "", Worker.add, 1)
        ready, _ = runtime.wait(fleet.waiting(), fleet.within(0.5))
        answers += [(runtime.clock, reply.result) for reply in fleet.take(ready)]
        answers += [(runtime.clock, reply.result) for reply in fleet.take([])]
    lost = [when for when, result in answers if result is None]
    assert len(lost) == 2 and fleet.roster.lost_workers == 2
    after = next(when for when, _ in answers if when > lost[0])
    assert after - lost[0] >= 8.0, "the back-off"
    assert lost[1] - max(when for when, result in answers if when < lost[1]) >= 30.0, "the deadline"


def test_kill_every_means_a_role_and_a_number() -> None:
    dies = kill_every(3, "collector")
    call = lambda role, number: ScheduledCall(f"{role}-0", role, "collect", number)
    assert [dies(call("collector", number)) for number in range(1, 7)] == [False, True, False, False, True, False]
    assert not any(dies(call("learner", number)) for number in range(1, 7))


def test_closing_closes_every_worker() -> None:
    runtime = LockstepRuntime()
    handles = [runtime.spawn(Worker, name=f"worker-{i}", role="worker") for i in range(2)]
    handles[0].kill()
    runtime.close()
    assert runtime.closed and all(handle.worker.closed for handle in handles)
