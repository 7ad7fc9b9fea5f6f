"""Learners that are Ray actors: rollouts do not pass through the driver, and a killed rank does not end the run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")

from rookery import Trainer
from rookery.data import arrays
from rookery.workers.acting.shapes import rollout_specs

pytestmark = pytest.mark.usefixtures("cluster")


def options(runs: Path) -> dict[str, Any]:
    return dict(
        env="CartPole-v1", runtime="ray", num_envs=8, collectors=2, groups=1, rollout_length=64, network={"hidden": (2,)},
        runs=str(runs), eval_episodes=0, total_steps=10**7, checkpoint_every=10**6,
    )  # fmt: skip


def pids(trainer: Trainer) -> dict[str, int]:
    return {handle.name: handle.ready.result(60)[1] for handle in trainer._runtime._handles if "learner" in handle.name}


def test_a_killed_rank_is_replaced_and_rollouts_do_not_pass_through_the_driver(tmp_path: Path) -> None:
    system = dict(learners=2, rollouts_per_batch=3)  # the second rank has columns of two rollouts, and so has the first
    with Trainer("impala", **options(tmp_path), **system, run="many") as trainer:
        while trainer.advance().updates < 3:
            pass
        rollout = arrays.nbytes(rollout_specs(trainer.agent, trainer.spec, 4))
        runtime, begin = trainer._runtime, trainer.progress
        fetched = runtime.fetched_bytes
        while trainer.advance().updates < begin.updates + 10:
            pass
        moved = trainer.progress.items["rollouts"] - begin.items["rollouts"]
        came = runtime.fetched_bytes - fetched
        assert moved >= 10 and came < 0.25 * moved * rollout, f"{came} bytes came here, of {moved} rollouts of {rollout} bytes"
        first = pids(trainer)
        os.kill(first["learner-1"], signal.SIGKILL)
        killed, version = time.monotonic(), trainer.progress.version
        while trainer.advance().workers["learners_lost"] == 0:
            assert time.monotonic() - killed < 30, "by the error of its call, not by a time-out"
        while trainer.advance().updates < version + 5:
            assert trainer.progress.version >= version
        second = pids(trainer)
        assert set(first) == set(second) and not set(first.values()) & set(second.values())
        path = trainer.save()
        saved = trainer.progress
        assert saved.workers["rollouts_lost"] == 0
    here = dict(runtime="local", rollouts_per_batch=system["rollouts_per_batch"])
    with Trainer("impala", **options(tmp_path) | here, run="again") as trainer:
        trainer.restore(path)  # with the parts of a batch that was not full, which lay elsewhere
        while trainer.advance().updates < saved.updates + 3:
            pass
        assert trainer.progress.env_steps >= saved.env_steps


def test_one_learner_elsewhere_learns_from_a_replay_as_one_here_does(tmp_path: Path) -> None:
    """A replay stays with the driver: its batches are put once for each rank."""
    small = options(tmp_path) | {"rollout_length": 4, "num_envs": 4, "batch_size": 8, "gradient_steps": 1, "collectors": 1}
    small["replay"] = {"min_size": 32, "capacity": 1000}
    seen: dict[int | None, list[np.ndarray]] = {}
    for learners in (None, 1):
        with Trainer("dqn", **small, learners=learners, run=f"of-{learners}") as trainer:
            while trainer.advance().updates < 5:
                pass
            seen[learners] = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.progress.params)]
    for here, there in zip(seen[None], seen[1]):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6)
