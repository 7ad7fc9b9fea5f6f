"""Sync is bit-reproducible, and a run that was saved and restored is the run that was only saved."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest

from rookery import Trainer, envs
from rookery.algorithms.a2c import A2C
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.runtime.local import LocalRuntime
from rookery.testing import checkpointed, digest
from rookery.topologies.job import Job
from rookery.topologies.sync import Sync
from rookery.types import Agent

SMALL, LSTM = NetworkConfig(hidden=(4,)), NetworkConfig(hidden=(4,), core="lstm", core_size=3)


class Case(NamedTuple):
    env: str
    algorithm: Any
    topology: Sync


CASES = {
    "cartpole": Case(
        "CartPole-v1", PPO(rollout_length=8, epochs=1, minibatches=2, normalise_rewards=True, network=SMALL), Sync(num_envs=4)
    ),
    "cartpole-lstm": Case(
        "CartPole-v1", VTrace(rollout_length=8, previous=True, network=LSTM), Sync(num_envs=4, collectors=2, groups=2)
    ),
    "cue-recall-lstm": Case("cue-recall", A2C(rollout_length=4, network=LSTM), Sync(num_envs=4, collectors=2)),
    "truncating": Case("truncating", A2C(rollout_length=4, network=SMALL), Sync(num_envs=4, groups=2)),
}


class Step(NamedTuple):
    """What one update left behind."""

    params: str
    env_steps: int
    returns: tuple[float, ...]
    report: tuple[tuple[str, float], ...]


@cache
def agent_of(name: str) -> Agent:
    return CASES[name].algorithm.build(envs.spec_of(CASES[name].env), num_updates=20)


def run(name: str, updates: int, *, seed: int = 0, save_at: int | None = None, snapshot: Any = None) -> tuple[list[Step], Any]:
    case = CASES[name]
    make = lambda num_envs, groups: envs.make(case.env, num_envs, groups=groups)
    driver = case.topology.drive(Job(agent_of(name), envs.spec_of(case.env), make, LocalRuntime(), seed), snapshot)
    steps, saved, returns = [], None, []  # type: list[Step], Any, list[float]
    for progress in driver:
        returns += [episode.total_reward for episode in progress.finished]
        if progress.snapshot is None:  # a sign of life in the middle of an update
            continue
        steps.append(Step(digest(progress.params), progress.env_steps, tuple(returns), tuple(progress.report.items())))
        returns = []
        if progress.updates == save_at:
            saved = checkpointed(progress.snapshot())
        if progress.updates == updates:
            break
    driver.close()
    return steps, saved


@cache
def uninterrupted(name: str) -> tuple[list[Step], Any]:
    return run(name, 9, save_at=4)


@pytest.mark.parametrize("name", CASES)
def test_two_runs_of_a_seed_are_the_same_bit_for_bit_and_another_seed_is_not(name: str) -> None:
    one, _ = uninterrupted(name)
    two, _ = run(name, 9, save_at=4)
    assert one == two and len(one) == 9
    assert len({step.params for step in one}) == 9, "every update changes something"
    other, _ = run(name, 2, seed=1)
    assert {step.params for step in other}.isdisjoint(step.params for step in one)


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_restored_goes_on_as_the_one_that_was_saved(name: str) -> None:
    whole, saved = uninterrupted(name)
    rest, _ = run(name, 9, snapshot=saved)
    assert rest == whole[4:]
    assert any(step.returns for step in rest), "episodes ended, and their returns were compared"


def test_a_trainer_restored_from_disk_goes_on_bit_for_bit(tmp_path: Any) -> None:
    options = dict(
        env="CartPole-v1", num_envs=4, rollout_length=8, network={"hidden": (4,)},
        total_steps=10**6, runs=str(tmp_path), eval_episodes=0,
    )  # fmt: skip
    with Trainer("a2c", **options, run="one") as one:
        follow(one, 5)
        path = one.save()
        rest, returns = follow(one, 10), one.returns.snapshot()["returns"]
    with Trainer("a2c", **options, run="two") as two:
        two.restore(path)
        again = follow(two, 10)
        assert again == rest and two.returns.snapshot()["returns"] == returns and len(returns) > 3
        two.restore(path)  # a second time, in the same trainer
        assert follow(two, 10) == rest


def follow(trainer: Trainer, updates: int) -> list[tuple[int, str]]:
    seen: dict[int, str] = {}
    while not seen or max(seen) < updates:
        progress = trainer.advance()
        seen[progress.updates] = digest(progress.params)
    return [(update, seen[update]) for update in sorted(seen) if update > 5]
