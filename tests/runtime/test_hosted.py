"""A pool on hosts: it is an EnvPool; a host that is lost takes only its own groups with it, and a slow one nobody."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from rookery.data.chunks import INCARNATIONS
from rookery.envs.pools.pool import EnvironmentFailed
from rookery.runtime import roster
from rookery.runtime.interface import WorkerLost
from rookery.runtime.local import LocalRuntime
from rookery.runtime.roster import Life
from rookery.testing import SPEC, ScriptedPool, Slot, counting_agent
from rookery.testing import counting_params as params
from rookery.workers.acting import hosted_pool as hosted
from rookery.workers.acting.collector import Collected
from rookery.workers.acting.env_host import EnvHost
from rookery.workers.acting.hosted_pool import HostedPool, HostsLost
from rookery.workers.acting.inference import Inference

HOSTS, EACH, GROUPS = 2, 4, 2


class Mortal:
    """A handle whose worker can be lost: whatever it was asked is answered by its loss."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.name, self.ready, self.dead = handle, handle.name, handle.ready, False
        self.owed: list[Future] = []

    def call(self, method: Callable[..., Any], *args: Any) -> Future:
        outer: Future = Future()
        if self.dead:
            outer.set_exception(WorkerLost(f"{self.name} was killed"))
            return outer
        self.owed.append(outer)
        self.handle.call(method, *args).add_done_callback(lambda inner: self.hand_on(inner, outer))
        return outer

    def hand_on(self, inner: Future, outer: Future) -> None:
        if not outer.done():
            if inner.cancelled() or inner.exception():
                outer.set_exception(inner.exception() if not inner.cancelled() else WorkerLost("closed"))
            else:
                outer.set_result(inner.result())

    def die(self) -> None:
        self.dead = True
        for future in self.owed:
            if not future.done():
                future.set_exception(WorkerLost(f"{self.name} was killed"))

    def kill(self) -> None:
        self.handle.kill()


class Hosts:
    """A runtime of threads whose hosts can be killed, and a pool on it."""

    def __init__(self, on_step: Callable[[int, Slot], Any] = lambda host, slot: None, kind: Any = ScriptedPool) -> None:
        self.runtime, self.lives = LocalRuntime(), {}  # type: LocalRuntime, dict[int, list[Mortal]]
        self.pools: list[tuple[int, ScriptedPool]] = []
        self._on_step, self._kind = on_step, kind
        self.pool = HostedPool(self.runtime, self.start, SPEC, hosts=HOSTS, envs_per_host=EACH, groups=GROUPS)  # type: ignore[arg-type]

    def start(self, life: Life) -> Any:
        def make_pool() -> ScriptedPool:
            pool = self._kind(EACH, GROUPS, on_step=lambda slot: self._on_step(life.place, slot))
            self.pools.append((life.place, pool))
            return pool

        handle = Mortal(self.runtime.spawn(EnvHost, make_pool, name=f"host-{life.place}"))
        self.lives.setdefault(life.place, []).append(handle)
        return handle

    def kill(self, host: int) -> None:
        self.lives[host][-1].die()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.runtime.close()


def actions(count: int = 2) -> Any:
    return np.zeros(count, np.int32)


def test_it_answers_as_one_pool_of_all_hosts(hosts: Hosts) -> None:
    pool, whole = hosts.pool, hosts.pool.reset(3)
    assert pool.num_envs == 8 and [(g.start, g.stop) for g in pool.groups] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert whole.first.all() and whole.env_ids.tolist() == list(range(8))
    assert whole.observation[:, 0].tolist() == [0, 1, 2, 3] * 2  # each host counts from 0
    alone = ScriptedPool(EACH, GROUPS)
    alone.reset(0)
    episodes = []
    for _ in range(12):
        for group in (3, 0, 2, 1):
            pool.send(actions(), group)
        for group in (1, 2, 3, 0):
            answer = pool.recv(group)
            assert answer.env_ids.tolist() == [2 * group, 2 * group + 1]
            if group < 2:
                alone.send(actions(), group)
                expected = alone.recv(group)
                for mine, theirs in zip(answer[1:], expected[1:]):
                    assert np.array_equal(mine, theirs)
        episodes += pool.take_episodes()
    mine = sorted(episode for episode in episodes if episode.env_id < 4)
    assert mine == sorted(alone.take_episodes())
    assert sorted(e._replace(env_id=e.env_id - 4) for e in episodes if e.env_id >= 4) == mine
    seeds = {pool.seeds[0] for _, pool in hosts.pools}
    assert len(seeds) == HOSTS, "hosts are seeded apart"


