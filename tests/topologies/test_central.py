"""ActorLearner with central inference: IMPALA bit for bit in lock-step, one ledger, and what it refuses."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from waiting import until_updates

from rookery import Trainer, envs
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.run.config import ConfigError
from rookery.runtime.local import LocalRuntime
from rookery.testing import (
    SPEC,
    LockstepRuntime,
    ScriptedPool,
    checkpointed,
    counting_agent,
    digest,
    record,
    rows_of,
)
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.types import Agent, Rollout

LSTM = NetworkConfig(hidden=(4,), core="lstm", core_size=3)
SMALL = NetworkConfig(hidden=(4,))


@cache
def agent_of(env: str, recurrent: bool) -> Agent:
    algorithm = VTrace(rollout_length=6, previous=recurrent, network=LSTM if recurrent else SMALL)
    return algorithm.build(envs.spec_of(env), num_updates=30)


def lock_step(env: str, recurrent: bool, updates: int, **options: Any) -> list[tuple[Any, ...]]:
    topology = ActorLearner(num_envs=4, groups=1, **options)
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    runtime = LockstepRuntime(lambda call: 1.0 if call.role == "learner" else (0.4, 1.7, 0.9)[(call.number - 1) % 3])
    job = Job(agent_of(env, recurrent), envs.spec_of(env), make, runtime, seed=3)  # type: ignore[arg-type]
    driver, seen = topology.drive(job), {}  # type: Iterator[Progress], dict[int, tuple[Any, ...]]
    for progress in driver:
        if progress.updates not in seen:
            seen[progress.updates] = (digest(progress.params), progress.lag_mean, progress.env_steps, progress.episodes)
        if progress.updates == updates:
            break
    driver.close()  # type: ignore[attr-defined]
    return [seen[update] for update in sorted(seen)]


@pytest.mark.parametrize("env", ["CartPole-v1", "truncating"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "lstm"])
def test_seed_with_one_group_and_no_deadline_is_impala_bit_for_bit(env: str, recurrent: bool) -> None:
    impala = lock_step(env, recurrent, 12)
    seed = lock_step(env, recurrent, 12, inference="central", inference_wait_ms=None)
    assert seed == impala and len({step[0] for step in impala}) == 13
    assert max(step[1] for step in impala) > 0, "and the policy lags in both"


def test_central_inference_in_lock_step_with_several_groups_repeats_itself() -> None:
    options = dict(inference="central", collectors=2, inference_batch=2)
    one, two = (lock_step("CartPole-v1", False, 8, **options) for _ in range(2))
    assert one == two and len({step[0] for step in one}) == 9


# ------------------------------------------------------------------------------------------------------- threads


def drive(topology: ActorLearner, runtime: Any, snapshot: Any = None, slow: float = 0.0) -> Iterator[Progress]:
    pause = lambda slot: time.sleep(slow)
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups, on_step=pause)
    return topology.drive(Job(counting_agent(3), SPEC, make, runtime, seed=0), snapshot)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"inference_batch": 4}, {"collectors": 2, "rollouts_per_batch": 2}], ids=str)
def test_every_step_is_learned_from_once_and_a_continued_run_goes_on(options: dict[str, Any]) -> None:
    topology = ActorLearner(num_envs=8, groups=2, inference="central", **options)
    runtime = LocalRuntime()
    first = record(runtime)
    driver = drive(topology, runtime)
    progress = until_updates(driver, 15)
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    driver.close()  # type: ignore[attr-defined]
    runtime = LocalRuntime()
    ledger = record(runtime)
    ledger.rows, ledger.batches = list(first.rows), first.batches
    driver = drive(topology, runtime, saved)
    progress = until_updates(driver, 30)
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    driver.close()  # type: ignore[attr-defined]
    waiting = [row for part in saved["tables"]["queue"]["parts"] for row in rows_of(Rollout(**part))]
    ledger.check(in_order=False, waiting=waiting)
    meters = saved["meters"]
    assert meters["trained_steps"] == sum(row.valid for row in ledger.rows)
    assert meters["env_steps"] == meters["trained_steps"] + sum(row.valid for row in waiting)
    assert max(first.lags) <= topology.max_lag()


def test_the_edges_that_a_run_counts_are_those_that_it_declares() -> None:
    topology = ActorLearner(num_envs=8, groups=2, inference="central")
    driver = drive(topology, LocalRuntime())
    progress = until_updates(driver, 5)
    driver.close()  # type: ignore[attr-defined]
    graph = topology.plan({"main": counting_agent(3)}, SPEC)
    assert set(progress.items) == {edge.name for edge in graph.edges}
    rollouts = progress.items["rollouts"]
    assert 3 * rollouts <= progress.items["observations"] <= progress.items["actions"] <= 3 * (rollouts + 2) + 2
    assert {edge.source for edge in graph.edges} | {edge.target for edge in graph.edges} <= {*graph.counts}


# ------------------------------------------------------------------------------------------------------ processes


def slow_cartpole() -> Any:
    """Stepped by Python, in a process of its own where processes are asked for."""
    import gymnasium

    class Slow(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            time.sleep(1e-4)
            return super().step(action)

    return Slow(gymnasium.make("CartPole-v1"))


def test_training_goes_on_when_an_environment_process_is_killed(tmp_path: Any) -> None:
    options = dict(
        env=slow_cartpole, num_envs=8, groups=2, rollout_length=8, network={"hidden": (4,)}, total_steps=10**6,
        env_processes=2, runs=str(tmp_path), eval_episodes=0,
    )  # fmt: skip
    with Trainer("seed", **options) as trainer:
        progress = trainer.advance()
        while progress.updates < 5:
            progress = trainer.advance()
        inference = next(h for h in trainer._runtime._handles if h.name == "inference-0")._worker  # type: ignore[union-attr]
        victim = inference._pool._workers[1]
        os.kill(victim.child.pid, signal.SIGKILL)
        killed, deadline = progress.updates, time.monotonic() + 60
        while progress.updates < killed + 20 or not progress.env_failures:
            progress = trainer.advance()
            assert time.monotonic() < deadline
        streams = inference._streams.ids % (1 << 32)
        assert progress.env_failures == 1
        others = np.setdiff1d(np.arange(8), victim.ids)
        while (inference._streams.ids[victim.ids] % (1 << 32) == 0).any():
            progress = trainer.advance()
            assert time.monotonic() < deadline
        assert (inference._streams.ids[others] % (1 << 32) == 0).all(), streams


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("system", "options", "words"),
    [
        (
            "seed",
            {"inference_batch": 24, "num_envs": 64, "groups": 4},
            "no multiple of the 16 environments.*--inference-batch 16",
        ),
        ("seed", {"inference_batch": 128, "num_envs": 64}, "up to --num-envs 64: try --inference-batch 64"),
        ("seed", {"collectors": "1..2"}, "with central inference these are hosts, and their number is fixed"),
        ("seed", {"inference_wait_ms": -1.0}, "--inference-wait-ms -1.0: it must be at least 0"),
        ("seed", {"num_envs": 63, "groups": 2}, "--num-envs 63 cannot be shared"),
    ],
)
def test_what_cannot_be_right_is_refused_with_what_can(system: str, options: dict[str, Any], words: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=words):
        Trainer(system, env="CartPole-v1", runs=str(tmp_path), **options).advance()


def test_an_algorithm_that_may_not_lag_is_refused(tmp_path: Any) -> None:
    from rookery.algorithms.ppo import PPO

    topology = ActorLearner(num_envs=8, groups=1, inference="central")
    with pytest.raises(ConfigError, match="at most 0 updates old, but ActorLearner lets it become 20: use Sync"):
        Trainer(PPO(), env="CartPole-v1", topology=topology, runs=str(tmp_path)).advance()
