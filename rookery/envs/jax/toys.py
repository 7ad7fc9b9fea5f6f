"""Rookery's own environments written in JAX: CartPole, Pendulum, and two of the numpy toys by the same rules and options.

`CartPole-v1` is Gymnasium's (Euler steps, failure beyond 12 degrees or 2.4 units, cut after 500 steps) in float32, and so is
`Pendulum-v1` (cut after 200 steps).
`catch` and `cue-recall` take their spaces and options from `toys.Catch` and `toys.CueRecall`; only their random numbers
differ from the numpy ones. Every state counts its own steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gs

from rookery.envs.jax.env import JaxEnv, JaxStep, canonical_env
from rookery.envs.pools.pool import read_options
from rookery.envs.toys import Catch, CueRecall
from rookery.types import Array


@dataclass(frozen=True, kw_only=True)
class CartPole:
    """Balance a pole on a cart by pushing it left or right; 1 per step."""

    max_steps: int = 500  # truncated after so many
    sutton_barto_reward: bool = False  # 0 per step and -1 at the fall instead


class CartPoleState(NamedTuple):
    physics: Array  # [4] float32: position, speed, angle, angular speed
    time: Array


def cartpole(options: CartPole) -> JaxEnv:
    gravity, cart, pole, half_length, push, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    limit = np.array([2.4, np.inf, 12 * 2 * math.pi / 360, np.inf], np.float32)

    def reset(key: Array) -> tuple[CartPoleState, Array]:
        physics = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return CartPoleState(physics, jnp.int32(0)), physics

    def step(state: CartPoleState, action: Array, key: Array) -> tuple[CartPoleState, JaxStep]:
        _, speed, angle, spin = state.physics
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        inward = (jnp.where(action == 1, push, -push) + pole * half_length * spin**2 * sine) / (cart + pole)
        spin_rate = (gravity * sine - cosine * inward) / (half_length * (4.0 / 3.0 - pole * cosine**2 / (cart + pole)))
        acceleration = inward - pole * half_length * spin_rate * cosine / (cart + pole)
        physics = state.physics + seconds * jnp.stack([speed, acceleration, spin, spin_rate])
        fallen = (jnp.abs(physics) > limit).any()
        reward = jnp.where(fallen, -1.0, 0.0) if options.sutton_barto_reward else 1.0
        after = CartPoleState(physics, state.time + 1)
        return after, JaxStep(physics, reward, fallen, after.time >= options.max_steps)

    bound = np.where(np.isinf(limit), np.inf, 2 * limit).astype(np.float32)
    return canonical_env(gs.Box(-bound, bound, dtype=np.float32), gs.Discrete(2), "jax:CartPole-v1", reset=reset, step=step)


@dataclass(frozen=True, kw_only=True)
class Pendulum:
    """Swing a pendulum up and hold it, with a torque that is too weak to lift it; continuous."""

    max_steps: int = 200  # truncated after so many
    g: float = 10.0  # gravity


class PendulumState(NamedTuple):
    angle: Array  # 0: upright
    speed: Array
    time: Array


def pendulum(options: Pendulum) -> JaxEnv:
    fastest, strongest, seconds, mass, length = 8.0, 2.0, 0.05, 1.0, 1.0

    def observe(state: PendulumState) -> Array:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed]).astype(jnp.float32)

    def reset(key: Array) -> tuple[PendulumState, Array]:
        angle, speed = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0) * jnp.array([math.pi, 1.0])
        state = PendulumState(angle, speed, jnp.int32(0))
        return state, observe(state)

    def step(state: PendulumState, action: Array, key: Array) -> tuple[PendulumState, JaxStep]:
        torque = jnp.clip(action[0], -strongest, strongest)
        from_top = (state.angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_top**2 + 0.1 * state.speed**2 + 0.001 * torque**2
        pulled = 3 * options.g / (2 * length) * jnp.sin(state.angle) + 3.0 / (mass * length**2) * torque
        speed = jnp.clip(state.speed + pulled * seconds, -fastest, fastest)
        after = PendulumState(state.angle + speed * seconds, speed, state.time + 1)
        return after, JaxStep(observe(after), -cost, False, after.time >= options.max_steps)

    high = np.array([1.0, 1.0, fastest], np.float32)
    torques = gs.Box(-strongest, strongest, (1,), np.float32)
    return canonical_env(gs.Box(-high, high, dtype=np.float32), torques, "jax:Pendulum-v1", reset=reset, step=step)


class CatchState(NamedTuple):
    column: Array  # of the ball
    row: Array
    paddle: Array  # column of the paddle


def catch(toy: Catch) -> JaxEnv:
    bright = 255 if toy.dtype == "uint8" else 1

    def observe(state: CatchState) -> Array:
        board = jnp.zeros((toy.rows, toy.columns), toy.dtype)
        return board.at[state.row, state.column].set(bright).at[toy.rows - 1, state.paddle].set(bright)

    def reset(key: Array) -> tuple[CatchState, Array]:
        column = jax.random.randint(key, (), 0, toy.columns)
        state = CatchState(column, jnp.int32(0), jnp.int32(toy.columns // 2))
        return state, observe(state)

    def step(state: CatchState, action: Array, key: Array) -> tuple[CatchState, JaxStep]:
        paddle = jnp.clip(state.paddle + action - 1, 0, toy.columns - 1)
        after = CatchState(state.column, state.row + 1, paddle)
        landed = after.row >= toy.length
        reward = jnp.where(landed, jnp.where(paddle == state.column, 1.0, -1.0), 0.0)
        return after, JaxStep(observe(after), reward, landed, False)

    return canonical_env(toy.observation, toy.action, "jax:catch", reset=reset, step=step)


class CueRecallState(NamedTuple):
    cue: Array
    waited: Array


def cue_recall(toy: CueRecall) -> JaxEnv:
    def observe(state: CueRecallState) -> Array:
        shown = (jnp.arange(toy.cues) == state.cue) & (state.waited == 0)
        return jnp.append(shown, state.waited == toy.delay).astype(jnp.float32)

    def reset(key: Array) -> tuple[CueRecallState, Array]:
        state = CueRecallState(jax.random.randint(key, (), 0, toy.cues), jnp.int32(0))
        return state, observe(state)

    def step(state: CueRecallState, action: Array, key: Array) -> tuple[CueRecallState, JaxStep]:
        reward = (state.waited == toy.delay) & (action == state.cue)
        after = CueRecallState(state.cue, state.waited + 1)
        return after, JaxStep(observe(after), reward, after.waited >= toy.length, False)

    return canonical_env(toy.observation, toy.action, "jax:cue-recall", reset=reset, step=step)


_MAKERS: dict[str, tuple[type, Callable[[Any], JaxEnv]]] = {
    "CartPole-v1": (CartPole, cartpole),
    "Pendulum-v1": (Pendulum, pendulum),
    "catch": (Catch, catch),
    "cue-recall": (CueRecall, cue_recall),
}


def toy_env(name: str, options: dict[str, Any]) -> JaxEnv:
    """Make the environment `jax:<name>`."""
    cls, maker = _MAKERS[name]
    return maker(read_options(cls, f"jax:{name}", options))
