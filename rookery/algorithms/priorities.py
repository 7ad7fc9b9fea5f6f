"""Priorities of single transitions: |n-step error|, first by the collector that played them, then by the learner."""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery import ops
from rookery.data import columns
from rookery.types import Array, Rollout

PRIORITY_FLOOR = 1e-6  # an item must stay reachable


def first_priorities(rollout: Rollout, value: np.ndarray, config: Any) -> np.ndarray:
    """Compute |n-step error| [T, B]; value [T + 1, B]: of the best action, as the collector saw it."""
    reward, clip = rollout.reward, config.reward_clip
    reward = reward if clip is None else np.clip(reward, -clip, clip)
    total, discount, span = columns.n_step(
        reward=reward, discount=rollout.discount, valid=rollout.valid, gamma=config.discount, n=config.n_step,
        count=len(reward),
    )  # fmt: skip
    after = np.take_along_axis(value, np.arange(len(reward))[:, None] + span, 0)
    return counted(np.abs(total + discount * after - rollout.extras["q"]), rollout) + PRIORITY_FLOOR


def counted(error: Array, rollout: Rollout) -> Array:
    """Set errors [T, B] to 0 where nothing is learned from a row."""
    return error if ops.all_alike(rollout) else error * (rollout.weight > 0)
