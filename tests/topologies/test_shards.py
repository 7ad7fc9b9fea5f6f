"""A table in shards: the same items and the same ratio as one table; a lost shard loses what it held, and no more."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lockstep import ENV, agent_of

from rookery import envs
from rookery.algorithms.dqn import DQN
from rookery.data import arrays
from rookery.data.config import ReplayConfig, TableSpec
from rookery.data.files import Gone
from rookery.data.limiter import sample_to_insert_ratio
from rookery.run import checkpoint
from rookery.runtime.interface import ArgumentLost, WorkerLost
from rookery.runtime.local import LocalRuntime
from rookery.runtime.roster import Life
from rookery.testing import checkpointed
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job
from rookery.topologies.launch import open_table
from rookery.trees import ArraySpec, tree_map
from rookery.types import Needs, Rollout
from rookery.workers.replay.shards import Shards

T, WIDTH, BATCH = 4, 2, 8
CONFIG = ReplayConfig(capacity=400, min_size=32, samples_per_insert=4.0, selector="prioritized", shards=2)


def table_spec(**options: Any) -> TableSpec:
    return TableSpec(dataclasses.replace(CONFIG, **options), batch_size=BATCH)


class Handle:
    """A worker that answers when the test lets it, in the order of the calls; what it says is copied, as by a wire."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name, self.worker, self.dead = name, make(), False
        self.ready: Future = Future()
        self.ready.set_result(None)
        self.queue: list[tuple[Future, str, tuple]] = []
        self.called: list[str] = []

    def call(self, asked: Callable[..., Any], *args: Any) -> Future:
        future: Future = Future()
        method = asked.__name__
        if self.dead:
            future.set_exception(WorkerLost(f"{self.name} is gone"))
        self.queue.append((future, method, args))
        self.called.append(method)
        if method in ("snapshot", "sealed"):  # nobody asks the runtime to wait for them
            self.answer()
        return future

    def answer(self) -> None:
        queue, self.queue = self.queue, []
        for future, method, args in queue:
            if any(isinstance(arg, ArgumentLost) for arg in args):
                future.set_exception(ArgumentLost("gone"))
            elif not self.dead:
                future.set_result(copy.deepcopy(getattr(self.worker, method)(*args)))

    def die(self) -> None:
        self.dead = True
        for future, _, _ in self.queue:
            future.set_exception(WorkerLost(f"{self.name} is gone"))
        self.queue = []

    def kill(self) -> None:
        self.dead = True


class Apart(LocalRuntime):
    """Shards live apart, in the test's hands; everyone else as on `local`."""

    def __init__(self, *, held: bool = False) -> None:
        super().__init__()
        self.shards: list[Handle] = []
        self.held = held

    def apart(self, role: str) -> bool:
        return role in ("shard", "collector")  # rollouts are handed to shards as they are

    def spawn(self, worker: Any, *args: Any, name: str, role: str = "", **kwargs: Any) -> Any:
        if role != "shard":
            return super().spawn(worker, *args, name=name, role=role, **kwargs)
        self.shards.append(Handle(name, lambda: worker(*args, **kwargs)))
        return self.shards[-1]

    def wait(self, futures: Any, timeout: float | None = None) -> Any:
        if not self.held:
            for shard in self.shards:
                shard.answer()
        return super().wait(futures, 0.001)


def specs() -> Rollout:
    at = lambda *shape, dtype=np.float32: ArraySpec(shape, np.dtype(dtype))
    return Rollout(
        observation=at(T + 1, WIDTH, 1), action=at(T, WIDTH, dtype=np.int32), reward=at(T, WIDTH), discount=at(T, WIDTH),
        valid=at(T, WIDTH), extras={}, memory=(), version=at(T, WIDTH, dtype=np.int32), stream=at(WIDTH, dtype=np.int64),
        step=at(WIDTH, dtype=np.int64),
    )  # fmt: skip