def test_it_refuses_to_be_misused(hosts: Hosts) -> None:
    hosts.pool.reset(0)
    with pytest.raises(RuntimeError, match="without a send"):
        hosts.pool.recv(1)
    hosts.pool.send(actions(), 1)
    with pytest.raises(RuntimeError, match="twice"):
        hosts.pool.send(actions(), 1)


def test_a_host_that_is_lost_fails_its_groups_alone_and_its_next_life_begins_anew(hosts: Hosts) -> None:
    pool = hosts.pool
    pool.reset(0)
    for group in range(4):
        pool.send(actions(), group)
        pool.recv(group)
    pool.send(actions(), 0)
    hosts.kill(1)
    pool.send(actions(), 2)  # the loss shows when it is asked
    assert not pool.recv(0).first.all(), "the other host goes on"
    with pytest.raises(EnvironmentFailed, match="host 1") as failed:
        pool.recv(2)
    assert failed.value.lost == (4, 5, 6, 7)
    pool.rebuild(failed.value.env_id)
    again = pool.recv(2)
    assert again.first.all() and (again.observation[:, 2] == 0).all() and again.env_ids.tolist() == [4, 5]
    pool.send(actions(), 3)  # its action is for an environment that is no more
    assert pool.recv(3).first.all()
    for group in (2, 3):  # once: now they step
        pool.send(actions(), group)
        assert (pool.recv(group).observation[:, 2] == 1).all()
    assert pool.workers()["hosts_lost"] == 1
    seeds = [made.seeds[0] for place, made in hosts.pools if place == 1]
    assert len(set(seeds)) == 2, "the next life has a seed of its own"


def test_nothing_that_an_earlier_life_says_is_heard(hosts: Hosts) -> None:
    pool = hosts.pool
    pool.reset(0)
    first_life = hosts.lives[1][0]
    pool.send(actions(), 2)
    pool.recv(2)
    hosts.kill(1)
    pool.send(actions(), 2)
    with pytest.raises(EnvironmentFailed):
        pool.recv(2)
    pool.rebuild(4)
    late = [future for future in first_life.owed if future.done() and future.exception()]
    assert all(isinstance(future.exception(), WorkerLost) for future in late)
    assert pool.recv(2).first.all()
    assert pool.ready_groups(0.05) == [], "nobody else answers"


class Breaking(ScriptedPool):
    """One environment fails once, in its second step."""

    broken = False

    def recv(self, group: int = 0) -> Any:
        if group == 0 and self._slots[1].step == 1 and not self.broken:
            self.broken = True
            raise EnvironmentFailed("it broke", 1)
        return super().recv(group)

    def rebuild(self, env_id: int) -> None:
        self._slots[env_id] = self._slots[env_id]._replace(ended=True)


def test_a_failed_environment_is_rebuilt_on_its_host_and_the_others_keep_their_step() -> None:
    made = Hosts(kind=Breaking)
    pool = made.pool
    try:
        pool.reset(0)
        pool.send(actions(), 2)
        pool.recv(2)
        pool.send(actions(), 2)
        with pytest.raises(EnvironmentFailed, match="host 1: it broke") as failed:
            pool.recv(2)
        assert failed.value.env_id == 5 and failed.value.lost == (5,)
        pool.rebuild(5)
        answer = pool.recv(2)
        assert answer.first.tolist() == [True, True] and answer.observation[:, 1].tolist() == [1, 1]
        assert len(made.lives[1]) == 1 and pool.workers()["hosts_lost"] == 0
    finally:
        made.runtime.close()


