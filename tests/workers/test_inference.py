"""Central inference: it writes what a Collector would, batches whoever has answered, and loses only what is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from collecting import collect

from rookery.data import arrays
from rookery.data.chunks import INCARNATIONS
from rookery.envs.pools.pool import EnvironmentFailed
from rookery.envs.processes.process_pool import ProcessPool
from rookery.testing import ScriptedPool, Slot, checkpointed, counting_agent
from rookery.testing import assert_same_rollout as same
from rookery.testing import counting_params as params
from rookery.types import Agent, Rollout, TimeStep
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.inference import Inference

B, T = 4, 3
AGENT = counting_agent(T, return_discount=0.5)
PREVIOUS = counting_agent(T, previous=True)


class PacedPool(ScriptedPool):
    """Groups answer after as many looks as the test says; a group can be lost while it steps."""

    def __init__(self, num_envs: int, groups: int, *, looks: Callable[[int], int] = lambda group: 1, **options: Any) -> None:
        super().__init__(num_envs, groups, **options)
        self._looks, self._clock, self._due = looks, 0, {}  # type: Callable[[int], int], int, dict[int, int]
        self.failing: dict[tuple[int, int], tuple[int, ...]] = {}  # (group, how many answers it gave) -> slots that are lost
        self._given = [0] * groups

    def send(self, action: Any, group: int = 0) -> None:
        super().send(action, group)
        self._due[group] = self._clock + self._looks(group)

    def ready_groups(self, timeout: float | None = None) -> list[int]:
        assert self._due, "waits for nobody"
        self._clock += 1
        if timeout is None:
            self._clock = max(self._clock, min(self._due.values()))
        ready = [group for group in sorted(self._due) if self._due[group] <= self._clock]
        if not ready and timeout is not None:
            time.sleep(timeout)
        return ready

    def recv(self, group: int = 0) -> TimeStep:
        if (lost := self.failing.pop((group, self._given[group]), None)) is not None:
            raise EnvironmentFailed("lost", lost[0], lost)
        del self._due[group]
        self._given[group] += 1
        return super().recv(group)

    def rebuild(self, env_id: int) -> None:
        size = self.num_envs // len(self.groups)
        for env in range(env_id // size * size, (env_id // size + 1) * size):
            self._slots[env] = self._slots[env]._replace(episode=self._slots[env].episode + 100, ended=True)


def inference(agent: Agent = AGENT, groups: int = 1, pool: Any = None, **options: Any) -> Inference:
    worker = Inference(agent, lambda: pool or ScriptedPool(B, groups), **options)
    worker.publish(params(), 0)
    return worker


def collector(agent: Agent = AGENT, groups: int = 1) -> Collector:
    worker = Collector(agent, lambda: ScriptedPool(B, groups))
    worker.publish(params(), 0)
    return worker


def rollouts(worker: Inference, count: int) -> list[Collected]:
    """Copies, because a worker may be given the same memory again."""
    return [worker.collect() for _ in range(count)]


def without(rollout: Rollout, *extras: str) -> Rollout:
    return rollout._replace(extras={name: value for name, value in rollout.extras.items() if name not in extras})


# -------------------------------------------------------------------------------------------------- the same data


@pytest.mark.parametrize("agent", [AGENT, PREVIOUS], ids=["plain", "previous"])
def test_one_group_is_a_collector_bit_for_bit(agent: Agent) -> None:
    for mine, theirs in zip(rollouts(inference(agent), 12), collect(collector(agent), 12)):
        same(mine.rollout, theirs.rollout)
        assert mine.env_steps == theirs.env_steps and mine.episodes == theirs.episodes


@pytest.mark.parametrize("agent", [AGENT, PREVIOUS], ids=["plain", "previous"])
def test_several_groups_write_the_columns_of_a_collector_each_as_a_rollout_of_its_own(agent: Agent) -> None:
    mine = rollouts(inference(agent, groups=2), 16)
    for i, theirs in enumerate(collect(collector(agent, groups=2), 8)):
        for group, part in enumerate((slice(0, 2), slice(2, 4))):  # how much was played is known sooner
            wanted = arrays.columns(theirs.rollout, part)
            same(without(mine[2 * i + group].rollout, "explore"), without(wanted, "explore"))


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("agent", [AGENT, PREVIOUS], ids=["plain", "previous"])
def test_what_is_decided_on_together_or_padded_does_not_change_the_data(agent: Agent, batch: int) -> None:
    pool = PacedPool(B, 4, looks=lambda group: 1 + group)
    worker = inference(agent, pool=pool, batch=batch, wait_seconds=0.0)
    mine = rollouts(worker, 40)
    alone: dict[int, list[Rollout]] = {env: [] for env in range(B)}
    for theirs in collect(collector(agent, groups=4), 30):
        for env in range(B):
            alone[env].append(arrays.columns(theirs.rollout, slice(env, env + 1)))
    seen = set()
    for c in mine:
        env, step = int(c.rollout.stream[0] // INCARNATIONS), int(c.rollout.step[0])
        same(without(c.rollout, "drawn", "explore"), without(alone[env][step // T], "drawn", "explore"))
        seen.add((env, step))
    assert len(seen) == 40, "no step twice"
    paces = [sum(env == e for env, _ in seen) for e in range(B)]
    assert paces == sorted(paces, reverse=True) and paces[0] > 2 * paces[3] > 0, f"a slow group holds up nobody: {paces}"


def test_a_batch_waits_until_it_is_full_and_no_longer_than_its_deadline() -> None:
    def sizes(wait_seconds: float | None) -> list[int]:
        pool = PacedPool(B, 4, looks=lambda group: 1 if group < 2 else 5)
        worker, sizes = inference(pool=pool, batch=4, wait_seconds=wait_seconds), []
        inner = worker._step
        worker._step = lambda *args: (sizes.append(args[1].shape), inner(*args))[1]
        before = worker._decide
        decided: list[int] = []
        worker._decide = lambda groups: (decided.append(len(groups)), before(groups))[1]
        rollouts(worker, 8)
        assert set(sizes) == {(4, 3)}, "one shape, one compilation"
        return decided

    assert set(sizes(None)) == {4}
    assert {2, 4} >= set(sizes(0.0)[1:]) and 2 in sizes(0.0)


# ----------------------------------------------------------------------------------------------------- versions


def test_parameters_may_change_inside_a_rollout_and_each_row_says_which_acted() -> None:
    version = 0

    def publish(slot: Slot) -> None:
        nonlocal version
        if slot.env == 0:
            version += 1
            worker.publish(params(version), version)

    worker = inference(pool=ScriptedPool(B, 1, on_step=publish))
    for c in rollouts(worker, 5):
        rollout = c.rollout
        assert (np.diff(rollout.version[:, 0]) == 1).all()
        expected = (rollout.observation[:T, :, 0] + rollout.observation[:T, :, 2] + rollout.version) % 4
        assert (rollout.action == expected).all()
    worker.publish(params(0), 0)  # late: an older version
    assert worker.collect().rollout.version.min() > 0


def test_a_rollout_during_which_too_many_updates_came_is_discarded_and_counted() -> None:
    version = 0

    def publish(slot: Slot) -> None:
        nonlocal version
        if slot.env == 0:
            version += 1
            worker.publish(params(version), version)

    worker = inference(pool=PacedPool(B, 2, looks=lambda group: 1 + 2 * group, on_step=publish), max_lag=4)
    found = rollouts(worker, 30)
    assert {int(c.rollout.stream[0] // INCARNATIONS) for c in found} == {0}, "those of the slow group are too old"
    assert found[-1].said.workers["rollouts_discarded"] > 5
    assert max(int(np.ptp(c.rollout.version)) for c in found) <= 4
    patient = inference(pool=PacedPool(B, 2, looks=lambda group: 1 + 2 * group), max_lag=4)  # nothing is published
    assert {int(c.rollout.stream[0] // INCARNATIONS) for c in rollouts(patient, 30)} == {0, 2}


# ------------------------------------------------------------------------------------------------------- losses


def transitions_are_true(rollout: Rollout) -> None:
    """A row that counts leads from a step of an episode to the next step of the same one."""
    env, episode, step = np.moveaxis(rollout.observation, -1, 0)
    valid = rollout.valid > 0
    assert (env == env[0]).all()
    assert (episode[1:] == episode[:-1])[valid].all() and (step[1:] == step[:-1] + 1)[valid].all()
    assert (step[1:][~valid] == 0).all()


def test_a_group_that_is_lost_starts_anew_and_no_other_is_touched() -> None:
    pool = PacedPool(B, 2, looks=lambda group: 2 + group)
    worker = inference(pool=pool)
    pool.failing[1, 2 * T + 1] = (2, 3)  # in the middle of its third rollout
    found, before = rollouts(worker, 14), 2
    assert found[-1].said.workers["rollouts_discarded"] == 1
    undisturbed = rollouts(inference(pool=PacedPool(B, 2)), 40)
    mine, others = ([c.rollout for c in who if c.rollout.stream[0] < 2 * INCARNATIONS] for who in (found, undisturbed))
    for a, b in zip(mine, others):
        same(without(a, "drawn", "explore"), without(b, "drawn", "explore"))
    lost = [c.rollout for c in found if c.rollout.stream[0] >= 2 * INCARNATIONS]
    where = [(int(r.stream[0] % INCARNATIONS), int(r.step[0])) for r in lost]
    assert where == [(0, i * T) for i in range(before)] + [(1, i * T) for i in range(len(lost) - before)]
    anew = lost[before]
    assert (anew.memory["count"] == 0).all() and (anew.observation[0, :, 2] == 0).all(), "memory and episode begin anew"
    assert (anew.observation[0, :, 1] >= 100).all(), "in the new environments"
    for rollout in lost:
        transitions_are_true(rollout)
    incidents = [failure for c in found for failure in c.incidents]
    assert [failure.env_ids for failure in incidents] == [(2, 3)]


def test_an_answer_that_was_whole_when_its_group_was_lost_belongs_to_no_row() -> None:
    pool = PacedPool(B, 2)
    late: list[int] = []

    def rebuild(env_id: int) -> None:
        """Slot 2 had answered before; it begins anew only with the next answer, slot 3 at once."""
        pool._slots[3] = pool._slots[3]._replace(ended=True)
        late.append(2)

    def end(slot: Slot) -> None:
        if slot.env == 3 and late and pool._given[1] > 2 * T + 2:
            pool._slots[late.pop()] = Slot(2, 50, 0, True)

    pool.rebuild, pool._on_step = rebuild, end  # type: ignore[method-assign]
    worker = inference(pool=pool)
    pool.failing[1, 2 * T + 2] = (2, 3)
    found = rollouts(worker, 14)
    assert found[-1].said.workers["rollouts_discarded"] == 1 and not late
    for c in found:
        transitions_are_true(c.rollout)


def test_a_slot_that_is_lost_alone_ends_its_stream_with_the_rollout_and_nothing_is_discarded() -> None:
    pool = PacedPool(B, 1)
    pool.rebuild = lambda env: pool._slots.__setitem__(env, pool._slots[env]._replace(ended=True, episode=100))  # type: ignore[method-assign]
    worker = inference(pool=pool)
    worker.collect()
    pool.failing[0, T] = (3,)
    hit, after = rollouts(worker, 2)
    transitions_are_true(hit.rollout)
    assert (hit.rollout.valid[0] == [1, 1, 1, 0]).sum() >= 3 and hit.rollout.valid[0, 3] == 0
    assert (hit.rollout.stream % INCARNATIONS == 0).all()
    assert (after.rollout.stream % INCARNATIONS == [0, 0, 0, 1]).all() and (after.rollout.step == [6, 6, 6, 0]).all()
    assert after.said.workers["rollouts_discarded"] == 0


def test_a_lost_group_holds_up_nobody_while_it_is_rebuilt() -> None:
    pool = PacedPool(B, 2, looks=lambda group: 1)
    worker = inference(pool=pool)
    pool.failing[1, T + 1] = (2, 3)
    rebuild = pool.rebuild

    def slowly(env: int) -> None:
        rebuild(env)
        pool._due[1] = 10**6

    pool.rebuild = slowly  # type: ignore[method-assign]
    found = [int(c.rollout.stream[0] // INCARNATIONS) for c in rollouts(worker, 10)]
    assert found.count(2) == 1 and found[-7:] == [0] * 7


class Counting(gymnasium.Env):
    """Shows the process that it lives in and its steps."""

    observation_space = gymnasium.spaces.Box(0, 2.0**24, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def _shown(self) -> Any:
        return np.array([os.getpid(), 0, self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._shown(), 1.0, False, self.steps == 7, {}


def test_a_worker_process_that_is_killed_is_replaced_and_only_its_slots_begin_anew() -> None:
    pool = ProcessPool(Counting, B, id="counting", processes=2, groups=2, apart=True, start_seconds=30.0)
    worker = inference(counting_agent(T), pool=pool)
    try:
        rollouts(worker, 6)
        victim = pool._workers[1].child
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
        found, deadline = rollouts(worker, 4), time.monotonic() + 30
        while not any(c.rollout.stream[0] % INCARNATIONS for c in found):  # until the new process has completed a rollout
            assert time.monotonic() < deadline
            found += rollouts(worker, 1)
        incidents = [failure for c in found for failure in c.incidents]
        assert [failure.env_ids for failure in incidents] == [(2, 3)] and "worker process" in incidents[0].message
        for c in found:
            mixed = np.ptp(c.rollout.observation[..., 0], axis=0)
            assert (mixed == 0).all(), "a rollout holds steps of one process only"
        spared = [c.rollout for c in found if c.rollout.stream[0] < 2 * INCARNATIONS]
        assert spared and all((r.stream % INCARNATIONS == 0).all() for r in spared)
        assert (np.diff([int(r.step[0]) for r in spared]) == T).all()
        assert found[-1].said.workers["rollouts_discarded"] == 1
    finally:
        worker.close()


# ---------------------------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("agent", [AGENT, PREVIOUS], ids=["plain", "previous"])
def test_a_worker_that_is_saved_and_restored_goes_on_with_its_partial_rollouts(agent: Agent) -> None:
    pace: Callable[[int], int] = lambda group: 1 + group
    make = lambda: PacedPool(B, 4, looks=pace)
    worker = inference(agent, pool=make())
    rollouts(worker, 7)
    saved = checkpointed(worker.snapshot())
    assert any(0 < int(lane["t"]) < T for lane in saved["lanes"])
    again = inference(agent, pool=make(), snapshot=saved)
    for one, two in zip(rollouts(worker, 12), rollouts(again, 12)):
        same(without(one.rollout, "explore"), without(two.rollout, "explore"))
        assert one.env_steps == two.env_steps


def test_environments_that_cannot_be_saved_begin_new_streams() -> None:
    worker = inference(pool=ScriptedPool(B, 2, savable=False))
    rollouts(worker, 3)
    saved = checkpointed(worker.snapshot())
    again = inference(pool=ScriptedPool(B, 2, savable=False), snapshot=saved)
    for c in rollouts(again, 2):
        assert (c.rollout.stream % INCARNATIONS == 1).all() and (c.rollout.step == 0).all()
    assert again._counter > worker._counter


def test_collecting_without_parameters_says_so() -> None:
    with pytest.raises(RuntimeError, match="publish"):
        Inference(AGENT, lambda: ScriptedPool(B)).collect()
