"""Replay systems: Sync resumes exactly, table included; ActorLearner keeps its ratio and drains without learning on."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from rookery import Trainer, envs
from rookery.algorithms.dqn import DQN
from rookery.algorithms.sac import SAC
from rookery.algorithms.td3 import TD3
from rookery.data.config import ReplayBuffer, ReplayConfig
from rookery.networks import NetworkConfig
from rookery.runtime.local import LocalRuntime
from rookery.testing import checkpointed
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.sync import Sync

SMALL = NetworkConfig(hidden=(4,))
UNIFORM = ReplayConfig(capacity=200, min_size=40, samples_per_insert=4.0)
PRIORITIZED = ReplayConfig(capacity=200, min_size=40, samples_per_insert=4.0, selector="prioritized")
BUFFER = ReplayBuffer(capacity=200, min_size=40)
CASES = {
    "dqn": DQN(rollout_length=3, batch_size=8, gradient_steps=2, network=SMALL, replay=UNIFORM, epsilon_steps=100),
    "rainbow": DQN(
        rollout_length=5, batch_size=8, n_step=3, double=True, dueling=True, noisy=True, num_atoms=5, network=SMALL,
        replay=PRIORITIZED,
    ),
    "sac": SAC(batch_size=4, gradient_steps=2, network=SMALL, random_steps=60, replay=BUFFER),
    "td3": TD3(rollout_length=2, batch_size=4, gradient_steps=3, n_step=2, network=SMALL, random_steps=60, replay=BUFFER),
}  # fmt: skip
APEX = DQN(  # the learner may run far ahead: a drain that learned on would be seen
    rollout_length=5, batch_size=16, n_step=3, exploration="ladder", epsilon=0.4, network=SMALL,
    replay=dataclasses.replace(PRIORITIZED, error_buffer=3000.0),
)  # fmt: skip
ENV, UPDATES, SAVED = "CartPole-v1", 120, 61


def env_of(algorithm: Any) -> str:
    return "point-reach" if isinstance(algorithm, (SAC, TD3)) else ENV


@cache
def agent_of(algorithm: Any) -> Any:
    return algorithm.build(envs.spec_of(env_of(algorithm)), num_updates=UPDATES)


def drive(topology: Any, algorithm: Any, *, seed: int = 0, snapshot: Any = None) -> Any:
    env = env_of(algorithm)
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    return topology.drive(Job(agent_of(algorithm), envs.spec_of(env), make, LocalRuntime(), seed), snapshot)


def digest(params: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


def run(name: str, *, seed: int = 0, save_at: int | None = None, snapshot: Any = None) -> tuple[dict[int, Any], Any]:
    """What each update left behind."""
    driver = drive(Sync(num_envs=4, collectors=2), CASES[name], seed=seed, snapshot=snapshot)
    steps: dict[int, Any] = {}
    saved = None
    for progress in driver:
        if progress.snapshot is None or progress.updates in steps:
            continue
        if progress.updates:
            steps[progress.updates] = (digest(progress.params), progress.env_steps, tuple(sorted(progress.report.items())))
        if progress.updates == save_at:
            saved = checkpointed(progress.snapshot())
        if progress.updates == UPDATES:
            break
    driver.close()
    return steps, saved


@cache
def uninterrupted(name: str) -> tuple[dict[int, Any], Any]:
    return run(name, save_at=SAVED)


@pytest.mark.parametrize("name", CASES)
def test_two_runs_of_a_seed_are_the_same_bit_for_bit_and_another_seed_is_not(name: str) -> None:
    one, _ = uninterrupted(name)
    two, _ = run(name)
    assert one == two and len(one) == UPDATES and len({step[0] for step in one.values()}) == UPDATES
    other, _ = run(name, seed=1)
    assert {step[0] for step in other.values()}.isdisjoint(step[0] for step in one.values())


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_restored_with_its_table_goes_on_as_the_one_that_was_saved(name: str) -> None:
    whole, saved = uninterrupted(name)
    table = saved["tables"]["table"]["table"]
    ever_used = int(table["items"]["_live"].sum()) + len(table["free"])
    assert table["max_size"] == 200 and len(table["items"]["_row"]) == ever_used > 0
    rest, _ = run(name, snapshot=saved)
    tables = ("replay/reuse", "replay/age")  # means since the last report, which a restored table does not have
    plain = lambda step: (*step[:2], tuple(item for item in step[2] if item[0] not in tables))
    assert {u: plain(s) for u, s in rest.items()} == {u: plain(s) for u, s in whole.items() if u >= min(rest)}
    assert min(rest) <= SAVED + 1


@pytest.mark.parametrize("name", CASES)
def test_the_table_is_learned_from_at_its_ratio(name: str) -> None:
    steps, _ = uninterrupted(name)
    algorithm = CASES[name]
    report = dict(steps[UPDATES][2])
    table = agent_of(algorithm).needs.table
    samples, ratio = UPDATES * table.batch_size, table.samples_per_insert
    assert ratio == 4.0, "DQN's own; or a gradient step of four transitions for each step"
    assert report["replay/samples"] == samples and report["replay/size"] <= 200
    owed = ratio * (report["replay/inserts"] - algorithm.replay.min_size)
    assert abs(samples - owed) <= ratio * 4 * algorithm.rollout_length + 2 * table.batch_size
    assert report["replay/inserts"] > 200, "old items went"


def test_a_trainer_restored_from_disk_goes_on_bit_for_bit(tmp_path: Any) -> None:
    options = dict(
        env=ENV, num_envs=4, rollout_length=4, batch_size=8, gradient_steps=2, network={"hidden": (4,)}, total_steps=10**5,
        replay={"capacity": 200, "min_size": 20, "selector": "prioritized"}, runs=str(tmp_path), eval_episodes=0,
        checkpoint_every=10**6,
    )  # fmt: skip
    with Trainer("dqn", **options, run="one") as one:
        follow(one, 50)
        path = one.save()
        rest = follow(one, 90)
    with Trainer("dqn", **options, run="two") as two:
        two.restore(path)
        assert follow(two, 90) == rest and len(rest) > 30


def follow(trainer: Trainer, updates: int) -> list[tuple[int, str]]:
    seen: dict[int, str] = {}
    while not seen or max(seen) < updates:
        progress = trainer.advance()
        seen[progress.updates] = digest(progress.params)
    return [(update, seen[update]) for update in sorted(seen) if update > 51]


def last(driver: Any, updates: int) -> Progress:
    for progress in driver:
        if progress.updates >= updates:
            return progress
    raise AssertionError("the driver ended")


def test_actor_learner_with_a_replay_learns_reports_its_edges_and_goes_on_after_a_snapshot() -> None:
    topology = ActorLearner(num_envs=4, collectors=2, groups=1, prefetch=1)
    driver = drive(topology, APEX)
    progress = last(driver, 40)
    edges = {edge.name for edge in topology.plan({"main": agent_of(APEX)}, envs.spec_of(ENV)).edges}
    assert {*progress.items} == edges == {"rollouts", "batches", "parameters", "priorities"}
    assert progress.report["replay/size"] > 40
    saved = checkpointed(progress.snapshot())
    updates, steps = int(saved["meters"]["updates"]), int(saved["meters"]["env_steps"])
    assert updates <= progress.updates + 3, "a drain finishes what was begun and samples nothing more"
    driver.close()
    inserts = int(saved["tables"]["table"]["table"]["limiter"]["inserts"])
    assert 0.8 * steps < inserts <= steps
    driver = drive(topology, APEX, snapshot=saved)
    progress = last(driver, updates + 20)
    assert progress.report["replay/inserts"] > inserts
    driver.close()


def test_a_drain_takes_no_batch_out_of_a_replay_when_nothing_is_on_its_way() -> None:
    """The table could be sampled for ever: a drain that fed the learner while it may would never end. Until the last rollout
    has come, it does, so that the learner need not wait."""
    driver = drive(ActorLearner(num_envs=4, collectors=1, groups=1, prefetch=1), APEX)
    progress = last(driver, 3)
    pipeline = progress.snapshot.__self__  # type: ignore[union-attr]
    table, busy = pipeline.tables["table"], []
    take, fleet = table.take, pipeline.parts.fleets["collector"]
    table.take = lambda: busy.append(bool(fleet.busy)) or take()
    assert table.table.limiter.can_sample(APEX.batch_size) and table.num_full == 0
    progress.snapshot()
    assert all(busy) and not pipeline.learning[0].calls and not fleet.busy
    driver.close()


@pytest.mark.parametrize("topology", [Sync(num_envs=4), ActorLearner(num_envs=4, groups=1)])
def test_a_table_that_fills_says_how_many_inserts_are_missing(topology: Any) -> None:
    driver = drive(topology, CASES["dqn"])
    progress = next(progress for progress in driver if progress.env_steps)
    assert progress.updates or "more inserts before the next sample" in (progress.waiting or "")
    assert progress.updates or f"of min_size {UNIFORM.min_size}" in (progress.waiting or "")
    driver.close()


def test_a_trainer_tells_of_a_stall_and_of_nothing_else(tmp_path: Any) -> None:
    options = dict(env=ENV, num_envs=4, network={"hidden": (4,)}, runs=str(tmp_path), eval_episodes=0, total_steps=10**6)
    with Trainer("dqn", **options, replay={"min_size": 10**5, "capacity": 10**5}) as trainer:
        trainer.advance()
        said = trainer.row().waiting
        assert said is not None and "of min_size 100,000" in said
        trainer._done = (-1, -1)  # as if both had gone on since the last row
        assert trainer.row().waiting is None


def test_the_graph_says_what_the_replay_takes() -> None:
    facts = Sync(num_envs=4).plan({"main": agent_of(CASES["rainbow"])}, envs.spec_of(ENV)).facts
    assert facts["replay"].startswith("200 steps in") and "prioritized" in facts["replay"]
    assert facts["steps per update"] == "2.0" and facts["samples per insert"] == "4"
    assert facts["policy lag"] == "as old as the replay"
