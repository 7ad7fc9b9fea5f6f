"""The replay on the device gives n-step transitions of what it holds, each as often as any other, and nothing that it lost."""

from __future__ import annotations

import numpy as np
import pytest

from rookery import ops
from rookery.data import columns
from rookery.data.config import ReplayConfig, TableSpec
from rookery.types import Rollout
from rookery.workers.compiled import ring

B, T, GAMMA = 3, 4, 0.9


def history(rows: int) -> dict[str, np.ndarray]:
    """[rows, B]: observations that tell where they are from; every fifth row or so leads to a new episode."""
    rng = np.random.default_rng(0)
    valid = (rng.random((rows, B)) > 0.2).astype(np.float32)
    return {
        "observation": 10.0 * np.arange(rows + 1)[:, None] + np.arange(B)[None],
        "reward": rng.normal(size=(rows, B)) * 2.0,
        "discount": (rng.random((rows, B)) > 0.1) * 1.0,
        "valid": valid,
    }


def rollout(data: dict[str, np.ndarray], number: int) -> Rollout:
    at = slice(number * T, (number + 1) * T)
    cut = {name: data[name][at].astype(np.float32) for name in ("reward", "discount", "valid")}
    observation = data["observation"][number * T : (number + 1) * T + 1].astype(np.float32)
    action = data["observation"][at].astype(np.int32)
    version = np.full((T, B), number, np.int32)
    return Rollout(observation=observation, action=action, **cut, extras={}, memory=(), version=version, stream=(), step=())


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_what_is_drawn_is_a_transition_of_what_is_held(n_step: int, clip: float | None) -> None:
    table = TableSpec(ReplayConfig(capacity=3 * T * B), batch_size=4_000, n_step=n_step, reward_clip=clip)
    rows = ring.num_rows(table, num_envs=B, rollout_length=T)
    data = history(5 * T)
    held = ring.empty(rollout(data, 0), rows)
    for number in range(5):  # the first two are overwritten
        held = ring.write(held, rollout(data, number), np.int32(number * T))
    batch = ring.sample(held, np.int32(5 * T), ops.random.key(0), table=table, gamma=GAMMA).rollout
    reward = data["reward"] if clip is None else np.clip(data["reward"], -clip, clip)
    total, discount, span = columns.n_step(
        reward=reward.astype(np.float32), discount=data["discount"], valid=data["valid"], gamma=GAMMA, n=n_step
    )
    where = np.asarray(batch.action)[0]
    row, env = where // 10, where % 10
    assert row.min() == 2 * T and row.max() == 5 * T - 1 - n_step and set(env) == set(range(B))
    np.testing.assert_array_equal(batch.valid[0], span[row, env] > 0)
    kept = np.asarray(batch.valid[0]) > 0
    np.testing.assert_allclose(np.asarray(batch.reward)[0][kept], total[row, env][kept], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(batch.discount)[0][kept], discount[row, env][kept], rtol=1e-5)
    np.testing.assert_array_equal(batch.observation, 10 * np.stack([row, row + span[row, env]]) + env)
    np.testing.assert_array_equal(batch.version[0], row // T)
    counts = np.bincount((row - 2 * T) * B + env)
    assert abs(counts / counts.mean() - 1).max() < 0.3, "each as often as any other"


def test_a_ring_holds_whole_rollouts_and_refuses_to_be_too_small() -> None:
    size = lambda capacity, n_step=1: ring.num_rows(
        TableSpec(ReplayConfig(capacity=capacity), batch_size=1, n_step=n_step), num_envs=B, rollout_length=T
    )
    assert size(3 * T * B + 11) == 3 * T
    with pytest.raises(ValueError, match=r"use --replay.capacity 24 or more"):
        size(2 * T * B - 1)
    with pytest.raises(ValueError, match=r"too small"):
        size(2 * T * B, n_step=T)
