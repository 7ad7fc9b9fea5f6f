"""AsyncGradients: one worker is the synchronous run bit for bit; several send gradients of a known age, none twice."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

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
from rookery.testing import SPEC, ScriptedPool, checkpointed, summing_agent
from rookery.topologies.async_gradients import AsyncGradients
from rookery.topologies.job import Job
from rookery.topologies.staleness import Staleness
from rookery.topologies.sync import Sync
from rookery.types import Agent

SMALL = NetworkConfig(hidden=(4,))
AS_THEY_COME: dict = {"normalise_observations": False, "normalise_rewards": False}  # moments are equal to rounding alone
ALGORITHMS = {  # who ships gradients takes one step of the value, too
    "a2c": A2C(  # as `systems.PUBLISHED`: with those of `a2c` the two programs are equal to rounding
        rollout_length=8, gae_lambda=1.0, learning_rate=3e-3, anneal=False, entropy_cost=0.01, value_steps=1,
        rmsprop_epsilon=1e-5, network=SMALL, **AS_THEY_COME,
    ),
    "a2c-lstm": A2C(
        rollout_length=4, anneal=True, network=NetworkConfig(hidden=(4,), core="lstm", core_size=3), **AS_THEY_COME
    ),
    "fresh-dqn": DQN(fresh=True, rollout_length=5, n_step=3, target_period=4, exploration="mixed", noisy=True, network=SMALL),
}


@cache
def built(name: str) -> Agent:
    return agent_of(ALGORITHMS[name])


@cache
def synchronous(name: str) -> Any:
    return follow(Sync(num_envs=4), built(name), 12)[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_worker_is_the_synchronous_run_bit_for_bit_and_resumes_as_it(name: str) -> None:
    topology = AsyncGradients(num_envs=4, workers=1)
    seen, _ = follow(topology, built(name), 12)
    params = lambda run: {update: (step[0], step[1]) for update, step in run.items()}
    assert params(seen) == params(synchronous(name)) and len({step[0] for step in seen.values()}) == 12
    _, saved = follow(topology, built(name), 6, save_at=5)
    rest, _ = follow(topology, built(name), 12, snapshot=saved)
    drained = int(saved["meters"]["updates"])  # what was begun is finished first
    goes_on = {update: step for update, step in params(seen).items() if update > drained}
    assert drained <= 7 and {update: step for update, step in params(rest).items() if update > drained} == goes_on


SUMMING = summing_agent()


def drive_summing(topology: AsyncGradients, *, slow_env: int | None = None, snapshot: Any = None) -> Any:
    wait = lambda slot: time.sleep(0.02) if slot.env == slow_env else None
    pools: list[int] = []

    def make(num_envs: int, groups: int) -> ScriptedPool:
        pools.append(num_envs)
        return ScriptedPool(num_envs, groups, on_step=wait if len(pools) == 1 and slow_env is not None else lambda slot: None)

    return topology.drive(Job(SUMMING, SPEC, make, LocalRuntime(), 0), snapshot)


def test_what_is_counted_is_what_was_applied_and_a_resumed_run_goes_on_counting() -> None:
    topology = AsyncGradients(num_envs=6, workers=3)
    driver = drive_summing(topology)
    progress = until(driver, lambda p: p.updates >= 30)
    assert {*progress.items} == {edge.name for edge in topology.plan({"main": SUMMING}, SPEC).edges}
    assert progress.workers == {"workers": 3, "workers_lost": 0, "calls_lost": 0}
    saved = checkpointed(progress.snapshot())
    driver.close()
    meters, state = saved["meters"], saved["policies"]["main"]["state"]
    assert state["params/sum"] == meters["trained_steps"] == meters["env_steps"] > 100
    assert state["params/offset"] == state["updates"] == meters["updates"] == meters["items"]["gradients"]
    driver = drive_summing(topology, snapshot=saved)
    saved = until(driver, lambda p: p.updates >= 60).snapshot()
    driver.close()
    assert saved["policies"]["main"]["state"]["params/sum"] == saved["meters"]["env_steps"] > meters["env_steps"]


def test_a_slow_workers_gradients_are_old_and_beyond_the_bound_they_are_discarded_and_counted() -> None:
    driver = drive_summing(AsyncGradients(num_envs=4, workers=2), slow_env=0)
    progress = until(driver, lambda p: p.report.get("staleness_max", 0) >= 4)
    assert 0 < progress.report["staleness_mean"] <= progress.report["staleness_max"]
    assert progress.report["gradients_discarded"] == 0 and progress.report["sample_reuse"] > 0.8  # some wait
    driver.close()
    driver = drive_summing(AsyncGradients(num_envs=4, workers=2, max_staleness=2), slow_env=0)
    progress = until(driver, lambda p: p.report.get("gradients_discarded", 0) >= 2)
    assert progress.report["staleness_max"] <= 2
    saved = progress.snapshot()
    driver.close()
    sums = saved["policies"]["main"]["state"]["params/sum"], saved["meters"]["trained_steps"]
    assert sums[0] == sums[1] < saved["meters"]["env_steps"], "what was discarded was played, but not learned from"


def test_staleness_counts_only_what_is_applied() -> None:
    staleness = Staleness(3)
    assert [staleness.admits(age) for age in (0, 3, 4, 9, 1)] == [True, True, False, False, True]
    assert staleness.report() == {"staleness_mean": 4 / 3, "staleness_max": 3.0, "gradients_discarded": 2.0}
    again = Staleness(3, staleness.snapshot())
    assert again.report()["gradients_discarded"] == 2 and again.report()["staleness_max"] == 3


@pytest.mark.parametrize(
    "algorithm, words",
    [
        (PPO(), "no gradients that one worker could send.*A2C instead of PPO"),
        (DQN(), "learns from a replay.*ParameterServer.*--fresh"),
        (DQN(gradient_steps=2), "no gradients.*--gradient-steps 1"),
    ],
)
def test_what_has_no_gradients_to_send_is_refused_with_the_nearest_right_one(algorithm: Any, words: str) -> None:
    config = resolve(algorithm, env=ENV, topology=AsyncGradients())
    with pytest.raises(ConfigError, match=words):
        check(config, algorithm.build(envs.spec_of(ENV)), envs.spec_of(ENV))
    with pytest.raises(ValueError, match="shared by 3 workers"):
        AsyncGradients(num_envs=4, workers=3).plan({"main": built("a2c")}, envs.spec_of(ENV))


def test_a_checkpoint_of_another_number_of_workers_is_refused() -> None:
    _, saved = follow(AsyncGradients(num_envs=4, workers=1), built("a2c"), 2, save_at=1)
    with pytest.raises(ValueError, match="made with 1 of each worker, not 2"):
        next(start(AsyncGradients(num_envs=4, workers=2), built("a2c"), snapshot=saved))
