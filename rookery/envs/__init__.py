"""Environments: `make(id, num_envs)` returns an EnvPool, whatever steps them. Three folders: `pools` step environments in this
process, `processes` in worker processes, `jax` in compiled programs.

| id | pool |
|---|---|
| a toy, e.g. `catch` | `pools/toy_pool.ToyPool`: numpy, exact snapshots |
| `jax:CartPole-v1`, `gymnax:`, `brax:`, `pgx:<id>`, or an object of theirs | `jax/pool.JaxPool`: one compiled call per group |
| `ALE/Pong-v5`, `PongNoFrameskip-v4` | `atari.AtariPool`: C++ threads |
| `envpool:<id>` | `pools/envpool_pool.EnvpoolPool`: EnvPool's C++ threads |
| an id that Gymnasium steps as numpy arrays, e.g. `CartPole-v1` | `pools/vectorised.VectorisedPool` |
| a class or a function that makes a gymnasium.vector.VectorEnv, or one | `pools/vectorised.VectorisedPool` |
| any other id, or a callable that returns a gymnasium.Env | `pools/serial.SerialPool`: one after the other, in this process; |
| | or `processes/process_pool.ProcessPool`: in worker processes, through shared memory |

`my_envs:Grid-v0` and `path/to/grid.py:GridEnv` import the module or the file first, and are then the id that it registered, or
the object of that name.

Nothing here imports jax, so that a process that only steps environments starts in a fraction of a second; the modules of
`envs/jax` do (all but `jax/sources`), and are imported when an environment written in JAX is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium

from rookery import spaces
from rookery.envs.atari import AtariPool, is_atari
from rookery.envs.jax.sources import Peeked, build, is_jax_id, kind_of
from rookery.envs.named import resolved
from rookery.envs.options import take_pixel_options, take_pool_options
from rookery.envs.pools.adapted import AdaptedPool, adapted_spec
from rookery.envs.pools.envpool_pool import EnvpoolPool
from rookery.envs.pools.pool import EnvironmentFailed, OnNan
from rookery.envs.pools.restarts import Incident, Restarts
from rookery.envs.pools.toy_pool import ToyPool
from rookery.envs.pools.vector_envs import Passed, WrongAutoreset, maker_of, single_spaces
from rookery.envs.pools.vectorised import VectorisedPool
from rookery.envs.processes.process_count import CannotMake, ProcessCount
from rookery.envs.python_envs import Placement, Processes, Source
from rookery.envs.registry import EnvInfo, UnknownEnvironment, catalogue, find, missing_dependency
from rookery.envs.rendering import CannotDraw
from rookery.envs.toys import TOYS
from rookery.types import EnvPool, Spec

__all__ = [
    "EnvInfo", "EnvironmentFailed", "Incident", "Processes", "Restarts", "UnknownEnvironment", "as_played", "catalogue",
    "chosen", "env_maker", "is_one_vector", "make", "resolved", "spec_of",
]  # fmt: skip

EnvId = str | Callable[..., gymnasium.Env] | Any  # Any: an environment written in JAX, see jax/sources.py


def make(
    id: EnvId,
    num_envs: int,
    seed: int = 0,
    *,
    groups: int = 1,
    processes: Processes = 0,
    cores: int | None = None,
    step_seconds: float = 60.0,
    on_nan: OnNan = "stop",
    max_mb: float | None = None,
    **options: Any,
) -> EnvPool:
    """Make a pool of `num_envs` environments in `groups` contiguous groups.

    `seed` is that of a `reset()` without one. Of `options`, those of `options.PoolOptions` (frame_stack, reward_clip ...)
    change what any pool answers, and the rest go to the toy, to `atari.AtariOptions`, to the callable,
    or to gymnasium.make. For environments that Python steps one by one: `processes` says in how many worker processes
    (0: in this one; "auto": measured, see `process_count`), with `cores` for them (by default, those this process may use),
    one that takes longer than `step_seconds` to answer is taken to hang, and a worker that grows beyond `max_mb` is replaced.
    `on_nan`: whether a number that is not finite fails ("stop"), cuts its episode ("drop-episode") or is replaced ("clip").
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    id = resolved(id)
    adaptation, rest = take_pool_options(id, options)
    where = Placement(processes, cores=cores, step_seconds=step_seconds, on_nan=on_nan, max_mb=max_mb)
    pool = _make(id, num_envs, rest, where, seed=seed, groups=groups)
    if isinstance(getattr(pool, "on_nan", None), str):  # of those that judge whole steps
        pool.on_nan = on_nan  # type: ignore[attr-defined]
    return pool if adaptation is None else AdaptedPool(pool, adaptation)


def as_played(id: EnvId, num_envs: int, **rest: Any) -> EnvPool:
    """Make a pool in this process that answers as its environments do. rest: what `take_pool_options` leaves of the options."""
    return _make(resolved(id), num_envs, rest, Placement(), seed=0, groups=1)


def spec_of(id: EnvId, *, processes: Processes = 0, **options: Any) -> Spec:
    """Return the canonical spaces of an environment (see rookery.spaces); makes one and closes it.

    With "auto", one that Python steps is made and tried in a process of its own: what exits or hangs there harms nobody.
    """
    id = resolved(id)
    adaptation, rest = take_pool_options(id, options)
    if isinstance(maker := maker_of(id, take_pixel_options(id, rest)[1]), Passed):
        spec = spaces.spec_of(*single_spaces(maker.env, type(id).__name__), type(id).__name__)
        return spec if adaptation is None else adapted_spec(spec, adaptation)
    if processes == "auto" and (source := _source(id, rest)) is not None:
        with suppress(CannotMake):  # then it is made here, and raises what it raises
            if (found := source.measured()) is not None:
                spec = spaces.spec_of(found.probe.observation, found.probe.action, source.name)
                return spec if adaptation is None else adapted_spec(spec, adaptation)
    pool = make(id, 1, **options)
    pool.close()
    return pool.spec


