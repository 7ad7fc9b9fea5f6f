"""ActorLearner under every pace of its workers, on a simulated clock: the ledger is exact, the lag bounded, nobody idle."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.runtime import roster
from rookery.testing import (
    SPEC,
    LockstepRuntime,
    RowLedger,
    ScriptedPool,
    Seconds,
    checkpointed,
    counting_agent,
    drive_until,
    kill_every,
    ledger_workers,
    paced,
    rows_of,
)
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import TICK_SECONDS, Job, Progress
from rookery.topologies.sync import Sync
from rookery.types import Rollout

T = 2
AGENT = counting_agent(T)


def pace(*, learner: float = 1.0, collectors: tuple[float, ...] = (1.0,), **options: Any) -> Seconds:
    """collectors: seconds per rollout of each."""
    return paced({"learner": learner, "collector": collectors}, **options)


class SimulatedRuntime(LockstepRuntime):
    """With workers that only keep a ledger; a snapshot may be asked only of those that have nothing to do."""

    def __init__(self, seconds: Seconds, ledger: RowLedger | None = None, **options: Any) -> None:
        self.ledger = ledger or RowLedger()
        super().__init__(seconds, instead=ledger_workers(self.ledger), at_rest={"snapshot"}, **options)


def drive(topology: Any, runtime: SimulatedRuntime, snapshot: Any = None) -> Iterator[Progress]:
    job = Job(AGENT, SPEC, lambda num_envs, groups: ScriptedPool(num_envs, groups), runtime, seed=0)
    return topology.drive(job, snapshot)


def topology_of(collectors: int, **options: Any) -> ActorLearner:
    return ActorLearner(num_envs=2 * collectors, collectors=collectors, groups=1, **options)


def drain_and_check(progress: Progress, ledger: RowLedger, topology: ActorLearner) -> Any:
    """Takes a snapshot; what was learned from and what is in the snapshot must be all that was played."""
    assert progress.snapshot is not None
    if topology.collectors == 1 or topology.rollouts_per_batch == 1:
        ledger.check()
    # else a batch of several collectors' rollouts may be overtaken by one that was full sooner
    saved = checkpointed(progress.snapshot())
    waiting = [row for part in saved["tables"]["queue"]["parts"] for row in rows_of(Rollout(**part))]
    ledger.check(in_order=False, waiting=waiting)
    assert ledger.lag_max <= topology.max_lag(), (str(topology), ledger.lag_max)
    meters = saved["meters"]
    assert meters["updates"] == ledger.batches and meters["trained_steps"] == sum(row.valid for row in ledger.rows)
    assert meters["env_steps"] == meters["trained_steps"] + sum(row.valid for row in waiting)
    return saved


SHAPES = [
    (collectors, in_flight, parts, prefetch)
    for collectors in (1, 2, 3)
    for in_flight in (1, 3)
    for parts in (1, 2, 3)
    for prefetch in (0, 1)
]
PACES = {
    "even": dict(learner=1.0, collectors=(1.0,)),
    "slow-learner": dict(learner=9.0, collectors=(1.0,)),
    "slow-collectors": dict(learner=0.05, collectors=(1.0,)),
    "straggler": dict(learner=0.1, collectors=(8.0, 0.2, 0.3)),
    "straggler-and-slow-learner": dict(learner=2.0, collectors=(15.0, 0.2, 0.3)),
    "random": dict(learner=1.0, collectors=(1.0, 2.0, 0.5), jitter=1.0),
}


@pytest.mark.parametrize("name", PACES)
def test_no_step_is_lost_or_learned_twice_and_none_is_older_than_the_bound(name: str) -> None:
    for collectors, in_flight, parts, prefetch in SHAPES:
        topology = topology_of(collectors, in_flight=in_flight, rollouts_per_batch=parts, prefetch=prefetch)
        runtime = SimulatedRuntime(pace(**PACES[name]))
        driver = drive(topology, runtime)
        progress = drive_until(driver, 25)
        where = str(topology)
        assert progress.trained_steps == sum(row.valid for row in runtime.ledger.rows), where
        assert progress.updates == runtime.ledger.batches == progress.version, where
        drain_and_check(progress, runtime.ledger, topology)
        driver.close()
        assert runtime.closed


def test_the_lag_is_as_large_as_the_bound_says_somewhere() -> None:
    """A bound that is never nearly reached would be no bound worth printing."""
    topology = topology_of(2, in_flight=2)
    runtime = SimulatedRuntime(pace(learner=5.0))
    drive_until(drive(topology, runtime), 30)
    assert topology.max_lag() - 1 <= runtime.ledger.lag_max <= topology.max_lag()


def test_an_even_pace_keeps_everyone_busy() -> None:
    """The slower side sets the pace: it never waits for the other."""
    for learner, collector in ((3.0, 1.0), (1.0, 3.0), (2.0, 2.0)):
        runtime = SimulatedRuntime(pace(learner=learner, collectors=(collector,)))
        progress = drive_until(drive(topology_of(1), runtime), 40)
        slowest = max(learner, collector)
        assert runtime.clock <= (progress.updates + 2) * slowest, (learner, collector)


@pytest.mark.parametrize("collectors", [2, 3])
def test_collectors_of_even_pace_add_up(collectors: int) -> None:
    runtime = SimulatedRuntime(pace(learner=0.01, collectors=(1.0,), jitter=0.3))
    progress = drive_until(drive(topology_of(collectors), runtime), 60)
    assert progress.updates / runtime.clock > 0.85 * collectors


def test_the_learner_is_given_a_full_batch_before_the_driver_rests() -> None:
    """Whoever advances a driver may take his time (an evaluation, a checkpoint): the learner works meanwhile."""
    runtime = SimulatedRuntime(pace(learner=0.3, collectors=(1.0,), jitter=0.2))
    driver = drive(topology_of(2, rollouts_per_batch=2), runtime)
    for _ in range(80):
        progress = next(driver)
        learner = runtime.handles["learner"]
        handed = runtime.ledger.batches + len(learner.queue) + (learner.running is not None and learner.calls > 0)
        assert handed >= progress.items.get("rollouts", 0) // 2 - 1 - topology_of(2).prefetch
        if learner.running is None:
            assert progress.items.get("rollouts", 0) // 2 == runtime.ledger.batches, "a full batch, and an idle learner"


def test_collectors_wait_when_the_queue_is_full_and_nothing_is_dropped() -> None:
    topology = topology_of(2, in_flight=2)
    runtime = SimulatedRuntime(pace(learner=100.0, collectors=(1.0,)))
    driver = drive(topology, runtime)
    while runtime.clock < 90:
        progress = next(driver)
    made = progress.items["rollouts"]
    assert made == topology.max_lag(), "every slot is written, none is overwritten"
    assert all(not h.queue and h.running is None for name, h in runtime.handles.items() if name != "learner")
    drive_until(driver, 15)
    runtime.ledger.check()


def test_a_starved_driver_gives_a_sign_of_life_every_tick() -> None:
    runtime = SimulatedRuntime(pace(collectors=(100.0,)))
    driver = drive(topology_of(1), runtime)
    before = runtime.clock
    while runtime.clock < 90:
        next(driver)
        assert runtime.clock - before <= TICK_SECONDS <= 1.0
        before = runtime.clock


# ------------------------------------------------------------------------------------------------------ snapshots


@pytest.mark.parametrize("name", ["even", "straggler", "random", "slow-learner"])
@pytest.mark.parametrize(("collectors", "in_flight", "parts"), [(1, 2, 1), (1, 2, 3), (2, 2, 2), (3, 2, 2), (2, 3, 3)])
def test_a_snapshot_in_the_middle_loses_nothing_here_nor_after_a_restart(
    name: str, collectors: int, in_flight: int, parts: int
) -> None:
    topology = topology_of(collectors, in_flight=in_flight, rollouts_per_batch=parts)
    runtime = SimulatedRuntime(pace(**PACES[name]))
    driver, ledger = drive(topology, runtime), runtime.ledger
    for stop in (4, 9, 15):  # the saved one goes on
        saved, at = drain_and_check(drive_until(driver, stop), ledger, topology), len(ledger.rows)
    drain_and_check(drive_until(driver, 22), ledger, topology)
    again = RowLedger()  # a new process: what came after the third snapshot never was
    again.rows, again.lags, again.batches = ledger.rows[:at], ledger.lags[:at], int(saved["meters"]["updates"])
    driver = drive(topology, SimulatedRuntime(pace(**PACES[name]), again), saved)
    drain_and_check(drive_until(driver, 40), again, topology)


def test_episodes_that_end_while_a_snapshot_drains_are_told_once_on_either_side() -> None:
    driver = drive(topology_of(2), SimulatedRuntime(pace(learner=0.1)))
    told = 0
    for progress in driver:
        told += len(progress.finished)
        if progress.updates >= 10:
            break
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    here, there = (next(d) for d in (driver, drive(topology_of(2), SimulatedRuntime(pace()), saved)))
    assert saved["meters"]["episodes"] > told, "some ended in the drain"
    assert told + len(here.finished) == here.episodes
    assert told + len(there.finished) == there.episodes


def test_another_number_of_collectors_than_the_checkpoint_s_is_refused_with_the_number() -> None:
    saved = drive_until(drive(topology_of(2), SimulatedRuntime(pace())), 2).snapshot()  # type: ignore[misc]
    with pytest.raises(ValueError, match="--collectors 2"):
        next(drive(topology_of(3), SimulatedRuntime(pace()), saved))


# --------------------------------------------------------------------------------------------------------- losses


def without_back_off(monkeypatch: pytest.MonkeyPatch, **terms: Any) -> None:
    monkeypatch.setattr(roster.Terms, "__init__", functools.partialmethod(roster.Terms.__init__, back_off=0.0, **terms))


@pytest.mark.parametrize("name", PACES)
@pytest.mark.parametrize(("collectors", "in_flight", "parts"), [(1, 2, 1), (2, 1, 2), (3, 3, 2)])
def test_killed_collectors_are_replaced_and_only_what_they_owed_is_lost(
    name: str, collectors: int, in_flight: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_back_off(monkeypatch, losses=10**6)
    topology = topology_of(collectors, in_flight=in_flight, rollouts_per_batch=parts)
    runtime = SimulatedRuntime(pace(**PACES[name]), dies=kill_every(7, "collector"))
    driver, ledger = drive(topology, runtime), runtime.ledger
    progress = drive_until(driver, 30)
    saved = drain_and_check(progress, ledger, topology)
    streams = {row.stream for row in ledger.rows}
    assert (
        progress.workers["collectors_lost"] >= 2
        and len(streams) >= 2 * collectors + 2 * progress.workers["collectors_lost"] - 2
    )
    assert progress.workers["collectors_lost"] <= progress.workers["rollouts_lost"]
    assert progress.workers["rollouts_lost"] <= in_flight * progress.workers["collectors_lost"]
    at = RowLedger()
    at.rows, at.lags, at.batches = list(ledger.rows), list(ledger.lags), ledger.batches
    again = drive(topology, SimulatedRuntime(pace(**PACES[name]), at, dies=kill_every(5, "collector")), saved)
    drain_and_check(drive_until(again, 50), at, topology)  # lives go on counting: no stream is used twice


def test_a_collector_that_always_dies_ends_the_run_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    without_back_off(monkeypatch)
    for topology in (topology_of(2), Sync(num_envs=4, collectors=2)):
        runtime = SimulatedRuntime(pace(), dies=lambda call: call.worker == "collector-1")
        with pytest.raises(roster.Exhausted, match="collector-1 was killed"):
            drive_until(drive(topology, runtime), 10**6)
        assert runtime.closed


def test_sync_collects_anew_what_a_lost_collector_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    without_back_off(monkeypatch, losses=10**6)
    runtime = SimulatedRuntime(pace(), dies=kill_every(4, "collector"))
    progress = drive_until(drive(Sync(num_envs=6, collectors=3), runtime), 12)
    runtime.ledger.check()
    assert runtime.ledger.lag_max == 0 and progress.workers["collectors_lost"] >= 3
    assert len(runtime.ledger.rows) == 12 * 6 * T


# ----------------------------------------------------------------------------------------------------------- Sync


@pytest.mark.parametrize("collectors", [1, 2, 3])
@pytest.mark.parametrize("name", PACES)
def test_sync_learns_each_step_once_with_the_parameters_that_made_it(name: str, collectors: int) -> None:
    runtime = SimulatedRuntime(pace(**PACES[name]))
    topology = Sync(num_envs=2 * collectors, collectors=collectors)
    driver = drive(topology, runtime)
    progress = drive_until(driver, 12)
    runtime.ledger.check()
    assert runtime.ledger.lag_max == 0 == topology.max_lag()
    order = [row.stream >> 20 for row in runtime.ledger.rows[: 2 * collectors * T : T]]
    assert order == list(range(2 * collectors)), "placed by collector, not by arrival"
    assert progress.env_steps == progress.trained_steps == sum(row.valid for row in runtime.ledger.rows)
