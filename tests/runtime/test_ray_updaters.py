"""Bellman updaters that are Ray actors: one that is killed is replaced, and nothing is counted twice."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import pid_of, runtime_of
from waiting import until

from rookery import envs
from rookery.algorithms.qt_opt import QTOpt
from rookery.data.config import ReplayBuffer
from rookery.data.demonstrations import gather
from rookery.networks import NetworkConfig
from rookery.run import demonstrations
from rookery.testing import checkpointed
from rookery.topologies.bellman_updaters import BellmanUpdaters
from rookery.topologies.job import Job

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")
ENV = "point-reach"


def test_a_killed_updater_is_replaced_its_items_are_drawn_again_and_nothing_is_counted_twice() -> None:
    spec, rng = envs.spec_of(ENV), np.random.default_rng(0)
    act = lambda now: rng.uniform(-1, 1, (5, 2)).astype(np.float32)
    logged = gather(demonstrations.play(ENV, act, episodes=5), spec)
    algorithm = QTOpt(
        rollout_length=4, batch_size=8, gradient_steps=2, samples=8, elites=2, random_steps=40, demo_ratio=0.5,
        network=NetworkConfig(hidden=(8,), activation="relu"), replay=ReplayBuffer(capacity=4000, min_size=40),
    )  # fmt: skip
    topology = BellmanUpdaters(num_envs=4, collectors=1, updaters=2, uses=2)
    make = lambda num_envs, groups: envs.make(ENV, num_envs, groups=groups)

    def drive(snapshot: Any = None) -> tuple[Any, Any]:
        runtime = runtime_of(collector=1, updater=2)
        job = Job(algorithm.build(spec, num_updates=1000), spec, make, runtime, seed=0, shown=logged)
        return topology.drive(job, snapshot), runtime

    driver, runtime = drive()
    until(driver, lambda p: p.updates >= 10 and p.workers["updaters"] == 2)
    os.kill(pid_of(runtime, "updater-0"), signal.SIGKILL)
    lost = until(driver, lambda p: p.workers["updaters_lost"] == 1)
    back = until(driver, lambda p: p.workers["updaters"] == 2 and p.updates > lost.updates + 10)
    saved = checkpointed(back.snapshot())
    driver.close()
    items, tables = saved["meters"]["items"], saved["tables"]
    assert int(items["from_replay"]) == int(items["from_logged"]) == int(items["labels"]) + back.workers["batches_lost"]
    assert 2 * int(items["labels"]) == int(items["batches"]) == int(saved["meters"]["updates"]), "each batch exactly twice"
    drawn = int(tables["replay"]["table"]["limiter"]["samples"])
    assert drawn == 8 * int(items["from_replay"]), "what was drawn for the one that is gone is in the books"
    assert [*map(int, saved["lives"]["updater"])] == [1, 0]
    driver, _ = drive(saved)
    progress = until(driver, lambda p: p.updates > int(saved["meters"]["updates"]) + 4)
    assert progress.env_steps >= int(saved["meters"]["env_steps"]) and progress.workers["updaters_lost"] == 0
    driver.close()