def is_one_vector(env: Any) -> bool:
    """Return whether it is a VectorEnv: an object, of which there is only one."""
    return isinstance(env, gymnasium.vector.VectorEnv)


def chosen(id: EnvId, num_envs: int, groups: int, cores: int | None = None, **options: Any) -> ProcessCount:
    """Return how many worker processes `make(processes="auto")` takes, and why."""
    id = resolved(id)
    source = _source(id, take_pool_options(id, options)[1])
    if source is None:
        return ProcessCount(0, False, "it has a pool of its own")
    return source.process_count(num_envs, groups, cores)


def env_maker(id: EnvId, **options: Any) -> Callable[[], gymnasium.Env] | None:
    """Return what makes one gymnasium.Env, where Python steps them one by one; None where another pool steps them all."""
    source = _source(id, take_pool_options(id, options)[1])
    return None if source is None else source.make_env


def _source(id: EnvId, options: dict[str, Any]) -> Source | None:
    """Return the factory of environments that Python steps one by one; None where another pool steps them all."""
    seen, options = take_pixel_options(id, options)
    if not isinstance(id, str):
        spec, apart = None, bool(kind_of(id) or maker_of(id, options))
    elif id in TOYS or is_jax_id(id) or id.startswith("envpool:"):
        spec, apart = None, True
    else:
        spec = find(id)
        apart = is_atari(id) or spec.entry_point is None or (seen is None and _steps_as_numpy(spec))
    if seen is not None and apart:
        raise CannotDraw(_why_not_seen(id, "pixels" if seen.size else "action_repeat"))
    return None if apart else Source(id, options, spec, seen)


def _why_not_seen(id: EnvId, option: str) -> str:
    name = id if isinstance(id, str) else getattr(id, "__name__", type(id).__name__)
    if isinstance(id, str) and is_atari(id):
        return f"{name!r} is seen by its frames as it is: for {option}, its own options are height, width and frame_skip"
    return (
        f"{name!r} is stepped as arrays, many at once: {option} is for environments that Python steps one by one, such as "
        "Gymnasium's and your own gymnasium.Env"
    )


def _make(id: EnvId, num_envs: int, options: dict[str, Any], where: Placement, *, seed: int, groups: int) -> EnvPool:
    common: dict[str, Any] = {"seed": seed, "groups": groups}
    seen, plain = take_pixel_options(id, options)
    if seen is not None and (source := _source(id, options)) is not None:
        try:
            return source.pool(num_envs, where, **common)
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise missing_dependency(source.name, error) from error
    options = plain
    if not isinstance(id, str):
        if kind_of(id):
            return _jax_pool(id, options, num_envs, **common)
        if (maker := maker_of(id, options)) is not None:
            name = getattr(id, "__name__", type(id).__name__)
            return VectorisedPool(maker, num_envs, id=name, checked=True, **common)
        return _from_callable(id, num_envs, options, where, common)
    if is_jax_id(id):
        return _jax_pool(id, options, num_envs, **common)
    if id.startswith("envpool:"):
        return EnvpoolPool(id, num_envs, **common, **options)
    if id in TOYS:
        return ToyPool(id, num_envs, **common, **options)
    spec = find(id)
    try:
        if is_atari(id):
            return AtariPool(id, num_envs, **common, **options)
        if _steps_as_numpy(spec):
            try:
                make_vector, own = partial(_make_vector, id, options), not _is_gymnasiums(spec)
                return VectorisedPool(make_vector, num_envs, id=id, checked=own, **common)
            except WrongAutoreset:
                if spec.entry_point is None:
                    raise
                # stepped one by one instead, where the resets are ours
        return Source(id, options, spec).pool(num_envs, where, **common)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise missing_dependency(id, error) from error


def _from_callable(factory: Any, num_envs: int, options: dict[str, Any], where: Placement, common: dict[str, Any]) -> EnvPool:
    """Make a pool for a callable. What it makes may be written in JAX and have a pool of its own: one is made to find out, in a
    process of its own where processes are to be chosen by measuring."""
    source = Source(factory, options)
    if where.processes == "auto":
        with suppress(CannotMake):
            if source.measured() is not None:
                return source.pool(num_envs, where, **common)
    if where.processes not in (0, "auto"):
        return source.pool(num_envs, where, **common)
    peeked = Peeked(factory, options)
    if kind_of(peeked.first):
        return _jax_pool(peeked.first, {}, num_envs, **common)
    return source.pool(num_envs, replace(where, processes=0), make_env=peeked, **common)


def _jax_pool(env: Any, options: dict[str, Any], num_envs: int, *, seed: int, groups: int) -> EnvPool:
    from rookery.envs.jax.pool import JaxPool  # imports jax

    return JaxPool(build(env, options), num_envs, seed=seed, groups=groups)


def _steps_as_numpy(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Return whether Gymnasium has a VectorEnv of numpy for it. phys2d's are of jax, which would come into every process."""
    return spec.vector_entry_point is not None and not str(spec.vector_entry_point).startswith("gymnasium.envs.phys2d")


def _is_gymnasiums(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return isinstance(spec.vector_entry_point, str) and spec.vector_entry_point.startswith("gymnasium.")


def _make_vector(id: str, options: dict[str, Any], num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
