"""Gossip: one peer is the synchronous run bit for bit; a ring that does not learn contracts by its known factor."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from lockstep import ENV, agent_of, follow, start
from waiting import until

from rookery import envs
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.networks import NetworkConfig
from rookery.run.config import ConfigError, check, resolve
from rookery.runtime.local import LocalRuntime
from rookery.testing import ScriptedPool, checkpointed
from rookery.topologies.gossip import Gossip
from rookery.topologies.job import Job
from rookery.topologies.sync import Sync
from rookery.types import Agent

SMALL = NetworkConfig(hidden=(4,))
ALGORITHMS = {
    "a2c": A2C(rollout_length=8, learning_rate=3e-3, network=SMALL),
    "still": A2C(rollout_length=2, learning_rate=0.0, network=SMALL, normalise_observations=False, normalise_rewards=False),
}


@cache
def built(name: str) -> Agent:
    return agent_of(ALGORITHMS[name])


@cache
def lock_step(peers: int) -> Any:
    return follow(Gossip(num_envs=4, peers=peers, max_staleness=0), built("a2c"), 10)[0]


def plain(run: dict) -> dict:
    return {update: step[0] for update, step in run.items()}


def test_one_peer_is_the_synchronous_run_bit_for_bit() -> None:
    synchronous, _ = follow(Sync(num_envs=4), built("a2c"), 10)
    alone = lock_step(1)
    assert {u: s[:2] for u, s in alone.items()} == {u: s[:2] for u, s in synchronous.items()} and len(alone) == 10


def test_a_ring_in_lock_step_is_reproducible_and_resumes_bit_for_bit() -> None:
    whole = plain(lock_step(2))
    assert set(whole.values()).isdisjoint(plain(lock_step(1)).values()), "peers change each other"
    topology = Gossip(num_envs=4, peers=2, max_staleness=0)
    _, saved = follow(topology, built("a2c"), 5, save_at=4)
    done = int(saved["meters"]["updates"])
    assert saved["ring"]["steps"] == [done, done] and done <= 6
    rest = plain(follow(topology, built("a2c"), 10, snapshot=saved)[0])
    assert len({update: p for update, p in rest.items() if update > done}) >= 3
    assert {u: p for u, p in rest.items() if done < u < 10} == {u: p for u, p in whole.items() if done < u < 10}


def spread(saved: Any, names: list[str]) -> tuple[float, np.ndarray]:
    """Root mean square distance of the peers from their mean, and that mean."""
    states = [peer["learner"]["state"] for peer in saved["workers"]["peer"]]
    points = np.array([np.concatenate([state[n].ravel() for n in names]) for state in states])
    return float(np.sqrt(((points - points.mean(0)) ** 2).sum(1).mean())), points.mean(0)


@pytest.mark.parametrize("peers", [2, 4])
def test_a_ring_that_does_not_learn_contracts_by_cos_pi_over_n_and_keeps_its_mean(peers: int) -> None:
    """The slowest mode of the ring, x_i = cos(2 pi i / N) v, shrinks by |1/2 + 1/2 exp(2 pi i / N)| with each step."""
    topology, agent = Gossip(num_envs=peers, peers=peers, max_staleness=0), built("still")
    _, saved = follow(topology, agent, 1, save_at=1)
    names = sorted(name for name in saved["workers"]["peer"][0]["learner"]["state"] if name.startswith("params/network/"))
    rng = np.random.default_rng(0)
    direction = {name: rng.normal(size=np.shape(saved["workers"]["peer"][0]["learner"]["state"][name])) for name in names}
    for place, peer in enumerate(saved["workers"]["peer"]):
        for name in names:
            moved = peer["learner"]["state"][name] + np.cos(2 * np.pi * place / peers) * direction[name]
            peer["learner"]["state"][name] = moved.astype(np.float32)
    before, middle = spread(saved, names)
    driver = start(topology, agent, snapshot=saved)
    progress = until(driver, lambda p: p.updates >= 6)
    after = checkpointed(progress.snapshot())
    driver.close()
    rounds = after["ring"]["steps"][0] - saved["ring"]["steps"][0]
    distance, mean = spread(after, names)
    assert rounds >= 4 and (progress.report["consensus_distance"] > 1e-3) == (peers > 2)
    assert distance / before == pytest.approx(np.cos(np.pi / peers) ** rounds, rel=1e-3, abs=1e-6)
    np.testing.assert_allclose(mean, middle, atol=1e-5)


def drive(topology: Gossip, slow: float = 0.0) -> Any:
    pools: list[int] = []

    def make(num_envs: int, groups: int) -> Any:
        pools.append(num_envs)
        wait = (lambda slot: time.sleep(slow)) if len(pools) == 1 else (lambda slot: None)
        return ScriptedPool(num_envs, groups, on_step=wait)

    spec = ScriptedPool(1).spec
    agent = A2C(rollout_length=2, network=SMALL).build(spec, num_updates=100)
    return topology.drive(Job(agent, spec, make, LocalRuntime(), 0)), agent, spec


def test_nobody_runs_further_ahead_of_a_slow_neighbour_than_the_bound() -> None:
    topology = Gossip(num_envs=3, peers=3, max_staleness=2)
    driver, agent, spec = drive(topology, slow=0.03)
    progress = until(driver, lambda p: p.updates >= 12)
    assert {*progress.items} == {edge.name for edge in topology.plan({"main": agent}, spec).edges}
    assert 0 < progress.report["staleness_max"] <= 2
    assert progress.report["sample_reuse"] == 1.0 and progress.report["consensus_distance"] > 0
    saved = checkpointed(progress.snapshot())
    driver.close()
    steps = saved["ring"]["steps"]
    assert max(steps) - min(steps) > 0, "the fast did not wait for every step of the slow"
    assert all(steps[place] - steps[place - 1] <= 3 for place in range(3))
    rows = saved["meters"]["env_steps"]
    assert rows == saved["meters"]["trained_steps"] and saved["meters"]["updates"] == sum(steps) // 3


@pytest.mark.parametrize(
    "algorithm, words", [(PPO(), "no gradients.*A2C instead of PPO"), (DQN(), "learns from a replay.*ParameterServer")]
)
def test_what_cannot_gossip_is_refused_with_the_nearest_right_one(algorithm: Any, words: str) -> None:
    config = resolve(algorithm, env=ENV, topology=Gossip())
    with pytest.raises(ConfigError, match=words):
        check(config, algorithm.build(envs.spec_of(ENV)), envs.spec_of(ENV))
