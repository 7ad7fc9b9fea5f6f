"""BellmanUpdaters: every step accounted for, exact shares of logged experience, labels as the learner would compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from rookery import envs
from rookery.algorithms.qt_opt import QTOpt
from rookery.algorithms.sac import SAC
from rookery.data import arrays
from rookery.data.config import ReplayBuffer, ReplayConfig, TableSpec
from rookery.data.demonstrations import Demonstrations, gather
from rookery.data.interface import Part
from rookery.data.refined import Refined, RefinedBatch
from rookery.networks import NetworkConfig
from rookery.run import demonstrations
from rookery.runtime.local import LocalRuntime
from rookery.testing import check_topology, checkpointed, ledger_agent
from rookery.topologies.bellman_updaters import BellmanUpdaters
from rookery.topologies.job import Job, Progress
from rookery.topologies.plan import MAIN
from rookery.types import Agent, Batch, Needs, PyTree, Rollout
from rookery.workers.learning.refiner import joined

ENV = "point-reach"
TINY = QTOpt(
    rollout_length=2, batch_size=8, gradient_steps=2, update_ratio=0.5, samples=8, elites=2, random_steps=40,
    network=NetworkConfig(hidden=(8,), activation="relu"), replay=ReplayBuffer(capacity=400, min_size=40),
)  # fmt: skip


def agent_of(algorithm: Any) -> Agent:
    return algorithm.build(envs.spec_of(ENV), num_updates=100)


def drive(topology: Any, agent: Agent, *, snapshot: PyTree | None = None, **job: Any) -> Any:
    make = lambda num_envs, groups: envs.make(ENV, num_envs, groups=groups)
    return topology.drive(Job(agent, envs.spec_of(ENV), make, LocalRuntime(), 0, **job), snapshot)


def after(driver: Iterator[Progress], updates: int) -> Progress:
    return next(progress for progress in driver if progress.updates >= updates)


@pytest.fixture(scope="module")
def logged() -> Demonstrations:
    rng = np.random.default_rng(0)
    act = lambda now: rng.uniform(-1, 1, (5, 2)).astype(np.float32)
    return gather(demonstrations.play(ENV, act, episodes=5), envs.spec_of(ENV))


# ------------------------------------------------------------------------------------------------------ the ledger


def test_every_step_is_accounted_for_whoever_is_slow_or_lost() -> None:
    """Batches of a replay, refined: counters are held against what was played, edges against the plan."""
    table = TableSpec(ReplayConfig(capacity=300, min_size=20, samples_per_insert=2.0), 8)
    agent = ledger_agent(envs=64)._replace(
        needs=Needs(3, 0.5, replay=True, table=table), refine=lambda params, slow, batch, key: batch
    )
    topology: Any = BellmanUpdaters(num_envs=4, collectors=2, updaters=2, uses=2)
    check_topology(topology, agent=agent, losses=("collector", "updater"), exact=False)


def test_a_resumed_run_goes_on_with_the_same_ledger_and_logged_experience(logged: Demonstrations) -> None:
    topology, agent = BellmanUpdaters(num_envs=4, collectors=2, uses=2), agent_of(dataclasses.replace(TINY, demo_ratio=0.5))
    driver = drive(topology, agent, shown=logged)
    progress = after(driver, 12)
    assert set(progress.items) == {edge.name for edge in topology.plan({MAIN: agent}, envs.spec_of(ENV)).edges}
    assert progress.items["from_replay"] == progress.items["from_logged"] >= progress.items["labels"]
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    driver.close()
    meters, tables = saved["meters"], saved["tables"]
    assert 2 * int(tables["labelled"]["refined"]) == int(tables["labelled"]["learned"]) == int(meters["updates"])
    inserted = int(tables["replay"]["table"]["limiter"]["inserts"])
    assert int(meters["env_steps"]) - 4 <= inserted <= int(meters["env_steps"]), "what is not stored yet waits in its lane"
    driver = drive(topology, agent, snapshot=saved, shown=logged)
    first = next(driver)
    assert (first.env_steps, first.updates) >= (int(meters["env_steps"]), int(meters["updates"]))
    assert after(driver, int(meters["updates"]) + 6).report["logged/samples"] > float(
        tables["logged"]["items"]["limiter"]["samples"]
    )
    driver.close()


# ------------------------------------------------------------------------------------------------------ two sources


def test_columns_of_several_batches_are_spread_evenly_and_keep_what_belongs_together() -> None:
    for counts in ((4, 4), (6, 2), (7, 1), (3, 9, 4)):
        order = arrays.spread_evenly(counts)
        source = np.repeat(np.arange(len(counts)), counts)[order]
        assert sorted(order) == [*range(sum(counts))]
        for which, count in enumerate(counts):
            behind = np.cumsum(source == which) - count * np.arange(1, len(order) + 1) / len(order)
            assert np.abs(behind).max() <= 1.0, "any piece has the share of the whole, to a column"

    def batch(first: int, columns: int) -> Batch:
        number = first + np.arange(columns, dtype=np.float32)
        rows = lambda count: np.repeat(number[None], count, 0)
        rollout = Rollout({"a": rows(2)[..., None]}, rows(1), rows(1), rows(1), rows(1), {}, (), rows(1), number, number)
        return Batch(rollout, number, number.astype(np.int64))

    made = joined([batch(0, 6), batch(100, 2)])
    assert made.key.tolist() == [0, 1, 100, 2, 3, 4, 101, 5]
    for leaf in jax.tree.leaves(made):
        assert (leaf.reshape(-1, 8) == made.key[None]).all()


@pytest.mark.parametrize("ratio, logged_columns", [(0.25, 4), (0.5, 8), (0.7, 11)])
def test_each_labelled_batch_has_the_exact_share_of_logged_experience(
    ratio: float, logged_columns: int, logged: Demonstrations
) -> None:
    agent, seen = agent_of(dataclasses.replace(TINY, demo_ratio=ratio)), []  # type: Agent, list[Any]

    def learn(state: Any, batch: Batch, key: Any) -> Any:
        jax.debug.callback(lambda version, target: seen.append((version, target)), batch.rollout.version,
                           batch.rollout.extras["target"])  # fmt: skip
        return agent.learn(state, batch, key)

    driver = drive(BellmanUpdaters(num_envs=4), agent._replace(learn=learn), shown=logged)
    progress = after(driver, 6)
    jax.effects_barrier()
    driver.close()
    for version, target in seen:
        shown = np.asarray(version)[0] < 0
        assert shown.sum() == logged_columns and abs(int(shown[:8].sum()) - logged_columns / 2) <= 1, "and so has each piece"
        assert np.isfinite(target).all()
    assert len(seen) >= 6 and progress.report["logged/samples"] / progress.report["replay/samples"] == pytest.approx(
        logged_columns / (16 - logged_columns)
    )


@pytest.mark.parametrize("uses, ratio", [(1, 0.0), (3, 0.5)])
def test_gradient_steps_follow_what_was_collected_whatever_is_logged_and_however_often_labels_are_used(
    uses: int, ratio: float, logged: Demonstrations
) -> None:
    """Two gradient steps an update, half of one for each environment step: four steps an update, once the warm-up is over."""
    agent = agent_of(dataclasses.replace(TINY, demo_ratio=ratio))
    topology = BellmanUpdaters(num_envs=4, uses=uses)
    assert topology.plan({MAIN: agent}, envs.spec_of(ENV)).facts["steps per update"] == "4.0"
    driver = drive(topology, agent, shown=logged if ratio else None)
    progress = after(driver, 60)
    driver.close()
    behind = topology.slots() * uses + uses * 8  # labelled, or owed by the limiter's error buffer
    assert abs((progress.env_steps - 40) / 4 - progress.updates) <= behind


def test_keys_of_a_refined_batch_go_back_to_the_table_that_they_came_from(logged: Demonstrations) -> None:
    prioritized = dataclasses.replace(TINY.replay, selector="prioritized")
    agent = agent_of(dataclasses.replace(TINY, demo_ratio=0.25, replay=prioritized))
    driver = drive(BellmanUpdaters(num_envs=4), agent, shown=logged)
    progress = after(driver, 8)
    assert progress.snapshot is not None
    saved = progress.snapshot()
    driver.close()
    assert progress.items["priorities_replay"] == progress.items["priorities_logged"] == progress.updates
    for table in (saved["tables"]["replay"]["table"], saved["tables"]["logged"]["items"]):
        assert int(table["ignored_updates"]) == 0
        live = table["items"]["_priority"][table["items"]["_live"]]
        assert len(np.unique(live)) > 5, "learned from, and weighed anew"


# -------------------------------------------------------------------------------------------------------- the labels


def test_a_labelled_batch_knows_how_old_its_targets_were_and_how_old_they_are() -> None:
    table = Refined(slots=3, uses=2)
    parts = [table.claim() for _ in range(3)]
    assert table.claim() is None, "no more than there is room for"
    for part, version, age in zip(parts, (5, 5, 7), (1, 1, 4)):
        assert part is not None
        table.commit(Part(part.slot, part.place, RefinedBatch(Batch(None, None, None), version, 0.1, age)))  # type: ignore[arg-type]
    assert table.metrics()["refined/target_age"] == 2.0 and table.metrics()["refined/versions"] == 2.0
    for newest in (6, 8, 9, 10, 11, 12):  # each batch twice, in turns
        taken = table.take()
        assert taken is not None
        table.used(taken.slot, newest)
        table.release(taken.slot)
    assert table.take() is None
    told = table.metrics()
    assert told["refined/lag_mean"] == np.mean([1, 3, 2, 5, 6, 5]) and told["refined/lag_max"] == 6.0


# ------------------------------------------------------------------------------------------------------- what is refused


def test_what_cannot_be_driven_is_refused_with_a_reason() -> None:
    assert "no targets that others could compute" in (BellmanUpdaters().refuses(SAC().build(envs.spec_of(ENV)), None) or "")  # type: ignore[arg-type]
    assert BellmanUpdaters().refuses(agent_of(TINY), envs.spec_of(ENV)) is None
    for ratio in (0.01, 0.99):
        with pytest.raises(ValueError, match=f"--demo-ratio {ratio:g} of 16 columns: each table gives at least one"):
            BellmanUpdaters().plan({MAIN: agent_of(dataclasses.replace(TINY, demo_ratio=ratio))}, envs.spec_of(ENV))