def test_a_slow_host_holds_up_nobody() -> None:
    made = Hosts(lambda host, slot: time.sleep(0.05) if host == 1 else None)
    agent = counting_agent(3)
    worker = Inference(agent, lambda: made.pool)
    worker.publish(params(), 0)
    try:
        owners = [int(worker.collect().rollout.stream[0] // INCARNATIONS) // EACH for _ in range(24)]
        assert owners.count(0) >= 4 * max(1, owners.count(1))
    finally:
        made.runtime.close()


def test_a_policy_goes_on_when_hosts_die_and_no_rollout_is_mixed() -> None:
    steps_on = threading.Event()
    made = Hosts(lambda host, slot: steps_on.wait(30) if host == 1 else None)
    worker = Inference(counting_agent(3), lambda: made.pool)
    worker.publish(params(), 0)
    steps: dict[int, int] = {}

    def play(rollouts: int) -> Collected:
        for _ in range(rollouts):
            c = worker.collect()
            for stream, step in zip(c.rollout.stream.tolist(), c.rollout.step.tolist()):
                assert steps.get(stream, 0) == step, "every step of a stream once, in order"
                steps[stream] = step + 3
            _, episode, step_shown = np.moveaxis(c.rollout.observation, -1, 0)
            valid = c.rollout.valid > 0
            assert (step_shown[1:] == step_shown[:-1] + 1)[valid].all() and (episode[1:] == episode[:-1])[valid].all()
        return c

    lives = lambda env: {stream % INCARNATIONS for stream in steps if stream // INCARNATIONS == env}
    try:
        for deaths in (1, 2):
            steps_on.set()
            play(10)
            steps_on.clear()
            play(10)  # until both groups of that host wait for its answer
            made.kill(1)
            steps_on.set()
            deadline = time.monotonic() + 60
            while any(len(lives(env)) <= deaths for env in range(4, 8)):
                c = play(1)
                assert time.monotonic() < deadline, "it came back"
        assert all(lives(env) == {0} for env in range(4)) and all(len(lives(env)) == 3 for env in range(4, 8))
        assert c.said.workers["hosts_lost"] == 2 and c.said.workers["rollouts_discarded"] == 4
    finally:
        made.runtime.close()


def test_while_a_lost_host_is_made_anew_the_others_play_on() -> None:
    """Both of its groups are owed an answer when it dies: the first failure has it made anew, and nobody waits for that."""
    held, playing = threading.Event(), threading.Event()
    made = Hosts(lambda host, slot: playing.wait(30) if host == 1 else None)
    worker = Inference(counting_agent(3), lambda: made.pool)
    worker.publish(params(), 0)
    start = made.pool._fleet._start

    def slowly(life: Life) -> Any:
        handle, made_at_last = start(life), Future()  # type: Any, Future
        threading.Thread(target=lambda: (held.wait(10), made_at_last.set_result(handle.handle.ready.result()))).start()
        handle.ready = made_at_last
        return handle

    made.pool._fleet._start = slowly
    try:
        worker.collect()
        made.kill(1)
        owners = {int(worker.collect().rollout.stream[0] // INCARNATIONS) // EACH for _ in range(20)}
        assert owners == {0} and made.pool.workers() == {"hosts": 1, "hosts_lost": 1}, "nobody waits for a host in the making"
        held.set()
        playing.set()
        deadline = time.monotonic() + 30
        while int(worker.collect().rollout.stream[0] // INCARNATIONS) // EACH == 0:
            assert time.monotonic() < deadline, "it came back"
    finally:
        held.set()
        playing.set()
        made.runtime.close()


def test_a_host_that_is_lost_again_and_again_ends_it_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "Terms", functools.partial(roster.Terms, back_off=0.0))
    made = Hosts()
    made.pool.reset(0)
    start = made.start

    def dead(life: Life) -> Any:
        handle = start(life)
        handle.dead = True
        return handle

    made.pool._fleet._start = dead
    made.kill(0)
    made.pool.send(actions(), 0)
    try:
        with pytest.raises(HostsLost, match="host-0 was killed"):
            for _ in range(100):
                try:
                    made.pool.recv(0)
                except EnvironmentFailed as error:
                    made.pool.rebuild(error.env_id)
    finally:
        made.runtime.close()
