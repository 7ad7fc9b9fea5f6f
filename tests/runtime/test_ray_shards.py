"""Replay tables that are Ray actors: rollouts reach them by reference, and one that is killed is replaced."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import pid_of, runtime_of
from waiting import until

from rookery import envs
from rookery.algorithms.dqn import DQN
from rookery.algorithms.r2d2 import R2D2
from rookery.data.config import ReplayConfig
from rookery.networks import NetworkConfig
from rookery.runtime.interface import ArgumentLost, WorkerLost
from rookery.runtime.ray import Kept
from rookery.runtime.ray.errors import translated
from rookery.testing import checkpointed
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.sync import Sync
from rookery.workers.replay.shards import Shards

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")
SMALL = NetworkConfig(hidden=(4,))
REPLAY = ReplayConfig(capacity=2000, min_size=40, samples_per_insert=4.0, selector="prioritized", error_buffer=2000.0)


class Said(NamedTuple):
    number: int
    rollout: Any


class Writer:
    def collect(self, out: Any) -> Said:
        return Said(3, {"step": np.array([1 << 40]), "image": np.full((64, 84, 84), 7, np.uint8)})

    def close(self) -> None: ...


class Reader:
    takes_views = True

    def look(self, rollout: Any, more: Any) -> tuple[int, str, bool, int]:
        return int(rollout["step"][0]), type(rollout["image"]).__name__, rollout["image"].flags.writeable, more

    def close(self) -> None: ...


def test_a_rollout_that_stays_in_the_store_is_given_to_another_worker_by_reference() -> None:
    runtime = runtime_of(collector=1, shard=1)
    writer = runtime.spawn(Writer, name="writer", role="collector")
    reader = runtime.spawn(Reader, name="reader", role="shard")
    said = writer.fill(Writer.collect, None).result(60)
    assert said.number == 3 and isinstance(said.rollout, Kept), "the driver has a reference and nothing else"
    seen = reader.call(Reader.look, said.rollout, 5).result(60)
    assert seen == (1 << 40, "ndarray", False, 5), "as it was written: 64 bits, no copy"
    runtime.close()


def test_an_argument_that_is_gone_is_not_a_worker_that_is_gone() -> None:
    lost = ray.exceptions.ObjectLostError("ab" * 28, None, "")
    assert isinstance(translated(ray.exceptions.RayTaskError("insert", "", lost), "shard-0"), ArgumentLost)
    assert isinstance(translated(ray.exceptions.ActorDiedError(), "shard-0"), WorkerLost)


def drive(topology: Any, algorithm: Any, env: str, runtime: Any, snapshot: Any = None) -> Iterator[Progress]:
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    agent = algorithm.build(envs.spec_of(env), num_updates=1000)
    return topology.drive(Job(agent, envs.spec_of(env), make, runtime, seed=0), snapshot)


def replay_of(**more: Any) -> dict[str, Any]:
    return {"network": SMALL, "replay": dataclasses.replace(REPLAY, **more)}


CASES = {
    "rainbow": (
        Sync(num_envs=4, collectors=1),
        DQN(rollout_length=5, batch_size=8, n_step=3, noisy=True, num_atoms=5, **replay_of()),
        "CartPole-v1",
    ),
    "r2d2": (
        ActorLearner(num_envs=4, collectors=1, groups=1),
        R2D2(rollout_length=5, burn_in=5, sequence_length=10, batch_size=4, replay=replay_of(min_size=10)["replay"]),
        "cue-recall",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_replay_system_learns_from_a_table_in_an_actor(name: str) -> None:
    topology, algorithm, env = CASES[name]
    driver = drive(topology, algorithm, env, runtime_of(collector=1, shard=1))
    progress = until(driver, lambda p: p.updates >= 10)
    assert progress.report["replay/shards"] == 1.0 and progress.report["replay/size"] >= 10
    driver.close()


def test_a_shard_that_is_killed_while_it_is_sampled_is_replaced_and_the_rest_goes_on(monkeypatch: Any) -> None:
    tables: list[Shards] = []
    made = Shards.__init__
    monkeypatch.setattr(Shards, "__init__", lambda self, *a, **k: (tables.append(self), made(self, *a, **k))[1])
    topology = ActorLearner(num_envs=4, collectors=2, groups=1)
    algorithm = DQN(rollout_length=5, batch_size=16, n_step=3, exploration="ladder", epsilon=0.4, **replay_of(shards=2))
    runtime = runtime_of(collector=(1, 2), shard=2)
    driver = drive(topology, algorithm, "CartPole-v1", runtime)
    until(driver, lambda p: p.updates > 30 and min(stand.size for stand in tables[0]._stands) > 20)
    os.kill(pid_of(runtime, "shard-0"), signal.SIGKILL)
    lost = until(driver, lambda p: p.report["replay/shards_lost"] == 1.0)
    assert lost.report["replay/items_lost"] > 0 and lost.report["replay/rows_lost"] >= lost.report["replay/items_lost"]
    went_on = until(driver, lambda p: p.updates > lost.updates + 5)
    assert went_on.report["replay/inserts"] >= lost.report["replay/inserts"]
    back = until(driver, lambda p: p.report["replay/shards"] == 2.0 and tables[0]._stands[0].size > 0)
    limiter = tables[0].limiter
    assert limiter.size == sum(stand.size for stand in tables[0]._stands)
    assert tables[0].fleet.roster.lives == [1, 0]
    saved = checkpointed(back.snapshot())  # type: ignore[misc]
    driver.close()
    shards = saved["tables"]["table"]["shards"]
    assert len(shards) == 2 and all(shard["store"] is not None for shard in shards)
    driver = drive(topology, algorithm, "CartPole-v1", runtime_of(collector=(1, 2), shard=2), snapshot=saved)
    progress = until(driver, lambda p: p.updates > int(saved["meters"]["updates"]) + 5)
    assert progress.report["replay/inserts"] >= limiter.inserts
    driver.close()