class Drive:
    """A driver without collectors and learner: it writes rollouts and takes batches as fast as it may."""

    def __init__(self, collectors: int = 2, *, slots: int = 3, held: bool = False, **options: Any) -> None:
        self.runtime = Apart(held=held)
        needs = Needs(T, 1.0, table=table_spec(**options))
        self.table = Shards(self.runtime, needs, specs(), collectors=collectors, writers=2 * collectors, slots=slots, seed=1)
        self.steps, self.collectors, self.batches = [0] * collectors, collectors, 0
        self.observed: list[float] = []
        self.next = 0

    def rollout(self, collector: int) -> Rollout:
        rollout = arrays.allocate(specs())
        step = self.steps[collector]
        rollout.observation[..., 0] = 1000 * collector + step + np.arange(T + 1)[:, None]
        rollout.valid[:] = rollout.discount[:] = 1.0
        rollout.stream[:] = ((collector * WIDTH + np.arange(WIDTH)) << 32) + 0
        rollout.step[:] = step
        self.steps[collector] += T
        return rollout

    def insert(self, collector: int) -> bool:
        part = self.table.claim()
        if part is not None:
            self.table.commit(part._replace(slot=collector, rollout=self.rollout(collector)))
        return part is not None

    def serve(self) -> None:
        self.table.serve(self.runtime.wait(self.table.pending(), 0.01)[0])

    def learn(self, priorities: float = 1.0) -> bool:
        if (taken := self.table.take()) is None:
            return False
        self.observed += [float(x) for x in np.ravel(taken.batch.rollout.observation[0])]
        self.table.release(taken.slot, np.full(BATCH, priorities))
        self.batches += 1
        return True

    def round(self) -> None:
        for _ in range(self.collectors):  # in turn, whoever had to wait
            self.next = (self.next + self.insert(self.next)) % self.collectors
        self.serve()
        self.learn()
        self.serve()


@pytest.mark.parametrize(
    "runtime, replayed, kind", [(LocalRuntime, True, "Replay"), (Apart, True, "Shards"), (Apart, False, "Queue")]
)
def test_one_table_or_several_by_where_shards_live(runtime: Any, replayed: bool, kind: str) -> None:
    agent = agent_of(DQN(fresh=not replayed, replay=ReplayConfig(capacity=400, min_size=8)))
    job = Job(agent, envs.spec_of(ENV), lambda num_envs, groups: envs.make(ENV, num_envs, groups=groups), runtime(), 0)
    plan = ActorLearner(num_envs=2, groups=1).plan(job.agents, job.spec)
    assert type(open_table(job, plan, plan.node("table" if replayed else "queue"))).__name__ == kind
    job.runtime.close()


