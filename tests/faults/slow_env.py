"""Environments that take their time, known to gymnasium once this is imported: Slow-v0 and Hanging-v0."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Slow(gymnasium.Env):
    """Says nothing and gives nothing; after its first FAST steps each takes `seconds`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._steps = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        time.sleep(self._seconds if self._steps > FAST else 0)
        return np.zeros(2, np.float32), 0.0, False, False, {}


FAST = 20
gymnasium.register("Slow-v0", entry_point=Slow, kwargs={"seconds": 0.5})
gymnasium.register("Hanging-v0", entry_point=Slow, kwargs={"seconds": 3600.0})
