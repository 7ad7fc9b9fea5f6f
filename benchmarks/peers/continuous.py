"""Trains SAC, TD3 or DDPG with SBX or stable-baselines3, and prints steps/s, or seconds to a return, as one JSON line.

    python continuous.py sbx sac HalfCheetah-v5 --seconds 15
    python continuous.py sb3 sac HalfCheetah-v5 --target 3000

For an environment of its own (torch, sbx-rl, stable-baselines3, gymnasium[mujoco]); nothing here imports Rookery. Both have
batches of 256, two layers of 256, a rate of 3e-4 and one gradient step for each environment step. Steps/s are those of a window
that opens 500 steps after learning has begun, when everything is compiled. With --target, learning begins after 10,000 steps,
as in the zoo's settings, and five greedy episodes are played every 5,000 steps until their mean reaches it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

BEGIN = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnRewardThreshold  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402

CAP_SECONDS = float(os.environ.get("PEER_CAP_S", 3600))  # gives up on the target then


class Window(BaseCallback):
    """Opens 500 steps after learning has begun, and ends training when it closes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.opened, self.steps, self.rate = seconds, 0.0, 0, 0.0

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if self.num_timesteps < self.model.learning_starts + 500:
            return True
        if not self.opened:
            self.opened, self.steps = now, self.num_timesteps
        if now - self.opened < self.seconds:
            return True
        self.rate = (self.num_timesteps - self.steps) / (now - self.opened)
        return False


class Clock(BaseCallback):
    def _on_step(self) -> bool:
        return time.perf_counter() - BEGIN < CAP_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=("sbx", "sb3"))
    parser.add_argument("algorithm", choices=("sac", "td3", "ddpg"))
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--burst", type=int, default=1, help="environment steps, and then as many gradient steps")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--target", type=float)
    words = parser.parse_args()
    torch.set_num_threads(words.threads if words.library == "sb3" else 1)
    if words.library == "sbx":
        import sbx as library
    else:
        import stable_baselines3 as library
    import_seconds = time.perf_counter() - BEGIN
    envs = make_vec_env(words.env, n_envs=1, seed=words.seed)
    settings: dict[str, Any] = dict(
        learning_rate=3e-4, buffer_size=1_000_000, learning_starts=1_000 if words.target is None else 10_000, batch_size=256,
        train_freq=words.burst, gradient_steps=words.burst, gamma=0.99, tau=0.005, policy_kwargs={"net_arch": [256, 256]},
    )  # fmt: skip
    if words.algorithm != "sac":
        size = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    if words.library == "sb3":
        settings["device"] = "cpu"
    model = getattr(library, words.algorithm.upper())("MlpPolicy", envs, seed=words.seed, **settings)
    told = {
        "peer": {"sbx": "sbx", "sb3": "stable-baselines3"}[words.library], "version": library.__version__,
        "algorithm": words.algorithm, "env": words.env, "seed": words.seed, "import_s": round(import_seconds, 2),
    }  # fmt: skip
    began = time.perf_counter()
    if words.target is None:
        window = Window(words.seconds)
        model.learn(10**7, callback=window)
        told |= {"steps_per_s": window.rate}
    else:
        reached = StopTrainingOnRewardThreshold(words.target)
        greedy = EvalCallback(
            make_vec_env(words.env, n_envs=1, seed=words.seed + 1000), callback_on_new_best=reached, n_eval_episodes=5,
            eval_freq=5_000, verbose=0, warn=False,
        )  # fmt: skip
        model.learn(10**7, callback=[greedy, Clock()])
        seconds = time.perf_counter() - began
        found = greedy.best_mean_reward >= words.target
        told |= {"time_to_target_s": seconds if found else None, "best": float(greedy.best_mean_reward)}
    print(json.dumps(told | {"env_steps": model.num_timesteps}))


if __name__ == "__main__":
    main()
