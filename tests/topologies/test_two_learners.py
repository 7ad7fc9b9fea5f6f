"""TwoLearners on a simulated clock: rates apart, staleness, losses, resuming; and exact resume of the joint form on Sync."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from rookery import envs
from rookery.algorithms.sac import SAC
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig
from rookery.networks.config import ViewsConfig
from rookery.run.assemble import assemble
from rookery.run.config import ConfigError, resolve
from rookery.runtime.local import LocalRuntime
from rookery.testing import LockstepRuntime, Seconds, checkpointed, kill_every, paced
from rookery.topologies.job import Job, Progress
from rookery.topologies.sync import Sync
from rookery.topologies.two_learners import TwoLearners
from rookery.types import Agent, PyTree

BATCH, SIDE = 4, 8
CURL = SAC(
    batch_size=BATCH, gradient_steps=1, update_ratio=0.5, random_steps=20, network=NetworkConfig(hidden=(4,)),
    replay=ReplayBuffer(capacity=200, min_size=20), views=ViewsConfig(kind="shift"), contrastive_every=1,
)  # fmt: skip
SPEC = envs.spec_of("pixel-reach", side=SIDE)


@cache
def agent() -> Agent:
    return CURL.build(SPEC)


def drive(topology: Any, runtime: Any, snapshot: PyTree | None = None) -> Iterator[Progress]:
    make = lambda num_envs, groups: envs.make("pixel-reach", num_envs, groups=groups, side=SIDE)
    return topology.drive(Job(agent(), SPEC, make, runtime, 0), snapshot)


def paces(learner: float, beside: float) -> Seconds:
    """Seconds per update, and per gradient of the other loss; to apply one takes no time."""
    paced_roles = paced({"learner": learner, "auxiliary_learner": beside, "collector": 0.1})
    return lambda call: 0.0 if call.method == "absorb" else paced_roles(call)


def after(driver: Iterator[Progress], updates: int) -> Progress:
    return next(progress for progress in driver if progress.updates >= updates)


def test_each_learner_has_its_own_rate_and_gradients_are_as_old_as_the_slower_one_makes_them() -> None:
    topology = TwoLearners(num_envs=2, auxiliary_ratio=None)
    progress = after(drive(topology, LockstepRuntime(paces(1.0, 3.0))), 30)
    report = progress.report
    assert {*progress.items} == {edge.name for edge in topology.plan({"main": agent()}, SPEC).edges}
    assert report["auxiliary_updates"] == progress.items["gradients"] == pytest.approx(30 / 3, abs=2)
    assert 3.0 <= report["staleness_mean"] <= 3.0 + topology.prefetch + 1, "made in three updates, applied after those in line"
    assert 0 < report["loss/contrastive"] < 2 * np.log(BATCH) and report["auxiliary_updates_per_s"] > 0
    assert report["replay/samples"] <= (progress.updates + 2) * BATCH, "what is drawn beside is not counted"


@pytest.mark.parametrize("ratio, made", [(0.0, 0), (0.5, 15), (2.0, 60)])
def test_the_ratio_is_the_number_of_gradients_for_each_update(ratio: float, made: int) -> None:
    progress = after(drive(TwoLearners(num_envs=2, auxiliary_ratio=ratio), LockstepRuntime(paces(1.0, 0.1))), 30)
    assert progress.items.get("gradients", 0) == pytest.approx(made, abs=(2 + 0.1 * made) if ratio else 0)


def test_a_gradient_that_is_too_old_is_discarded_and_counted() -> None:
    topology = TwoLearners(num_envs=2, auxiliary_ratio=None, max_staleness=1)
    progress = after(drive(topology, LockstepRuntime(paces(1.0, 4.0))), 20)
    assert progress.items.get("gradients", 0) == 0 and progress.items["drawn"] >= 3
    assert np.array_equal(*(state.params["contrastive"]["bilinear"] for state in (progress, agent().init(jax.random.key(0)))))


def test_training_goes_on_while_auxiliary_learners_are_killed() -> None:
    topology = TwoLearners(num_envs=2, auxiliary_workers=2, auxiliary_ratio=None)
    runtime = LockstepRuntime(paces(1.0, 0.5), dies=kill_every(4, "auxiliary_learner"))
    driver = drive(topology, runtime)
    progress = after(driver, 40)
    assert progress.workers["auxiliary_learners_lost"] >= 3 and progress.workers["auxiliary_learners"] >= 1
    assert progress.items["gradients"] > 10
    assert progress.snapshot is not None and progress.snapshot()["lives"]["auxiliary_learner"] != [0, 0]


def test_a_snapshot_drains_both_learners_and_the_run_goes_on_from_it() -> None:
    topology = TwoLearners(num_envs=2, auxiliary_ratio=1.0)
    driver = drive(topology, LockstepRuntime(paces(1.0, 0.7)))
    progress = after(driver, 15)
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    drawn, applied = (int(saved["meters"]["items"][name]) for name in ("drawn", "gradients"))
    assert drawn == applied >= 10, "each gradient that was asked for is applied"
    driver = drive(topology, LockstepRuntime(paces(1.0, 0.7)), saved)
    progress = after(driver, int(saved["meters"]["updates"]) + 10)
    assert progress.items["gradients"] == pytest.approx(progress.updates, abs=3)
    assert progress.report["staleness_max"] >= saved["beside"]["auxiliary_learner"]["oldest"]


def test_what_has_no_auxiliary_loss_is_refused_with_what_has() -> None:
    plain = SAC(network=NetworkConfig(hidden=(4,))).build(SPEC)
    said = TwoLearners().refuses(plain, SPEC)
    assert said is not None and "use Sync" in said and "--contrastive-every 1" in said
    assert TwoLearners().refuses(agent(), SPEC) is None


@pytest.mark.parametrize("option", ["learners", "devices"])
def test_gradients_beside_are_taken_by_one_learner_on_one_device(option: str) -> None:
    with pytest.raises(ConfigError, match="one learner on one device takes gradients of an auxiliary loss; use Sync"):
        assemble(resolve("async-curl-sac", env="pixel-reach", **{option: 2}))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- the joint form


def digests(until: int, *, save_at: int | None = None, snapshot: PyTree | None = None) -> tuple[dict[int, str], PyTree]:
    """Hash the parameters after each update of a run on Sync."""
    found: dict[int, str] = {}
    saved, driver = None, drive(Sync(num_envs=2), LocalRuntime(), snapshot)
    for progress in driver:
        if progress.snapshot is None or progress.updates in found:
            continue
        leaves = jax.tree.leaves(progress.params)
        found[progress.updates] = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        if progress.updates == save_at:
            saved = checkpointed(progress.snapshot())
        if progress.updates >= until:
            break
    driver.close()  # type: ignore[attr-defined]
    return found, saved


def test_the_joint_form_is_resumed_bit_for_bit() -> None:
    whole, saved = digests(12, save_at=6)
    rest, _ = digests(12, snapshot=saved)
    assert len({*whole.values()}) > 10
    assert {update: value for update, value in rest.items() if update > 6} == {u: v for u, v in whole.items() if u > 6}
