"""ActorLearner with real threads: the ledger stays exact, nothing outlives the driver, errors come out as they went in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import jax
import pytest
from waiting import until_updates

from rookery.runtime.local import LocalRuntime
from rookery.testing import SPEC, ScriptedPool, Slot, checkpointed, counting_agent, record, rows_of
from rookery.testing import RowLedger as Ledger
from rookery.testing import slow_steps as slow
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.sync import Sync
from rookery.types import Agent, Rollout

T = 3
AGENT = counting_agent(T)


class Recorded(LocalRuntime):
    """Keeps a ledger of what the learner is given; `pause` makes each update take that much longer."""

    def __init__(self, ledger: Ledger | None = None, *, pause: float = 0.0) -> None:
        super().__init__(drain_seconds=10.0)
        self.ledger = record(self, ledger, pause=pause)


class Pools:
    """A factory that remembers what it made."""

    def __init__(self, on_step: Callable[[Slot], Any] = lambda slot: None) -> None:
        self.made: list[ScriptedPool] = []
        self._on_step = on_step

    def __call__(self, num_envs: int, groups: int) -> ScriptedPool:
        self.made.append(ScriptedPool(num_envs, groups, on_step=self._on_step))
        return self.made[-1]


def job(runtime: LocalRuntime, pools: Any = None, agent: Agent = AGENT) -> Job:
    return Job(agent, SPEC, pools or Pools(), runtime, seed=0)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("pytest")]
    assert not left


# --------------------------------------------------------------------------------------------------------- ledger


@pytest.mark.parametrize(
    ("topology", "pause", "sleep"),
    [
        (ActorLearner(num_envs=2, groups=2), 0.0, 0.0),
        (ActorLearner(num_envs=6, groups=1, collectors=3, in_flight=1), 0.0, 0.0),
        (ActorLearner(num_envs=4, groups=2, collectors=2, rollouts_per_batch=2), 0.01, 0.0),
        (ActorLearner(num_envs=4, groups=1, collectors=2, rollouts_per_batch=3, in_flight=3), 0.0, 0.001),
    ],
    ids=["one-collector", "three-collectors", "slow-learner", "slow-environments"],
)
def test_every_step_is_learned_from_once_also_over_snapshots_and_a_restart(
    topology: ActorLearner, pause: float, sleep: float
) -> None:
    runtime = Recorded(pause=pause)
    driver = topology.drive(job(runtime, Pools(slow(sleep))))
    for updates in (8, 14):
        saved = drained(until_updates(driver, updates), runtime.ledger, topology)
    driver.close()
    again = Recorded(runtime.ledger, pause=pause)
    driver = topology.drive(job(again, Pools(slow(sleep))), saved)
    drained(until_updates(driver, 22), again.ledger, topology)
    driver.close()


def drained(progress: Progress, ledger: Ledger, topology: ActorLearner) -> Any:
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    waiting = [row for part in saved["tables"]["queue"]["parts"] for row in rows_of(Rollout(**part))]
    ledger.check(in_order=False, waiting=waiting)
    if topology.collectors == 1 or topology.rollouts_per_batch == 1:
        ledger.check()
    assert ledger.lag_max <= topology.max_lag()
    assert saved["meters"]["trained_steps"] == sum(row.valid for row in ledger.rows)
    assert saved["meters"]["updates"] == ledger.batches == saved["policies"]["main"]["version"]
    return saved


def test_a_snapshot_stands_still_until_the_driver_is_advanced() -> None:
    runtime = Recorded()
    driver = ActorLearner(num_envs=2, groups=1).drive(job(runtime))
    progress = until_updates(driver, 5)
    assert progress.snapshot is not None
    first = progress.snapshot()
    time.sleep(0.05)
    second = progress.snapshot()
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all() if hasattr(a, "all") else a == b, first, second))
    assert until_updates(driver, first["meters"]["updates"] + 3).updates > first["meters"]["updates"]
    driver.close()
    with pytest.raises((RuntimeError, CancelledError)):
        progress.snapshot()  # and does not wait for workers that are gone


# ---------------------------------------------------------------------------------------------------------- waits


@pytest.mark.parametrize("topology", [ActorLearner(num_envs=1, groups=1), Sync(num_envs=1)], ids=["actor-learner", "sync"])
def test_a_starved_driver_gives_a_sign_of_life_every_second(topology: Any) -> None:
    gate = threading.Event()
    driver = topology.drive(job(Recorded(), Pools(lambda slot: gate.wait(30) and None)))
    next(driver)
    gaps, before = [], time.monotonic()
    for _ in range(3):
        progress = next(driver)
        gaps.append(time.monotonic() - before)
        before += gaps[-1]
    assert max(gaps) < 1.5 and progress.updates == 0
    gate.set()
    assert until_updates(driver, 2).updates >= 2
    driver.close()


# -------------------------------------------------------------------------------------------------------- endings


@pytest.mark.parametrize("topology", [ActorLearner(num_envs=4, groups=1, collectors=2), Sync(num_envs=4, collectors=2)])
@pytest.mark.parametrize("updates", [0, 3])
def test_closing_the_driver_in_the_middle_ends_every_thread_and_closes_every_pool_once(topology: Any, updates: int) -> None:
    runtime, pools = Recorded(pause=0.02), Pools(slow(0.002))
    driver = topology.drive(job(runtime, pools))
    until_updates(driver, updates)
    assert sum(thread.name.startswith(("collector-", "learner")) for thread in threading.enumerate()) == 3
    driver.close()
    assert [pool.closed for pool in pools.made] == [1, 1] and runtime.abandoned == []


class Broken(Exception):
    pass


def raising_env(slot: Slot) -> None:
    if slot.env == 1 and slot.episode == 2:
        raise Broken("environment")


def raising_act(observation: Any) -> Any:
    raise Broken("act")


def raising_learn(state: Any, batch: Any, key: Any) -> Any:
    raise Broken("learn")


class RaisingReset(ScriptedPool):
    def reset(self, seed: int) -> Any:
        raise Broken("reset")


def raising_factory(num_envs: int, groups: int) -> Any:
    raise Broken("factory")


FAULTS: dict[str, Callable[[], tuple[Any, Agent]]] = {
    "environment": lambda: (Pools(raising_env), AGENT),
    "learn": lambda: (Pools(), counting_agent(T, learn=raising_learn)),
    "factory": lambda: (raising_factory, AGENT),
    "reset": lambda: (lambda n, g: RaisingReset(n, g), AGENT),
    "act": lambda: (Pools(), counting_agent(T, act=raising_act)),
}


@pytest.mark.parametrize("topology", [ActorLearner(num_envs=4, groups=1, collectors=2), Sync(num_envs=4, collectors=2)])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_raises_ends_the_run_with_its_own_exception_and_no_thread_is_left(topology: Any, fault: str) -> None:
    pools, agent = FAULTS[fault]()
    begin = time.monotonic()
    with pytest.raises(Broken, match=fault) as error:
        for _ in topology.drive(job(Recorded(), pools, agent)):
            begin = max(begin, time.monotonic() - 0.5)
    assert time.monotonic() - begin < 4.0
    if fault == "environment":
        assert "raising_env" in [entry.name for entry in error.traceback], "the place is in the traceback"
    if isinstance(pools, Pools):
        assert all(pool.closed == 1 for pool in pools.made)


def test_a_queue_that_cannot_be_restored_leaves_no_thread() -> None:
    driver = ActorLearner(num_envs=2, groups=1, rollouts_per_batch=2).drive(job(Recorded()))
    progress = until_updates(driver, 1)
    saved = progress.snapshot()  # type: ignore[misc]
    driver.close()
    saved["tables"]["queue"]["parts"] = [{"reward": None}]
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        next(ActorLearner(num_envs=2, groups=1, rollouts_per_batch=2).drive(job(Recorded()), saved))
