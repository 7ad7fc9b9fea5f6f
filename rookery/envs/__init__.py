"""Environments: `make(id, num_envs)` gives an EnvPool, whatever steps them.

| id | pool |
|---|---|
| a toy, e.g. `catch` | `toy_pool.ToyPool`: numpy, exact snapshots |
| `jax:CartPole-v1`, `gymnax:`, `brax:`, `pgx:<id>`, or an object of theirs | `jax_pool.JaxPool`: one compiled call per group |
| `ALE/Pong-v5`, `PongNoFrameskip-v4` | `atari.AtariPool`: C++ threads |
| `envpool:<id>` | `envpool_pool.EnvpoolPool`: EnvPool's C++ threads |
| an id that Gymnasium steps as numpy arrays, e.g. `CartPole-v1` | `vectorised.VectorisedPool` |
| any other id, or a callable that returns a gymnasium.Env | `serial.SerialPool`: one after the other |

Nothing here imports jax, a process that only steps environments starts in a fraction of a second; the `jax_*` modules that
do are imported when such an environment is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from rookery.envs.adapted import AdaptedPool
from rookery.envs.atari import AtariPool, is_atari
from rookery.envs.envpool_pool import EnvpoolPool
from rookery.envs.jax_sources import Peeked, build, is_jax_id, kind_of
from rookery.envs.options import take_pool_options
from rookery.envs.pool import EnvironmentFailed
from rookery.envs.registry import EnvInfo, UnknownEnvironment, catalogue, find, missing_dependency
from rookery.envs.serial import SerialPool
from rookery.envs.toy_pool import ToyPool
from rookery.envs.toys import TOYS
from rookery.envs.vectorised import VectorisedPool, WrongAutoreset
from rookery.types import EnvPool, Spec

__all__ = ["EnvInfo", "EnvironmentFailed", "UnknownEnvironment", "catalogue", "make", "spec_of"]

EnvId = str | Callable[..., gymnasium.Env] | Any  # Any: an environment written in JAX, see jax_sources


def make(id: EnvId, num_envs: int, seed: int = 0, *, groups: int = 1, **options: Any) -> EnvPool:
    """A pool of `num_envs` environments in `groups` contiguous groups.

    `seed` is that of a `reset()` without one. Of `options`, those of `options.PoolOptions` (frame_stack, reward_clip ...)
    change what any pool answers, and the rest go to the toy, to `atari.AtariOptions`, to the callable,
    or to gymnasium.make.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    adaptation, rest = take_pool_options(id, options)
    if adaptation is not None:
        return AdaptedPool(make(id, num_envs, seed, groups=groups, **rest), adaptation)
    if not isinstance(id, str):
        name = getattr(id, "__name__", type(id).__name__)
        if kind_of(id):
            return _jax_pool(id, options, num_envs, seed=seed, groups=groups)
        make_env = Peeked(id, options)
        if kind_of(make_env.first):
            return _jax_pool(make_env.first, {}, num_envs, seed=seed, groups=groups)
        return SerialPool(make_env, num_envs, id=name, seed=seed, groups=groups)
    if is_jax_id(id):
        return _jax_pool(id, options, num_envs, seed=seed, groups=groups)
    if id.startswith("envpool:"):
        return EnvpoolPool(id, num_envs, seed=seed, groups=groups, **options)
    if id in TOYS:
        return ToyPool(id, num_envs, seed=seed, groups=groups, **options)
    spec = find(id)
    try:
        if is_atari(id):
            return AtariPool(id, num_envs, seed=seed, groups=groups, **options)
        if _steps_as_numpy(spec):
            make_vector = partial(_make_vector, id, options)
            try:
                return VectorisedPool(make_vector, num_envs, id=id, seed=seed, groups=groups)
            except WrongAutoreset:
                pass  # stepped one by one instead, where the resets are ours
        # The checker of gymnasium.make warns at the first steps only and costs at each: the pool checks every answer.
        make_one = partial(gymnasium.make, id, disable_env_checker=True, **options)
        return SerialPool(make_one, num_envs, id=id, seed=seed, groups=groups)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise missing_dependency(id, error) from error


def spec_of(id: EnvId, **options: Any) -> Spec:
    """The canonical spaces of an environment (see rookery.spaces); makes one and closes it."""
    pool = make(id, 1, **options)
    pool.close()
    return pool.spec


def _jax_pool(env: Any, options: dict[str, Any], num_envs: int, *, seed: int, groups: int) -> EnvPool:
    from rookery.envs.jax_pool import JaxPool  # imports jax

    return JaxPool(build(env, options), num_envs, seed=seed, groups=groups)


def _steps_as_numpy(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Those of phys2d are vectorised too, but with jax, which would come into every environment process."""
    return spec.vector_entry_point is not None and not str(spec.vector_entry_point).startswith("gymnasium.envs.phys2d")


def _make_vector(id: str, options: dict[str, Any], num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
