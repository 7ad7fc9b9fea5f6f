"""Small environments with the interfaces of gymnax, brax and pgx: each counts its steps, and ends after `limit` of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def struct(cls):
    """A frozen dataclass that is a pytree, with `replace`."""
    cls = dataclass(frozen=True)(cls)
    cls.replace = replace
    names = tuple(cls.__dataclass_fields__)
    jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=())
    return cls


@struct
class GymnaxState:
    total: Any
    time: Any


@dataclass(frozen=True)
class GymnaxParams:
    max_steps_in_episode: int = 6
    limit: float = 4.0
    replace = replace


class Box:
    def __init__(self, low, high, shape):
        self.low, self.high, self.shape, self.dtype = low, high, shape, jnp.float32


class FakeGymnax:
    """Adds the action to a total; over when it exceeds `limit`; `step` and `reset` would reset by themselves."""

    name = "Sum-v0"
    default_params = GymnaxParams()

    def observation_space(self, params):
        return Box(-np.inf, np.inf, (2,))

    def action_space(self, params):
        return Box(-1.0, 1.0, (1,))

    def reset_env(self, key, params):
        state = GymnaxState(jax.random.uniform(key, (), minval=0.0, maxval=0.1), 0)
        return self.show(state), state

    def step_env(self, key, state, action, params):
        state = GymnaxState(state.total + action[0], state.time + 1)
        return self.show(state), state, action[0], self.is_terminal(state, params), {}

    def is_terminal(self, state, params):
        return (state.total > params.limit) | (state.time >= params.max_steps_in_episode)

    def show(self, state):
        return jnp.array([state.total, state.time])

    def reset(self, *_):
        raise AssertionError("the wrapper that resets by itself was called")

    step = reset


@struct
class BraxState:
    obs: Any
    reward: Any
    done: Any


class FakeBrax:
    observation_size, action_size = 1, 2

    def reset(self, rng):
        return BraxState(jax.random.uniform(rng, (1,)), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        obs = state.obs + 1
        return state.replace(obs=obs, reward=action.sum(), done=jnp.where(obs[0] > 7, 1.0, 0.0))


@struct
class PgxState:
    observation: Any
    rewards: Any
    terminated: Any
    truncated: Any
    legal_action_mask: Any


class FakePgx:
    """Two of four actions are legal; an illegal one ends the game with -1, as in pgx."""

    id, num_actions = "pick", 4

    def __init__(self, num_players=1):
        self.num_players = num_players

    def init(self, key):
        legal = jnp.zeros(4, bool).at[jax.random.permutation(key, 4)[:2]].set(True)
        return PgxState(legal.reshape(2, 2), jnp.zeros(1), jnp.asarray(False), jnp.asarray(False), legal)

    def step(self, state, action, key):
        good = state.legal_action_mask[action]
        after = self.init(key)
        return after.replace(rewards=jnp.where(good, 1.0, -1.0)[None], terminated=~good)
