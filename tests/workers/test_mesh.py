"""A learner on several devices is one learner on the whole batch, to the rounding of sums in another order.

Forced host devices must be there before jax starts, so the comparisons are made in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
from rookery.run import startup

startup.prepare()
import numpy as np, jax
from rookery import envs
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.types import Batch
from rookery.workers.acting.collector import Collector
from rookery.workers.learning.learner import Learner

SMALL, LSTM = NetworkConfig(hidden=(8,)), NetworkConfig(hidden=(8,), core="lstm", core_size=4)
CASES = {
    "ppo": PPO(rollout_length=8, epochs=2, minibatches=4, normalise_observations=True, normalise_rewards=True, network=SMALL),
    "vtrace-lstm": VTrace(rollout_length=8, network=LSTM),
}


def compare(algorithm):
    agent = algorithm.build(envs.spec_of("CartPole-v1"), num_updates=10)
    collector = Collector(agent, lambda: envs.make("CartPole-v1", 8))
    learners = {n: Learner(agent, seed=3, devices=n) for n in (1, 2)}
    answers = {n: [] for n in learners}
    for _ in range(4):
        collector.publish(*learners[1].published())
        rollout = collector.collect().rollout
        rollout = rollout._replace(discount=rollout.discount * np.float32(0.99))
        for n, learner in learners.items():
            update = learner.learn(Batch(rollout, np.ones(8, np.float32), np.zeros(8, np.int64)))
            paths = jax.tree_util.tree_leaves_with_path(update.params)
            leaves = [leaf for path, leaf in paths if ".lost" not in jax.tree_util.keystr(path)]  # that is rounding itself
            assert all(len(leaf.devices()) == 1 for leaf in leaves), "published on one device"
            used = {d for leaf in jax.tree.leaves(learner._state) for d in leaf.devices()}
            assert len(used) == n, (n, used)
            answers[n].append(np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves]))
    again = Learner(agent, seed=3, devices=2, snapshot=learners[1].snapshot())
    assert again.version == 4
    one, two = answers[1], answers[2]
    off = max(float((np.abs(there - here) / (1 + np.abs(here))).max()) for there, here in zip(two, one))
    return {"off": off, "moved": float(np.abs(one[-1] - one[0]).max())}


print(json.dumps({name: compare(algorithm) for name, algorithm in CASES.items()}))
"""


def test_several_devices_learn_what_one_learns_from_the_whole_batch() -> None:
    root = str(Path(__file__).parents[2])
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = dict(os.environ) | {"XLA_FLAGS": flags, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert {*answers} == {"ppo", "vtrace-lstm"}
    assert all(answer["off"] < 2e-5 and answer["moved"] > 1e-3 for answer in answers.values()), answers


def test_more_devices_than_there_are_are_refused_with_the_remedy() -> None:
    from rookery.run.assemble import assemble
    from rookery.run.config import ConfigError, resolve

    with pytest.raises(ConfigError, match=r"--devices 512: .*xla_force_host_platform_device_count=512"):
        assemble(resolve("ppo", env="CartPole-v1", num_envs=512, devices=512))
