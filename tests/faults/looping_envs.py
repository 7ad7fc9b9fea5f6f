"""Environments that never get far: they exit, raise or hang. Registered by importing the module."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gs


class Looping(gymnasium.Env):
    """Does `ending` at its step `at`; "nothing" plays episodes of 20 steps."""

    observation_space = gs.Box(-1, 1, (2,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, ending: str = "exit", at: int = 3) -> None:
        self.ending, self.at, self.steps = ending, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps % self.at == 0:
            if self.ending == "exit":
                os._exit(9)
            if self.ending == "raise":
                raise OSError("the simulator is gone")
            while self.ending == "hang":
                time.sleep(1)
        return np.zeros(2, np.float32), 1.0, self.ending == "nothing" and self.steps % 20 == 0, False, {}


gymnasium.register("Looping-v0", Looping)


class Leaking(gymnasium.Env):
    """Keeps `megabytes` of every step; episodes have 10 steps. Shows its process and the number of the step."""

    observation_space = gs.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, megabytes: float = 2.0) -> None:
        self.kept: list[np.ndarray] = []
        self.megabytes, self.steps = megabytes, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([os.getpid(), 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.kept.append(np.ones(int(self.megabytes * 125_000)))
        return np.array([os.getpid(), self.steps], np.float32), 1.0, False, self.steps == 10, {}


class Infinite(Looping):
    """Shows or pays what is not finite at its step `at`; episodes have 20 steps."""

    def __init__(self, where: str = "observation", what: float = float("nan"), at: int = 7) -> None:
        super().__init__("nothing", at)
        self.where, self.what = where, what

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        if self.steps % self.at == 0:
            observation, reward = (np.array([0, self.what], np.float32), reward) if self.where == "observation" else (
                observation, self.what
            )  # fmt: skip
        return observation, reward, *rest


gymnasium.register("Leaking-v0", Leaking)
gymnasium.register("Infinite-v0", Infinite)
