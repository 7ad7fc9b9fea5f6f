"""An environment of your own, trained with PPO: any gymnasium.Env class (or function that makes one) goes in as `env=`.

    python examples/custom_environment.py
    rookery train ppo --env examples/custom_environment.py:Lamp --env-options change_probability=0.5

The lamp: a light is red or green, sometimes it changes, and the lever that matches its colour pays. The observation is a
dict of a category and a vector, to show that nothing needs flattening.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import rookery


class Lamp(gymnasium.Env):
    """16 steps; 1 for the lever that matches the light, so that a perfect episode returns 16."""

    def __init__(self, change_probability: float = 0.3) -> None:
        self.observation_space = spaces.Dict({"light": spaces.Discrete(2), "noise": spaces.Box(-1, 1, (2,))})
        self.action_space = spaces.Discrete(2, start=1)  # levers 1 and 2: actions arrive as the space says
        self.change_probability = change_probability

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)  # seeds self.np_random; Rookery gives every environment a seed of its own
        self.light, self.steps = int(self.np_random.integers(2)), 0
        return self.see(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        reward = float(action == self.light + 1)
        if self.np_random.random() < self.change_probability:
            self.light = 1 - self.light
        self.steps += 1
        terminated, truncated = False, self.steps == 16  # the lamp never ends by itself: its value is bootstrapped
        return self.see(), reward, terminated, truncated, {}

    def see(self) -> dict[str, Any]:
        return {"light": self.light, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


def main(total_steps: int = 20_000, runs: str = "runs") -> rookery.Result:
    result = rookery.train(
        "ppo", env=Lamp, env_options={"change_probability": 0.5}, total_steps=total_steps, runs=runs,
        num_envs=16, rollout_length=16, learning_rate=3e-3, network={"hidden": (32,)},
    )  # fmt: skip
    print(f"greedy episodes return {result.metrics['eval_return_mean']:.1f} of 16")

    env, memory, total = Lamp(), None, 0.0  # the policy acts in the environment as it is, outside of any training
    observation, _ = env.reset(seed=1)
    for _ in range(16):
        action, memory = result.policy(observation, memory)
        observation, reward, *_ = env.step(action)
        total += float(reward)
    print(f"played by hand: {total:.0f} of 16; the run is in {result.run}")
    return result


if __name__ == "__main__":
    main()
