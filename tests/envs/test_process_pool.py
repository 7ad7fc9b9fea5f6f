"""Environments in worker processes: the same as in process, and still there when workers are not."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import bad_envs
import gymnasium
import numpy as np
import pytest
from bad_envs import Checked, Counter, Faulty, Slow, whole

from rookery import envs
from rookery.envs import EnvironmentFailed
from rookery.envs.pools.serial import SerialPool
from rookery.envs.processes import fork_server
from rookery.envs.processes.mailbox import CannotTravel
from rookery.envs.processes.process_pool import ProcessPool
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, reference_episodes

pytestmark = pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")


@contextmanager
def pool_of(make_env, num_envs=4, *, processes=2, id="test", **options):
    pool = ProcessPool(make_env, num_envs, id=id, processes=processes, **options)
    try:
        yield pool
    finally:
        pool.close()


def pids(pool):
    return [worker.child.pid for worker in pool._workers if worker.child is not None]


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)
    return time.monotonic()


def advance_rebuilding(pool, action):
    """A step of group 0 in which what fails is rebuilt; (answer, failures)."""
    failures = []
    pool.send(action)
    while True:
        try:
            return pool.recv(), failures
        except EnvironmentFailed as error:
            failures.append(error)
            pool.rebuild(error.env_id)


# ------------------------------------------------------------------------------------------ the same as in process


@pytest.mark.parametrize("id", ["Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "CartPole-v1"])
@pytest.mark.parametrize(("processes", "groups", "here"), [(1, 1, 0), (2, 2, 0), (3, 2, 0), (1, 1, 1), (2, 2, 1)])
def test_it_answers_what_the_serial_pool_answers(id, processes, groups, here):
    make = partial(gymnasium.make, id)
    with pool_of(make, 5, processes=processes, groups=groups, id=id, here=bool(here)) as pool:
        played = play(pool, 60)
    expected = play(SerialPool(make, 5, id=id, groups=groups), 60)
    for mine, theirs in zip(played.steps, expected.steps):
        assert_same(mine, theirs)
    assert played.episodes == expected.episodes == reference_episodes(played.steps)
    assert_next_step_autoreset(played.steps)


def test_nested_spaces_and_starts_travel():
    with pool_of(bad_envs.Checked, 3, groups=1) as pool:
        assert pool.spec.observation["body"].shape == (4096,)
        assert all(whole(step.observation) for step in play(pool, 60).steps)


def test_more_processes_than_environments_of_a_group():
    with pool_of(Counter, 3, processes=8, groups=2) as pool:
        assert len(pids(pool)) == 3
        assert [step.reward.tolist() for step in play(pool, 2).steps] == [[0, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_snapshots_are_exact_and_the_same_as_those_of_the_serial_pool():
    with pool_of(Counter, 4, groups=2) as pool, pool_of(Counter, 4, groups=1, processes=1, here=True) as other:
        serial = SerialPool(Counter, 4, id="test", groups=2)
        for one in (pool, serial):
            play(one, 7)
        assert_same(pool.snapshot(), serial.snapshot())
        for one in (pool, serial):
            one.rebuild(1)  # what is ordered and not done yet is in it too
        assert_same({**pool.snapshot(), "envs": ()}, {**serial.snapshot(), "envs": ()})
        saved = pool.snapshot()
        expected = play(serial, 20, start=serial._everything()).steps
        restored = other.restore(saved)
        for mine, theirs in zip(play(other, 20, start=restored).steps, expected):
            assert_same(mine, theirs)


def test_environments_without_a_state_have_no_snapshot():
    with pool_of(partial(gymnasium.make, "Pendulum-v1"), 2) as pool:
        pool.reset(0)
        assert pool.snapshot() is None


def test_whichever_group_is_ready_can_be_taken():
    """Each group in a process of its own: a slow one does not hold up the other."""
    with pool_of(_SlowFirst, 4, groups=2, apart=True) as pool:
        assert [worker.ids.tolist() for worker in pool._workers] == [[0, 1], [2, 3]]
        pool.reset(0)
        with pytest.raises(RuntimeError, match="without a send"):
            pool.ready_group()
        for group in (0, 1):
            pool.send([1 - group] * 2, group)  # the action says how slow
        taken = []
        for _ in range(4):
            group = pool.ready_group()
            taken.append(group)
            assert pool.recv(group).reward.tolist() == [1, 1]
            if taken.count(1) < 3 and group == 1:
                pool.send([0, 0], 1)
        assert taken == [1, 1, 1, 0]
    with pool_of(Counter, 4, groups=2, processes=1, here=True) as pool:
        pool.reset(0)
        pool.send([0, 0], 1)
        assert pool.ready_group() == 1 and pool.recv(1).reward.tolist() == [1, 1]


def test_misuse_is_named():
    with pool_of(Counter, 2) as pool:
        with pytest.raises(RuntimeError, match="before reset"):
            pool.send([0, 0])
        pool.reset(0)
        with pytest.raises(RuntimeError, match="without a send"):
            pool.recv()
        pool.send([0, 0])
        with pytest.raises(RuntimeError, match="twice to group 0"):
            pool.send([0, 0])
        pool.recv()
        with pytest.raises(ValueError, match="out of range"):
            pool.send([0, 7])


def test_a_reset_forgets_what_was_under_way():
    with pool_of(Slow, 4, groups=2) as pool:
        first = pool.reset(3)
        pool.send([0, 0], 0)
        assert_same(pool.reset(3), first)
        assert pool.take_episodes() == []


def test_workers_start_fast_without_jax_and_sleep_when_idle():
    import jax  # noqa: F401  (this process holds it, as one that trains does)

    with pool_of(Counter, 4) as pool:
        assert not any(worker.messages["made"]["jax"] for worker in pool._workers)
        pool.reset(0)
    began = time.monotonic()
    with pool_of(Counter, 4) as pool:  # the fork server is there by now
        assert time.monotonic() - began < 1.0
        pool.reset(0)
        used = lambda: sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids(pool))
        before = used()
        time.sleep(0.5)
        assert used() - before < 0.02e9  # ns


# ------------------------------------------------------------------------------------------------ bad environments

FAULTS = {
    "raises": r"step\(1\) raised OSError\('the simulator is gone'\)\nTraceback[\s\S]*in explode",
    "exits": r"action 1: worker process \d+ exited with status 7 \(environments",
    "leaves": r"step\(1\) raised SystemExit\('goodbye'\)",
    "hangs": r"action 1: worker process \d+ has not answered for 0.3 s and was killed",
    "NaN": r"observation is not finite at index \(1,\) after action 1",
    "shape": r"observation has shape \(3,\) of float32, but its space promises \(2,\) of float32",
    "dtype": r"observation has shape \(2,\) of complex128",
    "reward": r"reward None after action 1: a number is expected",
    "flag": r"terminated 'yes' after action 1: True or False is expected",
    "old interface": r"step\(1\) returned \(array.*\(observation, reward, terminated, truncated, info\) is expected",
    "nothing": r"step\(1\) returned None, but",
}


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("wrong", [wrong for wrong in FAULTS if wrong not in ("exits", "hangs")])
def test_one_that_fails_again_and_again_is_named_anew(wrong, here):
    with pool_of(partial(Faulty, wrong), 2, processes=1, here=here) as pool:
        pool.reset(0)
        for life in range(2):
            for action in (0, 0, 1):
                pool.send([action, action])
                if action == 1:
                    for env in (0, 1):
                        with pytest.raises(EnvironmentFailed, match=FAULTS[wrong].partition(r"\n")[0]) as failed:
                            pool.recv()
                        assert f"environment {env} (incarnation {life}), step 3" in str(failed.value)
                        pool.rebuild(env)
                step = pool.recv()
            assert step.first.all()


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_bad_step_is_named_and_the_environment_rebuilt_while_the_others_keep_theirs(wrong):
    with pool_of(partial(Faulty, wrong), 4, id="Faulty", step_seconds=0.3) as pool:
        pool.reset(0)
        for _ in range(2):
            advance(pool, np.zeros(4, int))
        pool.send(np.array([0, 1, 0, 0]))
        with pytest.raises(EnvironmentFailed, match=FAULTS[wrong]) as failed:
            pool.recv()
        assert str(failed.value).startswith("'Faulty', environment 1 (incarnation 0), step 3")
        assert failed.value.env_id == 1
        gone = wrong in ("exits", "hangs")
        assert failed.value.lost == ((0, 1) if gone else (1,))
        with pytest.raises(EnvironmentFailed):  # it does not go away by asking again
            pool.recv()
        pool.rebuild(1)
        step = pool.recv()
        assert step.first.tolist() == [gone, True, False, False] and np.isfinite(step.observation).all()
        assert step.observation[2:, 1].tolist() == [3, 3]
        until = time.monotonic() + 5
        while (step := advance(pool, np.zeros(4, int))).first.any():
            assert time.monotonic() < until
        assert step.observation[1, 1] >= 1 and pool._board.incarnation.tolist() == ([1, 1, 0, 0] if gone else [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bad_envs.ResetRaises, r"reset\(\) raised ValueError\('no second chance'\)"),
        (bad_envs.Growing, r"its observation space is Box\(-1.0, 1.0, \(3,\), float32\), but the pool was made for"),
        (bad_envs.Index, r"observation = 3 is outside its space Discrete\(3\)"),
    ],
)
@pytest.mark.parametrize("processes", [0, 2])
def test_faults_that_come_later_are_named_too(make, message, processes):
    pool = envs.make(make, 2, processes=processes)
    pool.reset(0)
    with pytest.raises(EnvironmentFailed, match=message):
        for _ in range(7):
            advance(pool, np.zeros(2, int))
    pool.close()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_reset_of_the_old_interface_is_named(processes):
    pool = envs.make(bad_envs.OldReset, 1, processes=processes)
    with pytest.raises(EnvironmentFailed, match=r"reset\(\) returned array.* but \(observation, info\) is expected"):
        pool.reset(0)
    pool.close()


def test_the_same_array_again_and_again_does_no_harm():
    with pool_of(bad_envs.Reusing, 2) as pool:
        assert [step.observation[:, 1].tolist() for step in play(pool, 3).steps] == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_a_box_that_is_left_is_told_once_and_used_as_it_is():
    with pool_of(bad_envs.Beyond, 4) as pool, pytest.warns(UserWarning, match="observation has values from .* outside") as told:
        steps = play(pool, 5).steps
    assert len(told) == 1 and steps[-1].observation[0, 1] == 5


def test_one_that_cannot_be_made_says_why_and_nothing_is_left():
    for make, message in (
        (partial(Faulty, "unheard of"), r"KeyError: 'unheard of'\nTraceback"),
        (bad_envs.DiesInConstructor, "exited with status 9"),
    ):
        with pytest.raises(EnvironmentFailed, match=message):
            ProcessPool(make, 2, id="bad", processes=2)
    with pytest.raises(EnvironmentFailed, match=r"not made within 0.2 s"):
        ProcessPool(bad_envs.HangsInConstructor, 2, id="bad", processes=1, start_seconds=0.2)


def test_a_factory_that_cannot_travel_is_named():
    lock = __import__("threading").Lock()

    def make():
        return Counter() if lock else None

    with pytest.raises(CannotTravel, match="cannot be sent there"):
        ProcessPool(make, 2, id="locked", processes=1)
    with pytest.warns(UserWarning, match="stepped in process"):
        assert isinstance(envs.make(make, 2, processes="auto"), SerialPool)


# --------------------------------------------------------------------------------------------------- lost workers


def test_a_killed_worker_is_noticed_at_once_and_replaced_while_the_others_go_on():
    with pool_of(Slow, 4, id="Slow") as pool:
        pool.reset(0)
        advance(pool, np.zeros(4, int))
        victim = pids(pool)[0]
        pool.send(np.zeros(4, int))
        killed = kill(victim)
        with pytest.raises(EnvironmentFailed, match=rf"worker process {victim} was killed by SIGKILL") as failed:
            while True:  # it may have answered before it died
                pool.recv()
                pool.send(np.zeros(4, int))
        assert time.monotonic() - killed < 1.0
        assert failed.value.lost == (0, 1)
        pool.rebuild(failed.value.env_id)
        began = time.monotonic()
        step = pool.recv()
        assert time.monotonic() - began < 0.5  # nobody waits for the new worker
        assert step.first.tolist()[:2] == [True, True] and not step.first[2:].all()
        old, went_on = step.observation[0, 0], 0
        while step.first[0]:
            before = step.first[0], step.observation[0, 0]
            step, failures = advance_rebuilding(pool, np.zeros(4, int))
            went_on += not step.first[2:].any()
            assert not failures and time.monotonic() - began < 5
        assert went_on > 5, "the others did not step while a worker was being started"
        assert before[0] and before[1] != old, "the new worker's first observation is not from a new seed"
        assert victim not in pids(pool) and len(pids(pool)) == 2


def test_a_paused_worker_that_wakes_late_writes_nowhere():
    with pool_of(Slow, 2, step_seconds=0.3) as pool:
        pool.reset(0)
        sleeper = pids(pool)[0]
        kill(sleeper, signal.SIGSTOP)
        step, failures = advance_rebuilding(pool, np.zeros(2, int))
        assert "has not answered for 0.3 s and was killed" in str(failures[0])
        with pytest.raises(ProcessLookupError):  # it is gone, so it cannot wake up
            kill(sleeper, signal.SIGCONT)
            time.sleep(0.1)
            os.kill(sleeper, 0)
        assert step.first.tolist() == [True, False]


def test_environments_that_were_made_in_time_are_used_however_late_the_pool_looks():
    """A caller that is away for longer than start_seconds, say in an evaluation, finds its new worker and not a late one."""
    with pool_of(Counter, 2, processes=1) as pool:
        pool.reset(0)
        kill(pids(pool)[0])
        assert advance_rebuilding(pool, np.zeros(2, int))[1]
        pool._supervisor._start_seconds = 0.5
        while not pids(pool):  # its back-off is not over
            _, failures = advance_rebuilding(pool, np.zeros(2, int))
            assert not failures
        time.sleep(1.0)
        until = time.monotonic() + 5
        while advance_rebuilding(pool, np.zeros(2, int))[0].first.any():
            assert time.monotonic() < until
        assert len(pids(pool)) == 1 and pool._board.incarnation.tolist() == [1, 1]


def test_a_slow_worker_is_not_a_hanging_one():
    """Eight environments of 0.1 s each take longer than the 0.3 s that one may take."""
    with pool_of(partial(_Slower, 0.1), 8, processes=1, step_seconds=0.3) as pool:
        pool.reset(0)
        assert advance(pool, np.zeros(8, int)).reward.sum() == 8


class _SlowFirst(Counter):
    def step(self, action):
        time.sleep(0.3 * action)
        return super().step(action)


class _Slower(Counter):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


def test_random_kills_tear_no_step_and_none_is_counted_twice():
    rng = np.random.default_rng(0)
    kills, episodes = 0, []
    seen: set[tuple[int, int, int, int]] = set()
    with pool_of(Checked, 6, processes=2, groups=2) as pool:
        pool.reset(0)
        until = time.monotonic() + 6
        for g in (0, 1):
            pool.send(np.zeros(3, int), g)
        while kills < 15 and time.monotonic() < until:
            if rng.random() < 0.02 and len(pids(pool)) == 2:
                victim = pool._workers[rng.integers(2)].child
                with suppress(ProcessLookupError):  # killed a moment ago, and the pool has not looked yet
                    signal.pidfd_send_signal(victim.pidfd, signal.SIGKILL)
                    kills += 1
            for g in (0, 1):
                while True:
                    try:
                        step = pool.recv(g)
                        break
                    except EnvironmentFailed as error:
                        pool.rebuild(error.env_id)
                assert whole(step.observation)
                for env, (pid, episode, count, _), first in zip(step.env_ids, step.observation["head"], step.first):
                    if not first:
                        key = (int(env), int(pid), int(episode), int(count))
                        assert key not in seen, "a step was shown twice"
                        seen.add(key)
                pool.send(np.zeros(3, int), g)
            episodes += pool.take_episodes()
        assert kills >= 5 and all(episode.length == 50 and episode.total_reward == 1275 for episode in episodes)


def test_the_fork_server_may_die_too():
    with pool_of(Counter, 2) as pool:
        pool.reset(0)
        before = fork_server.shared().pid
        kill(before)
        until = time.monotonic() + 5
        while not advance_rebuilding(pool, np.zeros(2, int))[1]:
            assert time.monotonic() < until
        while advance_rebuilding(pool, np.zeros(2, int))[0].first.any():
            assert time.monotonic() < until
        assert fork_server.shared().pid != before
