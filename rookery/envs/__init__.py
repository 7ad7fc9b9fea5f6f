"""Environments: `make(id, num_envs)` gives an EnvPool, whatever steps them.

| id | pool |
|---|---|
| a toy, e.g. `catch` | `toy_pool.ToyPool`: numpy, exact snapshots |
| `ALE/Pong-v5`, `PongNoFrameskip-v4` | `atari.AtariPool`: C++ threads |
| an id that Gymnasium steps as numpy arrays, e.g. `CartPole-v1` | `vectorised.VectorisedPool` |
| any other id, or a callable that returns a gymnasium.Env | `serial.SerialPool`: one after the other, in this process; |
| | or `process_pool.ProcessPool`: in worker processes, through shared memory |

Nothing here imports jax: a process that only steps environments starts in a fraction of a second.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, cast

import gymnasium

from rookery import spaces
from rookery.envs import nursery
from rookery.envs.atari import AtariPool, is_atari
from rookery.envs.choice import CannotMake, Choice, choose, measure
from rookery.envs.cores import usable_cores
from rookery.envs.mending import Mended, Mender
from rookery.envs.pool import EnvironmentFailed
from rookery.envs.process_pool import CannotTravel, ProcessPool
from rookery.envs.registry import EnvInfo, UnknownEnvironment, catalogue, find, missing_dependency
from rookery.envs.serial import SerialPool
from rookery.envs.toy_pool import ToyPool
from rookery.envs.toys import TOYS
from rookery.envs.vectorised import VectorisedPool, WrongAutoreset
from rookery.types import EnvPool, Spec

__all__ = [
    "EnvInfo", "EnvironmentFailed", "Mended", "Mender", "UnknownEnvironment", "catalogue", "chosen", "make", "spec_of",
]  # fmt: skip

EnvId = str | Callable[..., gymnasium.Env]
Processes = int | Literal["auto"]


def make(
    id: EnvId,
    num_envs: int,
    seed: int = 0,
    *,
    groups: int = 1,
    processes: Processes = 0,
    cores: int | None = None,
    step_seconds: float = 60.0,
    **options: Any,
) -> EnvPool:
    """A pool of `num_envs` environments in `groups` contiguous groups.

    `seed` is that of a `reset()` without one. `options` go to the toy, to `atari.AtariOptions`, to the callable,
    or to gymnasium.make. For environments that Python steps one by one: `processes` says in how many worker processes
    (0: in this one; "auto": measured, see `choice`), with `cores` for them (by default, those this process may use),
    and one that takes longer than `step_seconds` to answer is taken to hang.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    one_by_one = partial(
        _stepped_by_python, num_envs=num_envs, seed=seed, groups=groups, processes=processes, cores=cores,
        step_seconds=step_seconds,
    )  # fmt: skip
    if not isinstance(id, str):
        return one_by_one(partial(id, **options) if options else id, _name(id), key=_key(id, options))
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
        return one_by_one(partial(gymnasium.make, _lean(spec), **options), id, key=_key(id, options))
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise missing_dependency(id, error) from error


def spec_of(id: EnvId, *, processes: Processes = 0, **options: Any) -> Spec:
    """The canonical spaces of an environment (see rookery.spaces); makes one and closes it.

    With "auto", one that Python steps is made and tried in a process of its own: what exits or hangs there harms nobody.
    """
    if processes == "auto" and nursery.supported() and (factory := _factory(id, options)) is not None:
        with suppress(CannotTravel, CannotMake):  # then it is made here, which raises what it raises
            found = measure(factory, _name(id), _key(id, options)).probe
            return spaces.spec_of(found.observation, found.action, _name(id))
    pool = make(id, 1, **options)
    pool.close()
    return pool.spec


def chosen(id: EnvId, num_envs: int, groups: int, cores: int | None = None, **options: Any) -> Choice:
    """What `make(processes="auto")` takes, and why."""
    factory = _factory(id, options)
    if factory is None:
        return Choice(0, "it has a pool of its own")
    if not nursery.supported():
        return Choice(0, "worker processes need Linux")
    try:
        return choose(measure(factory, _name(id), _key(id, options)), num_envs, groups, cores or usable_cores())
    except CannotTravel as error:
        return Choice(0, str(error))


def _stepped_by_python(
    make_env: Callable[[], gymnasium.Env],
    id: str,
    *,
    key: Any,
    num_envs: int,
    seed: int,
    groups: int,
    processes: Processes,
    cores: int | None,
    step_seconds: float,
) -> EnvPool:
    if processes == "auto":
        processes = 0
        if nursery.supported():
            try:
                measured = measure(make_env, id, key)
                processes = choose(measured, num_envs, groups, cores or usable_cores()).processes
                for note in measured.probe.notes:
                    warnings.warn(note, stacklevel=3)
            except CannotTravel as error:
                warnings.warn(f"{error}. It is stepped in process", stacklevel=3)
            except CannotMake:
                pass  # made here, it raises what it raises
    if processes == 0:
        return SerialPool(make_env, num_envs, id=id, seed=seed, groups=groups)
    if not nursery.supported():
        raise ValueError(f"{processes} environment processes were asked for, but they need Linux: take 0")
    more: dict[str, Any] = {"seed": seed, "groups": groups, "step_seconds": step_seconds}
    return ProcessPool(make_env, num_envs, id=id, processes=processes, **more)


def _factory(id: EnvId, options: dict[str, Any]) -> Callable[[], gymnasium.Env] | None:
    """How Python makes one of them; None where another pool steps them all."""
    if not isinstance(id, str):
        return partial(id, **options) if options else id
    if id in TOYS or is_atari(id):
        return None
    spec = find(id)
    return None if _steps_as_numpy(spec) else partial(gymnasium.make, _lean(spec), **options)


def _lean(spec: gymnasium.envs.registration.EnvSpec) -> gymnasium.envs.registration.EnvSpec:
    """Without the wrappers that check what the pool checks anyway: every answer, and the order of the calls.

    The spec itself travels to worker processes, so that an id that the user's script registered is known there.
    """
    lean = copy.deepcopy(spec)
    lean.disable_env_checker, lean.order_enforce = True, False
    if isinstance(lean.entry_point, str) and lean.entry_point.startswith("__main__:"):
        lean.entry_point = cast(Any, gymnasium.envs.registration.load_env_creator(lean.entry_point))
    return lean


def _name(id: EnvId) -> str:
    return id if isinstance(id, str) else getattr(id, "__name__", type(id).__name__)


def _key(id: EnvId, options: dict[str, Any]) -> Any:
    return (id, repr(sorted(options.items()))) if isinstance(id, Hashable) else None


def _steps_as_numpy(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Those of phys2d are vectorised too, but with jax, which would come into every environment process."""
    return spec.vector_entry_point is not None and not str(spec.vector_entry_point).startswith("gymnasium.envs.phys2d")


def _make_vector(id: str, options: dict[str, Any], num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
