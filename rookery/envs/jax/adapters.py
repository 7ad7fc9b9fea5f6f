"""Environments of gymnax, brax and pgx, by their interfaces, as `JaxEnv`: without their auto-reset.

- gymnax: `reset_env` and `step_env`, which do not reset. Its one `done` is truncation when the time limit is reached and the
  episode would go on with the clock set back, else termination.
- brax: the plain environment (an `EpisodeWrapper` or `AutoResetWrapper` around it is taken off); `done` is termination,
  and an episode is truncated after `episode_length` steps.
- pgx: games of one player. `legal_action_mask` becomes `action_mask` beside the observation, so that an illegal action, which
  would end the game, is never chosen.

They were written for raw uint32 keys, so that is what they are given.
"""

from __future__ import annotations

import importlib
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gs

from rookery.envs.jax.env import JaxEnv, JaxStep, canonical_env
from rookery.trees import tree_map
from rookery.types import Array, PyTree


def known_ids(package: str) -> list[str]:
    if package == "gymnax":
        return list(importlib.import_module("gymnax").registered_envs)
    if package == "brax":
        return list(importlib.import_module("brax.envs")._envs)
    return list(importlib.import_module("pgx").available_envs())


def from_id(id: str, options: dict[str, Any]) -> JaxEnv:
    """Make `<package>:<name>`; options go to the package's own constructor, those of gymnax's params and ours go there."""
    package, _, name = id.partition(":")
    if package == "gymnax":
        make = importlib.import_module("gymnax").make
        params = make(name)[1]
        mine = {key: value for key, value in options.items() if key in _field_names(params)}
        env, params = make(name, **{key: value for key, value in options.items() if key not in mine})
        return gymnax_env(env, params.replace(**mine), id)
    if package == "brax":
        own = {key: value for key, value in options.items() if key != "episode_length"}
        env = importlib.import_module("brax.envs").get_environment(name, **own)
        return brax_env(env, id, episode_length=options.get("episode_length", 1000))
    return pgx_env(importlib.import_module("pgx").make(name, **options), id)


def from_object(env: Any, kind: str, options: dict[str, Any]) -> JaxEnv:
    """Wrap an environment that the user made; `options` are gymnax's params or brax's `episode_length`."""
    given, params = env if isinstance(env, tuple) else (env, None)
    name = getattr(given, "name", None) or getattr(given, "id", None)
    id = f"{kind}:{name if isinstance(name, str) else type(given).__name__}"
    if kind == "gymnax":
        params = given.default_params if params is None else params
        return gymnax_env(given, params.replace(**_only(options, _field_names(params), id)), id)
    if kind == "brax":
        return brax_env(given, id, **_only(options, ("episode_length",), id))
    _only(options, (), id)
    return pgx_env(given, id)


# -------------------------------------------------------------------------------------------------------- gymnax


def gymnax_env(env: Any, params: Any, id: str) -> JaxEnv:
    limit = getattr(params, "max_steps_in_episode", None)

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        observation, state = env.reset_env(_raw(key), params)
        return state, observation

    def step(state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, JaxStep]:
        observation, state, reward, done, _ = env.step_env(_raw(key), state, action, params)
        truncated = jnp.asarray(False)
        if limit is not None and hasattr(state, "time"):
            set_back = state.replace(time=jnp.zeros_like(state.time))
            truncated = done & (state.time >= limit) & ~env.is_terminal(set_back, params)
        return state, JaxStep(observation, reward, done & ~truncated, truncated)

    seen, does = _gymnasium_space(env.observation_space(params)), _gymnasium_space(env.action_space(params))
    return canonical_env(seen, does, id, reset=reset, step=step)


def _gymnasium_space(space: Any) -> gs.Space:
    """Convert a space: gymnax's have the names and attributes of gymnasium's, which are taken as they are."""
    if isinstance(space, gs.Space):
        return space
    kind = type(space).__name__
    if kind == "Discrete":
        return gs.Discrete(int(space.n))
    if kind == "Box":
        shape, dtype = tuple(np.atleast_1d(space.shape).tolist()) if space.shape != () else (), np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound), shape).astype(dtype) for bound in (space.low, space.high))
        return gs.Box(low, high, shape=shape, dtype=dtype.type)
    if kind == "Dict":
        return gs.Dict({key: _gymnasium_space(sub) for key, sub in space.spaces.items()})
    if kind == "Tuple":
        return gs.Tuple([_gymnasium_space(sub) for sub in space.spaces])
    raise TypeError(f"a gymnax space {kind} cannot become an array: Box, Discrete, Dict and Tuple can")


# ---------------------------------------------------------------------------------------------------------- brax


def brax_env(env: Any, id: str, *, episode_length: int = 1000) -> JaxEnv:
    while type(env).__name__ in ("EpisodeWrapper", "AutoResetWrapper"):
        env = env.env
    if getattr(env, "batch_size", None) or type(env).__name__ == "VmapWrapper":
        raise ValueError(f"{id!r} is a batch of environments already: pass a single one (batch_size=None)")

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        state = env.reset(_raw(key))
        return (state, jnp.int32(0)), state.obs

    def step(carry: PyTree, action: PyTree, key: Array) -> tuple[PyTree, JaxStep]:
        state, time = carry
        state, time = env.step(state, action), time + 1
        return (state, time), JaxStep(state.obs, state.reward, state.done > 0.5, time >= episode_length)

    shown = jax.eval_shape(reset, jax.random.key(0))[1]
    box = lambda leaf: gs.Box(-np.inf, np.inf, tuple(leaf.shape), np.float32)
    space = gs.Dict(tree_map(box, dict(shown))) if isinstance(shown, dict) else box(shown)
    return canonical_env(space, gs.Box(-1, 1, (env.action_size,), np.float32), id, reset=reset, step=step)


# ----------------------------------------------------------------------------------------------------------- pgx


def pgx_env(env: Any, id: str) -> JaxEnv:
    if env.num_players != 1:
        raise ValueError(
            f"{id!r} is a game of {env.num_players} players, and Rookery plays those of one so far: "
            "make the opponent part of the environment"
        )

    def show(state: Any) -> PyTree:
        return {"action_mask": state.legal_action_mask, "observation": state.observation}

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        state = env.init(_raw(key))
        return state, show(state)

    def step(state: Any, action: PyTree, key: Array) -> tuple[PyTree, JaxStep]:
        state = env.step(state, action, _raw(key))
        return state, JaxStep(show(state), state.rewards[0], state.terminated, state.truncated)

    shown = jax.eval_shape(reset, jax.random.key(0))[1]["observation"]
    dtype = np.dtype(shown.dtype)
    low, high = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf) if dtype.kind == "f" else _range(dtype)
    space = {"action_mask": gs.MultiBinary(env.num_actions), "observation": gs.Box(low, high, shown.shape, dtype.type)}
    return canonical_env(gs.Dict(space), gs.Discrete(env.num_actions), id, reset=reset, step=step)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


# ------------------------------------------------------------------------------------------------------- options


def _raw(key: Array) -> Array:
    return jax.random.PRNGKey(jax.random.bits(key, (), jnp.uint32))


def _field_names(params: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(params)) if is_dataclass(params) else ()


def _only(options: dict[str, Any], known: tuple[str, ...], id: str) -> dict[str, Any]:
    for name in options:
        if name not in known:
            raise ValueError(f"{id!r} has no option {name!r}: its options are {', '.join(known) or 'none'}")
    return options
