"""Files as users have them: an environment, a network, an algorithm, in a directory of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GRID = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class GridEnv(gymnasium.Env):
    """Walk to the corner."""

    def __init__(self, size=3):
        self.observation_space, self.action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(4)
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.integers(self.size, size=2), 0
        return self.see(), {}

    def step(self, action):
        self.at = np.clip(self.at + ((0, 1), (1, 0), (0, -1), (-1, 0))[action], 0, self.size - 1)
        self.steps += 1
        there = bool((self.at == 0).all())
        return self.see(), float(there), there, self.steps == 8, {}

    def see(self):
        return (self.at / (self.size - 1)).astype(np.float32)


def make_grid(size=3):
    return GridEnv(size)
'''
REGISTERED = GRID + '''

gymnasium.register("Grid-v0", entry_point=f"{__name__}:GridEnv", max_episode_steps=5)
'''
NETWORK = '''
import jax
import jax.numpy as jnp


def init(key, observation):
    return {"weight": jax.random.normal(key, (observation.reshape(len(observation), -1).shape[-1], 8))}


def apply(params, observation):
    return jnp.tanh(observation.reshape(len(observation), -1) @ params["weight"])


def small():
    return init, apply
'''


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@contextmanager
def forgotten() -> Iterator[None]:
    """Leave sys.path, the modules and the registered environments as they were."""
    import gymnasium

    from rookery import references

    path, modules, ids = list(sys.path), set(sys.modules), set(gymnasium.registry)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith("/tmp"):
                del sys.modules[name]
        for id in set(gymnasium.registry) - ids:
            del gymnasium.registry[id]
        references.forget()
