"""Find an environment by its id, name the near ones, list a selection. Nothing is constructed here."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import gymnasium

from rookery.envs.atari import is_atari
from rookery.envs.toys import TOYS


class UnknownEnvironment(ValueError):
    """No such environment, or its package is not installed; the message says which ids are near or what to install."""


class EnvInfo(NamedTuple):
    id: str
    source: str  # "toy", "jax", "gymnasium" or "ale"
    summary: str
    extra: str = ""  # the extra of rookery that it needs: pip install 'rookery[extra]'


_PACKAGES = {"atari": "ale_py", "box2d": "Box2D", "mujoco": "mujoco"}  # extra -> module
_ENTRY_POINTS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "ale_py": "atari"}

_SELECTION = (
    EnvInfo("CartPole-v1", "gymnasium", "balance a pole on a cart; stepped as numpy arrays"),
    EnvInfo("Acrobot-v1", "gymnasium", "swing a two-link arm up"),
    EnvInfo("MountainCar-v0", "gymnasium", "drive out of a valley; sparse reward"),
    EnvInfo("MountainCarContinuous-v0", "gymnasium", "the same with a continuous force"),
    EnvInfo("Pendulum-v1", "gymnasium", "swing a pendulum up; continuous torque"),
    EnvInfo("FrozenLake-v1", "gymnasium", "cross a slippery grid; discrete observations"),
    EnvInfo("Taxi-v4", "gymnasium", "carry passengers on a grid; discrete observations"),
    EnvInfo("CliffWalking-v1", "gymnasium", "walk along a cliff; discrete observations"),
    EnvInfo("Blackjack-v1", "gymnasium", "play blackjack; a tuple of discrete observations"),
    EnvInfo("LunarLander-v3", "gymnasium", "land a rocket", "box2d"),
    EnvInfo("BipedalWalker-v3", "gymnasium", "walk on two legs; continuous", "box2d"),
    EnvInfo("CarRacing-v3", "gymnasium", "drive from images; continuous", "box2d"),
    EnvInfo("HalfCheetah-v5", "gymnasium", "run; continuous control", "mujoco"),
    EnvInfo("Hopper-v5", "gymnasium", "hop on one leg; continuous control", "mujoco"),
    EnvInfo("Walker2d-v5", "gymnasium", "walk in the plane; continuous control", "mujoco"),
    EnvInfo("Ant-v5", "gymnasium", "walk on four legs; continuous control", "mujoco"),
    EnvInfo("Humanoid-v5", "gymnasium", "walk as a humanoid; continuous control", "mujoco"),
)

JAX_IDS = {
    "jax:CartPole-v1": "CartPole-v1 written in JAX",
    "jax:Pendulum-v1": "Pendulum-v1 written in JAX",
    "jax:catch": "catch written in JAX",
    "jax:cue-recall": "cue-recall written in JAX",
}


def catalogue() -> list[EnvInfo]:
    """List the toys, ours written in JAX, a selection of Gymnasium's ids, and every ALE game when ale-py is installed."""
    toys = [EnvInfo(id, "toy", (toy.__doc__ or "").split("\n")[0]) for id, toy in TOYS.items()]
    written_in_jax = [EnvInfo(id, "jax", summary) for id, summary in JAX_IDS.items()]
    _register_atari()
    known = [info for info in _SELECTION if info.id in gymnasium.registry]
    games = sorted(id for id in gymnasium.registry if id.startswith("ALE/"))
    atari = [EnvInfo(id, "ale", "Atari 2600, 4 grey frames of 84x84, sticky actions 0.25", "atari") for id in games]
    return [*toys, *written_in_jax, *known, *(atari or [EnvInfo("ALE/Pong-v5", "ale", "Atari 2600, not installed", "atari")])]


def find(id: str) -> gymnasium.envs.registration.EnvSpec:
    """Return the registered EnvSpec of an id; UnknownEnvironment where there is none."""
    looks_atari = is_atari(id) or id.startswith("ALE/")
    if looks_atari and not _installed("atari"):
        raise UnknownEnvironment(f"{id!r} needs ale-py: {_install('atari')}")
    _register_atari()
    try:
        spec = gymnasium.spec(id)
        if id.startswith("dm_control/") and _version_of("mujoco") >= 4:
            raise UnknownEnvironment(_dm_control(id))
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        if id.startswith("dm_control/"):
            raise UnknownEnvironment(_dm_control(id)) from error
        raise UnknownEnvironment(f"there is no environment {id!r}: {_hint(id)}") from error
    for prefix, extra in _ENTRY_POINTS.items():
        if str(spec.entry_point).startswith(prefix) and not _installed(extra):
            raise UnknownEnvironment(f"{id!r} needs the module {_PACKAGES[extra]}: {_install(extra)}")
    return spec


def _dm_control(id: str) -> str:
    broken = ", and mujoco 4 is installed here" if _version_of("mujoco") >= 4 else ""
    return (
        f"{id!r} is an environment of dm_control, which shimmy brings to Gymnasium and which fails with mujoco 4 (dm_control "
        f"1.0.50 was tried{broken}): pip install shimmy dm_control imageio 'mujoco<4', and --env shimmy:{id}"
    )


def _version_of(package: str) -> int:
    """Return the first number of a package's version; 0 where it is missing."""
    try:
        return int(metadata.version(package).partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return 0


def missing_dependency(id: str, error: Exception) -> UnknownEnvironment:
    """Return the error for a package that is found missing only when an environment is constructed."""
    return UnknownEnvironment(f"{id!r} cannot be made, a package is missing: {error}")


def _hint(id: str) -> str:
    known = [*TOYS, *JAX_IDS, *gymnasium.registry]
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in get_close_matches(id.lower(), lower, n=3, cutoff=0.6)]
    parts = ["did you mean " + " or ".join(map(repr, near)) + "?" if near else "`rookery list envs` shows some."]
    if not _installed("atari"):
        parts.append(f"(Atari games are not installed: {_install('atari')})")
    return " ".join(parts)


def _installed(extra: str) -> bool:
    return find_spec(_PACKAGES[extra]) is not None


def _install(extra: str) -> str:
    return f"pip install 'rookery[{extra}]'"


def _register_atari() -> None:
    if _installed("atari"):
        import ale_py  # importing it registers its ids

        gymnasium.register_envs(ale_py)
