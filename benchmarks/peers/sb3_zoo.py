"""Trains stable-baselines3 with the settings of its zoo, and prints the mean return of greedy episodes as one JSON line.

    python sb3_zoo.py ppo Hopper-v5 --seed 0

For an environment of its own (torch, stable-baselines3, gymnasium[box2d,mujoco]); nothing here imports Rookery. The settings
are those of rl-baselines3-zoo's hyperparams/*.yml for the -v2, -v3 and -v4 of these environments; of SAC and TD3, which it
trains for a million steps, the first 300,000.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

WIDE = {
    "log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}  # fmt: skip
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ZOO = {  # (algorithm, environment): steps, environments, normalised, settings
    ("a2c", "LunarLander-v3"): (200_000, 8, False, dict(gamma=0.995, n_steps=5, learning_rate="falls 0.00083", ent_coef=1e-5)),
    ("dqn", "LunarLander-v3"): (100_000, 1, False, dict(
        learning_rate=6.3e-4, batch_size=128, buffer_size=50_000, learning_starts=0, gamma=0.99, target_update_interval=250,
        train_freq=4, gradient_steps=-1, exploration_fraction=0.12, exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [256, 256]},
    )),
    ("ppo", "HalfCheetah-v5"): (1_000_000, 1, True, dict(
        batch_size=64, n_steps=512, gamma=0.98, learning_rate=2.0633e-05, ent_coef=0.000401762, clip_range=0.1, n_epochs=20,
        gae_lambda=0.92, max_grad_norm=0.8, vf_coef=0.58096, policy_kwargs=WIDE,
    )),
    ("ppo", "Hopper-v5"): (1_000_000, 1, True, dict(
        batch_size=32, n_steps=512, gamma=0.999, learning_rate=9.80828e-05, ent_coef=0.00229519, clip_range=0.2, n_epochs=5,
        gae_lambda=0.99, max_grad_norm=0.7, vf_coef=0.835671, policy_kwargs=WIDE,
    )),
    ("ppo", "Walker2d-v5"): (1_000_000, 1, True, dict(
        batch_size=32, n_steps=512, gamma=0.99, learning_rate=5.05041e-05, ent_coef=0.000585045, clip_range=0.1, n_epochs=20,
        gae_lambda=0.95, max_grad_norm=1.0, vf_coef=0.871923,
    )),
    **{("sac", env): (300_000, 1, False, dict(learning_starts=10_000)) for env in MUJOCO},
    **{("td3", env): (300_000, 1, False, dict(
        learning_starts=10_000, action_noise=0.1, train_freq=1, gradient_steps=1, learning_rate=1e-3, batch_size=256,
        policy_kwargs={"net_arch": [400, 300]},
    )) for env in MUJOCO},
}  # fmt: skip
CLASSES = {"a2c": A2C, "dqn": DQN, "ppo": PPO, "sac": SAC, "td3": TD3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-steps", type=int, help="instead of the zoo's")
    parser.add_argument("--episodes", type=int, default=20)
    words = parser.parse_args()
    torch.set_num_threads(1)
    steps, num_envs, normalised, settings = ZOO[words.algorithm, words.env]
    steps, settings = words.total_steps or steps, dict(settings)
    if isinstance(settings.get("learning_rate"), str):
        first = float(settings["learning_rate"].split()[1])
        settings["learning_rate"] = lambda left: left * first
    envs = make_vec_env(words.env, n_envs=num_envs, seed=words.seed)
    if normalised:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    if "action_noise" in settings:
        size = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), settings["action_noise"] * np.ones(size))
    model = CLASSES[words.algorithm]("MlpPolicy", envs, seed=words.seed, device="cpu", **settings)
    started = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - started
    last = float(np.mean([episode["r"] for episode in model.ep_info_buffer]))
    if normalised:
        envs.training, envs.norm_reward = False, False
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=words.episodes, return_episode_rewards=True)
    print(json.dumps({
        "peer": "stable-baselines3", "version": stable_baselines3.__version__, "gymnasium": gymnasium.__version__,
        "algorithm": words.algorithm, "env": words.env, "seed": words.seed, "env_steps": steps, "seconds": round(seconds, 1),
        "eval_return_mean": float(np.mean(returns)), "return_mean": last,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
