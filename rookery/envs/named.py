"""Find an environment by a reference: `my_envs:Grid-v0` in a module, `path/to/grid.py:GridEnv` in a file."""

from __future__ import annotations

from typing import Any

import gymnasium

from rookery import references
from rookery.envs.jax.sources import kind_of
from rookery.envs.registry import UnknownEnvironment


def resolved(id: Any) -> Any:
    """Import what a reference names: `my_envs:Grid-v0` is the id that the module registers, `grid.py:GridEnv` the object.

    Anything else is returned as it is."""
    if not references.is_reference(id):
        return id
    before = set(gymnasium.registry)
    module, name = references.module_of(id), references.name_in(id)
    if name in gymnasium.registry:
        return name
    try:
        found = references.attribute(module, id)
    except references.BadReference:
        known = [*references.names(module), *_registered_by(module.__name__, before)]
        raise UnknownEnvironment(f"{references.where(module)} has no {name!r}: {references.near(name, known)}") from None
    if isinstance(found, gymnasium.Env):
        raise UnknownEnvironment(
            f"{id!r} is one {type(found).__name__}, and a run makes as many as it needs: name its class, or a function "
            "that makes one"
        )
    if not (callable(found) or kind_of(found) or isinstance(found, gymnasium.vector.VectorEnv)):
        raise UnknownEnvironment(f"{id!r} is a {type(found).__name__}: an environment's class, or a function that makes one")
    return found


def _registered_by(module: str, before: set[str]) -> list[str]:
    """List the ids that a module registers, or whose environments are in it."""
    entry = lambda spec: getattr(spec.entry_point, "__module__", None) or str(spec.entry_point).partition(":")[0]
    return [id for id, spec in gymnasium.registry.items() if id not in before or entry(spec) == module]
