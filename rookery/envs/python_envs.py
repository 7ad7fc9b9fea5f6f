"""Make pools of environments that Python steps one by one, in this process or in worker processes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rookery.envs.gym_envs import MakeEnv
from rookery.envs.pixels import PixelOptions, make_seen
from rookery.envs.pools.pool import OnNan
from rookery.envs.pools.serial import SerialPool
from rookery.envs.processes import fork_server
from rookery.envs.processes.cores import usable_cores
from rookery.envs.processes.mailbox import CannotTravel
from rookery.envs.processes.process_count import CannotMake, Measured, ProcessCount, choose, measure
from rookery.envs.processes.process_pool import ProcessPool
from rookery.types import EnvPool

Processes = int | Literal["auto"]


@dataclass(frozen=True)
class Placement:
    """Where Python's environments are stepped: in how many worker processes, on how many cores, within which limits."""

    processes: Processes = 0  # worker processes. 0: in this one; "auto": measured
    here: bool = False  # this process steps a share too
    apart: bool = False  # each group in processes of its own
    cores: int | None = None  # by default, those that this process may use
    step_seconds: float = 60.0
    on_nan: OnNan = "stop"  # what is done about numbers that are not finite
    max_mb: float | None = None  # of a worker process: a larger one is replaced at an episode's end


class Source:
    """One kind of environment: a callable, or an id of Gymnasium's, with its options."""

    def __init__(
        self, id: str | Callable[..., gymnasium.Env], options: dict[str, Any], spec: EnvSpec | None = None,
        seen: PixelOptions | None = None,
    ) -> None:  # fmt: skip
        """seen: by rendered frames, or with repeated actions; None: as it is."""
        self.name = id if isinstance(id, str) else getattr(id, "__name__", type(id).__name__)
        creator: Any = id if spec is None else partial(gymnasium.make, _lean(spec))
        self.make_env: MakeEnv = partial(creator, **options) if options else creator
        if seen is not None:
            self.make_env = partial(make_seen, creator, seen, options, self.name)
        self._key = (id, repr(sorted(options.items())), str(seen)) if isinstance(id, Hashable) else None
        self._travels = True
        self._found: Measured | None = None

    def measured(self) -> Measured | None:
        """Try one in a process of its own, once, and return what was found; None where that cannot be done.

        One that raises when it is made raises CannotMake; one that exits or hangs there, EnvironmentFailed.
        """
        if self._found is None and self._travels and fork_server.supported():
            try:
                self._found = measure(self.make_env, self.name, self._key)
            except CannotTravel as error:
                self._travels = False
                warnings.warn(f"{error}. It is stepped in process", stacklevel=4)
        return self._found

    def process_count(self, num_envs: int, groups: int, cores: int | None) -> ProcessCount:
        found = self.measured()
        if found is None:
            return ProcessCount(0, False, "it cannot be made in another process")
        return choose(found, num_envs, groups, cores or usable_cores())

    def pool(self, num_envs: int, where: Placement, *, seed: int, groups: int, make_env: MakeEnv | None = None) -> EnvPool:
        """Make a pool. make_env: used instead of the source's own where they are stepped in this process."""
        processes, here = where.processes, where.here
        if processes == "auto":
            try:
                found = self.measured()
                processes, here, _ = self.process_count(num_envs, groups, where.cores) if found else ProcessCount(0, False, "")
                for note in found.probe.notes if found else ():
                    warnings.warn(note, stacklevel=4)
            except CannotMake:
                processes = 0  # made here, it raises what it raises
        if processes == 0:
            if where.max_mb is not None:
                said = f"{self.name!r} is stepped in process, where --env-max-mb {where.max_mb:g} can replace nothing"
                warnings.warn(f"{said}: --env-processes 1", stacklevel=4)
            return SerialPool(
                make_env or self.make_env, num_envs, id=self.name, seed=seed, groups=groups, on_nan=where.on_nan
            )
        if not fork_server.supported():
            raise ValueError(f"{processes} environment processes were asked for, but they need Linux: take 0")
        return ProcessPool(
            self.make_env, num_envs, id=self.name, processes=processes, here=here, apart=where.apart, seed=seed, groups=groups,
            step_seconds=where.step_seconds, on_nan=where.on_nan, max_mb=where.max_mb,
        )  # fmt: skip


def _lean(spec: EnvSpec) -> EnvSpec:
    """Return the spec without the wrappers that check what the pool checks anyway: every answer, and the order of the calls.

    The spec itself travels to worker processes, so that an id that the user's script registered is known there.
    """
    lean = copy.deepcopy(spec)
    lean.disable_env_checker, lean.order_enforce = True, False
    if isinstance(lean.entry_point, str) and lean.entry_point.startswith("__main__:"):
        lean.entry_point = cast(Any, load_env_creator(lean.entry_point))
    return lean
