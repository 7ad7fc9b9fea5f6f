"""Trains rejax's PPO on a MinAtar game of gymnax, with the hyper-parameters of our preset, and prints one JSON line.

    python rejax_minatar.py Breakout-MinAtar --seed 0 --total-steps 2000000

For an environment of its own (rejax, "gymnax<1", six); nothing here imports Rookery. Its network is the only one rejax has:
two layers of 64 units over the flattened board. The return is that of 128 episodes after the last step, actions sampled.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version

import jax
from rejax import PPO

SETTINGS = {
    "num_envs": 64, "num_steps": 128, "num_epochs": 4, "num_minibatches": 8, "gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2,
    "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "normalize_observations": False,
}  # fmt: skip
RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-steps", type=int, default=2_000_000)
    words = parser.parse_args()
    batch = SETTINGS["num_envs"] * SETTINGS["num_steps"]
    steps = words.total_steps // batch * batch
    algorithm = PPO.create(
        env=words.env, learning_rate=RATE, total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True, **SETTINGS
    )
    started = time.perf_counter()
    _, (_, returns) = jax.block_until_ready(jax.jit(algorithm.train)(jax.random.PRNGKey(words.seed)))
    print(json.dumps({
        "peer": "rejax", "version": version("rejax"), "gymnax": version("gymnax"), "env": words.env, "seed": words.seed,
        "env_steps": steps, "seconds": round(time.perf_counter() - started, 1), "return_mean": float(returns[-1].mean()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