def test_the_ratio_is_kept_over_all_shards_and_each_collector_has_its_own() -> None:
    drive = Drive()
    for _ in range(300):
        drive.round()
    limiter, table = drive.table.limiter, drive.table
    stands = table._stands
    assert limiter.inserts == sum(s.inserts for s in stands) and limiter.size == sum(s.size for s in stands) > 350
    assert limiter.min_diff <= limiter.diff <= limiter.max_diff
    assert abs(limiter.samples - 4.0 * (limiter.inserts - 32)) <= (limiter.max_diff - limiter.min_diff) / 2
    assert all(s.inserts > 300 for s in stands), "both are written to"
    for place, shard in enumerate(drive.runtime.shards):
        kept = {x // 1000 for x in shard.worker._replay.store.columns["observation"].ravel().tolist() if x > 0}
        assert kept <= {float(place)}, "a collector writes to one shard, so that chains stay whole"
        assert shard.worker._replay.store.broken == 0


def test_shards_are_sampled_in_proportion_to_what_they_hold() -> None:
    drive = Drive(collectors=3, capacity=3000, selector="uniform")  # shard 0 is written to by two of three
    for _ in range(150):
        drive.round()
    drawn = [shard.called.count("sample") for shard in drive.runtime.shards]
    assert drive.table._stands[0].size == pytest.approx(2 * drive.table._stands[1].size, rel=0.15)
    assert drawn[0] == pytest.approx(2 * drawn[1], rel=0.15)
    heavy = Drive(collectors=2, capacity=3000, exponent=1.0)
    for _ in range(20):
        heavy.round()
    heavy.table._stands[0] = heavy.table._stands[0]._replace(mass=30.0)
    heavy.table._stands[1] = heavy.table._stands[1]._replace(mass=10.0)
    turns = [heavy.table._turn() for _ in range(400)]
    assert turns.count(0) == pytest.approx(300, abs=2)
    assert max(len(run) for run in "".join(map(str, turns)).split("1")) <= 4, "evenly"


def test_several_batches_are_asked_for_ahead_and_no_more_than_there_are_slots() -> None:
    drive = Drive(slots=3, error_buffer=4000.0)
    for _ in range(10):
        for collector in (0, 1):
            drive.insert(collector)
        drive.serve()
    drive.runtime.held = True
    assert not drive.learn()
    waiting = [order for shard in drive.runtime.shards for order in shard.called if order == "sample"]
    assert len(waiting) == 3 and {shard.called.count("sample") for shard in drive.runtime.shards} == {1, 2}


def lose(drive: Drive, place: int) -> None:
    next(shard for shard in reversed(drive.runtime.shards) if shard.name == f"shard-{place}").die()


def until(drive: Drive, condition: Callable[[], bool], rounds: int = 2000) -> None:
    for _ in range(rounds):
        if condition():
            return
        drive.round()
    raise AssertionError(f"not after {rounds} rounds: {drive.table.waiting()}, {drive.table.metrics()}")


def test_a_lost_shard_loses_its_items_and_is_replaced_and_the_counters_say_so() -> None:
    drive = Drive()
    for _ in range(100):
        drive.round()
    before = [stand.size for stand in drive.table._stands]
    lose(drive, 0)
    drive.serve()
    until(drive, lambda: drive.table.metrics()["replay/shards_lost"] == 1.0)
    metrics = drive.table.metrics()
    assert abs(metrics["replay/items_lost"] - before[0]) <= 2 * T * WIDTH and metrics["replay/rows_lost"] > 0
    assert metrics["replay/size"] < sum(before)
    batches = drive.batches
    until(drive, lambda: drive.table._stands[0].size > 100)
    assert len(drive.runtime.shards) == 3 and drive.batches > batches
    limiter = drive.table.limiter
    assert limiter.size == sum(s.size for s in drive.table._stands), "nothing is counted twice"
    assert limiter.min_diff <= limiter.diff <= limiter.max_diff


def test_the_learner_waits_for_min_size_again_where_all_shards_are_lost() -> None:
    drive = Drive()
    for _ in range(100):
        drive.round()
    for place in (0, 1):
        lose(drive, place)
    for _ in range(3):  # a loss is known by a call; what had arrived is as good as before
        drive.insert(0), drive.insert(1)
        drive.learn()
        drive.serve()
    batches = drive.batches
    assert drive.table.limiter.size == 0 and "of min_size 32" in str(drive.table.waiting())
    until(drive, lambda: drive.batches > batches)
    assert drive.table.limiter.size >= 32
    until(drive, lambda: drive.batches > batches + 100)


def test_rollouts_on_their_way_to_a_lost_shard_go_to_the_next() -> None:
    drive = Drive(held=True)
    drive.insert(0)
    drive.insert(0)
    drive.serve()
    drive.insert(1)
    assert len(drive.table._claimed) == 3
    lose(drive, 0)
    drive.serve()
    drive.runtime.held = False
    for _ in range(1000):
        if drive.table.settled:
            break
        drive.serve()
    assert len(drive.table._claimed) == 0
    assert [stand.inserts for stand in drive.table._stands] == [2 * T * WIDTH, T * WIDTH] and drive.table.items_lost == 0
    assert drive.runtime.shards[-1].worker._replay.store.broken == 0, "in the order in which they were written"


def test_priorities_of_the_old_life_never_reach_the_new_one() -> None:
    drive = Drive(collectors=1, shards=1, slots=1, error_buffer=4000.0)
    while (taken := drive.table.take()) is None:
        drive.insert(0)
        drive.serve()
    lose(drive, 0)
    for _ in range(1000):
        drive.insert(0)
        drive.serve()
        if len(drive.runtime.shards) == 2 and drive.table._stands[0].size >= 40:
            break
    new = drive.runtime.shards[-1]
    assert len(drive.runtime.shards) == 2 and new.worker._replay.table._key[:8].tolist() == [*range(8)]
    known = set((taken.batch.key & 0xFFFFFFFF).tolist())
    assert known & {*range(40)}, "the same slots and generations: only the life tells them apart"
    drive.table.release(taken.slot, np.full(BATCH, 77.0))
    drive.serve()
    assert "update" not in new.called and drive.table.updates_dropped == BATCH
    assert new.worker._replay.table._priority.max() == 1.0


def test_priorities_that_wait_for_a_shard_are_dropped_with_it() -> None:
    drive = Drive(collectors=1, shards=1, slots=1)
    while (taken := drive.table.take()) is None:
        drive.insert(0)
        drive.serve()
    drive.runtime.held = True
    drive.table.release(taken.slot, np.full(BATCH, 5.0))
    lose(drive, 0)
    drive.serve()
    drive.runtime.held = False
    drive.serve()
    assert drive.table.updates_dropped == BATCH


def test_a_rollout_that_is_lost_on_the_way_is_counted_and_its_shard_stays() -> None:
    drive = Drive(collectors=1, shards=1)
    part = drive.table.claim()
    assert part is not None
    drive.table.commit(part._replace(slot=0, rollout=ArgumentLost("its machine is gone")))
    drive.serve()
    drive.serve()
    assert drive.table.rollouts_lost == 1 and len(drive.table._claimed) == 0 and len(drive.runtime.shards) == 1


def test_samples_that_never_came_are_given_back() -> None:
    drive = Drive(collectors=1, shards=1, slots=3, error_buffer=4000.0)
    for _ in range(12):
        drive.insert(0)
        drive.serve()
    samples = drive.table.limiter.samples
    drive.runtime.held = True
    assert drive.table.take() is None and drive.table.limiter.samples == samples + 3 * BATCH
    lose(drive, 0)
    drive.serve()
    assert drive.table.limiter.samples == samples and drive.table._asked == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_snapshot_brings_back_every_shard(count: int) -> None:
    drive = Drive(shards=count)
    for _ in range(60):
        drive.round()
    saved = checkpointed(drive.table.snapshot())
    sizes = [stand.size for stand in drive.table._stands]
    again = Drive(shards=count)
    again.table.restore(saved)
    again.steps = [*drive.steps]
    assert again.table.limiter.inserts == drive.table.limiter.inserts
    for _ in range(4):
        again.serve()
    assert [stand.size for stand in again.table._stands] == sizes and all(s.mass > 0 for s in again.table._stands)
    for one, two in zip(drive.runtime.shards, again.runtime.shards):
        tree_map(np.testing.assert_array_equal, one.worker._replay.snapshot()["store"], two.worker._replay.snapshot()["store"])
    inserts = again.table.limiter.inserts
    until(again, lambda: again.batches > 20)
    assert again.table.limiter.inserts > inserts and sum(s.worker._replay.store.broken for s in again.runtime.shards) == 0


def test_a_table_too_large_to_be_saved_is_filled_anew() -> None:
    drive = Drive(save_megabytes=0, save_files=False)
    for _ in range(60):
        drive.round()
    saved = checkpointed(drive.table.snapshot())
    again = Drive(save_megabytes=0, save_files=False)
    again.table.restore(saved)
    assert again.table.limiter.size == 0
    until(again, lambda: again.batches > 20)


LARGE: Any = dict(save_megabytes=0, capacity=1000, samples_per_insert=0.5)  # and filled within 60 rounds


def files(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in path.glob("chunk-*.bin")}


@pytest.mark.parametrize("count", [1, 2])
def test_checkpoints_share_the_files_of_chunks_and_only_new_ones_leave_the_shards(count: int, tmp_path: Path) -> None:
    drive = Drive(shards=count, **LARGE)
    paths = []
    for number in (1, 2):
        for _ in range(60 if number == 1 else 8):
            drive.round()
        paths.append(checkpoint.save(tmp_path / f"{number}", {"queue": drive.table.snapshot()}, meta={}))
    first, second = map(files, paths)
    shared, new = set(first) & set(second), set(second) - set(first)
    assert len(shared) > 10 and len(new) > 2 and all(first[name] == second[name] for name in shared), "the same file"
    read = sum(shard.called.count("sealed") for shard in drive.runtime.shards)
    assert read == len(first) + len(new), "each chunk has left its shard once"

    again = Drive(shards=count, **LARGE)
    again.table.restore(checkpoint.load(paths[1])[0]["queue"])
    for _ in range(4):
        again.serve()
    assert again.table._saved == [None] * count, "what was restored is not held twice"
    for one, two in zip(drive.runtime.shards, again.runtime.shards):
        found = (shard.worker._replay.store.snapshot() for shard in (one, two))
        tree_map(np.testing.assert_array_equal, *found)
    third = files(checkpoint.save(tmp_path / "3", {"queue": again.table.snapshot()}, meta={}))
    assert third == second, "a resumed run goes on with the same files"


def test_a_shard_that_is_lost_before_its_chunks_are_read_is_told_and_the_next_snapshot_is_without_it(tmp_path: Path) -> None:
    drive = Drive(**LARGE)
    for _ in range(60):
        drive.round()
    saved = drive.table.snapshot()
    lose(drive, 1)
    with pytest.raises(Gone, match="went with shard-1"):
        checkpoint.save(tmp_path / "1", {"queue": saved}, meta={})
    assert not [*tmp_path.iterdir()], "nothing half is left"
    path = checkpoint.save(tmp_path / "1", {"queue": drive.table.snapshot()}, meta={})
    shards = checkpoint.load(path)[0]["queue"]["shards"]
    assert shards[0] is not None and shards[1] is None


def test_a_shard_without_a_snapshot_is_a_lost_one_when_resuming() -> None:
    drive = Drive()
    for _ in range(60):
        drive.round()
    saved = checkpointed(drive.table.snapshot())
    saved["shards"][1] = None
    again = Drive()
    again.table.restore(saved)
    assert again.table.limiter.size == drive.table._stands[0].size
    with pytest.raises(ValueError, match="in 2 shards, not 1"):
        Drive(shards=1).table.restore(saved)


def test_a_limiter_that_lost_most_of_its_items_cannot_block_both_sides() -> None:
    random = np.random.default_rng(0)
    for trial in range(120):
        spi, bulk, batch = float(random.choice([0.5, 1, 4, 16])), int(random.integers(1, 70)), int(random.integers(1, 60))
        limiter = sample_to_insert_ratio(spi, min_size=int(random.integers(1, 200)), insert_size=bulk, batch_size=batch)
        for step in range(400):
            sample, insert = limiter.can_sample(batch), limiter.can_insert(bulk)
            assert sample or insert, f"trial {trial}, step {step}: {limiter}"
            if sample and (not insert or random.random() < 0.5):
                limiter.sampled(batch)
            else:
                limiter.inserted(bulk)
            if random.random() < 0.02 and limiter.size:
                limiter.lost(int(random.integers(1, limiter.size + 1)))


def test_lives_number_from_where_a_snapshot_was() -> None:
    drive = Drive()
    for _ in range(40):
        drive.round()
    lose(drive, 1)
    drive.serve()
    until(drive, lambda: drive.table._stands[1].size > 0)
    saved = checkpointed(drive.table.snapshot())
    again = Drive()
    again.table.restore(saved)
    assert again.table.fleet.roster.lives == [0, 1] and again.table.fleet.roster.next([1]) is None
    for _ in range(3):
        again.serve()
    assert again.table.fleet.roster.next([1]) == Life(1, 1)


def test_sync_with_its_table_in_a_shard_is_the_run_with_its_table_at_home_bit_for_bit() -> None:
    import test_replay_topologies as plain

    from rookery import envs
    from rookery.topologies.job import Job
    from rookery.topologies.sync import Sync

    def run(runtime: LocalRuntime, updates: int, snapshot: Any = None) -> tuple[dict[int, str], Any]:
        make = lambda num_envs, groups: envs.make(plain.ENV, num_envs, groups=groups)
        job = Job(plain.agent_of(plain.CASES["rainbow"]), envs.spec_of(plain.ENV), make, runtime, 0)
        driver, seen, saved = Sync(num_envs=4, collectors=2).drive(job, snapshot), {}, None
        for progress in driver:
            seen[progress.updates] = plain.digest(progress.params)
            if progress.updates >= updates and progress.snapshot is not None:
                saved = checkpointed(progress.snapshot())
                break
        driver.close()
        return seen, saved

    home, saved_home = run(LocalRuntime(), 30)
    apart, saved_apart = run(Apart(), 30)
    assert home == apart and len(home) >= 30
    beyond = lambda seen: {update: params for update, params in seen.items() if update > 30}  # 30: a sign of life, or none
    there, here = run(Apart(), 40, saved_home)[0], run(LocalRuntime(), 40, saved_apart)[0]
    assert beyond(there) == beyond(here) and 40 in there, "each resumes where the other was"
