"""Where environments written in JAX come from: ids, and objects that look like gymnax's, brax's or pgx's.

| given | is |
|---|---|
| `jax:CartPole-v1`, `jax:Pendulum-v1`, `jax:catch`, `jax:cue-recall` | Rookery's own |
| `gymnax:<id>`, `brax:<id>`, `pgx:<id>` | made by that package, if it is installed |
| an object with `reset_env` and `step_env`, or (that, its params) | as gymnax has them |
| an object with `init`, `step` and `num_players` | as pgx has them |
| an object with `reset`, `step`, `observation_size` and `action_size` | as brax has them |
| a `JaxEnv` | itself |

Nothing here imports jax: a process that steps other environments must not pay for it. `build` does, late.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import gymnasium

from rookery.envs.registry import JAX_IDS, UnknownEnvironment

if TYPE_CHECKING:
    from rookery.envs.jax.env import JaxEnv

PACKAGES = ("gymnax", "brax", "pgx")


def is_jax_id(id: str) -> bool:
    """Return whether an id names an environment written in JAX."""
    return id.partition(":")[0] in ("jax", *PACKAGES) and ":" in id


def kind_of(value: Any) -> str | None:
    """Return whose interface it has: "ours", "gymnax", "pgx" or "brax"; None for anything else, e.g. a gymnasium.Env."""
    if isinstance(value, (type, gymnasium.Env)):
        return None  # a class makes environments, and is none itself
    if isinstance(value, tuple) and not hasattr(value, "_fields") and len(value) == 2:
        return "gymnax" if kind_of(value[0]) == "gymnax" else None
    has = lambda *names: all(hasattr(value, name) for name in names)
    if type(value).__name__ == "JaxEnv" and type(value).__module__ == "rookery.envs.jax.env":
        return "ours"
    if has("reset_env", "step_env", "default_params"):
        return "gymnax"
    if has("init", "step", "num_players", "num_actions"):
        return "pgx"
    if has("reset", "step", "observation_size", "action_size"):
        return "brax"
    return None


class Peeked:
    """A user's factory that was called once to see what it makes: an environment written in JAX has a pool of its own.

    What it made then is what the first call gives, so that nothing is made in vain. A class of gymnasium environments
    needs no look.
    """

    def __init__(self, factory: Any, options: dict[str, Any]) -> None:
        if not callable(factory):
            raise TypeError(f"env is one {type(factory).__name__}: pass an id, or a callable that makes as many as are needed")
        self.factory = partial(factory, **options)  # for a pool that makes them elsewhere, in other processes
        gymnasium_class = isinstance(factory, type) and issubclass(factory, gymnasium.Env)
        self.first: Any = None if gymnasium_class else self.factory()

    def __call__(self) -> Any:
        first, self.first = self.first, None
        return self.factory() if first is None else first


def build(env: Any, options: dict[str, Any] | None = None) -> JaxEnv:
    """Return the JaxEnv of an id or of an object for which `kind_of` has a name. Imports jax.

    The same arguments give the same object again, so that every pool of a run uses what the first one compiled.
    """
    key = tuple(sorted((options or {}).items()))
    try:
        hash((env, key))
    except TypeError:  # an option or a parameter is an array or a list: built anew
        return _build.__wrapped__(env, key)
    return _build(env, key)


@lru_cache(maxsize=32)
def _build(env: Any, given: tuple[tuple[str, Any], ...]) -> JaxEnv:
    options = dict(given)
    if isinstance(env, str):
        package, _, name = env.partition(":")
        if package == "jax":
            _require_known(env, name, [id.removeprefix("jax:") for id in JAX_IDS])
            from rookery.envs.jax.toys import toy_env

            return toy_env(name, options)
        if find_spec(package) is None:
            raise UnknownEnvironment(f"{env!r} needs {package}: pip install {package}")
        from rookery.envs.jax import adapters as jax_adapters

        _require_known(env, name, jax_adapters.known_ids(package))
        return jax_adapters.from_id(env, options)
    kind = kind_of(env)
    if kind is None:
        raise TypeError(f"{env!r} is no environment written in JAX: see rookery/envs/jax/sources.py for what one looks like")
    if kind == "ours":
        return env
    from rookery.envs.jax import adapters as jax_adapters

    return jax_adapters.from_object(env, kind, options)


def _require_known(id: str, name: str, known: list[str]) -> None:
    if name not in known:
        package = id.partition(":")[0]
        near = get_close_matches(name, known, n=2, cutoff=0.5)
        hint = "did you mean " + " or ".join(f"'{package}:{one}'" for one in near) + "?" if near else ""
        raise UnknownEnvironment(f"there is no environment {id!r}: {hint or 'there are ' + ', '.join(known)}")
