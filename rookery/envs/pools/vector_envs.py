"""VectorEnvs of the user's own: a class, a function `f(num_envs=...)`, or one object.

They are stepped by `vectorised.VectorisedPool`, as those that Gymnasium registers are. What they answer is checked, and copied,
because many give the same arrays again and again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from rookery import spaces
from rookery.trees import tree_map
from rookery.types import PyTree

MakeVector = Callable[[int], VectorEnv]
REMEDY = (
    "the last observation of an episode and the first of the next are both needed, which only NEXT_STEP gives: "
    "metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.NEXT_STEP}, and resets at the step after an end"
)


class WrongAutoreset(ValueError):
    """The VectorEnv does not reset on the next step, so its answers lack an observation or two."""


class WrongAnswer(Exception):
    """A VectorEnv answered what its spaces do not allow."""


def maker_of(env: Any, options: dict[str, Any]) -> MakeVector | None:
    """Return what makes a VectorEnv of so many environments; None where `env` is or makes something else."""
    if isinstance(env, VectorEnv):
        return Passed(env)
    if isinstance(env, type):
        return VectorMaker(env, options) if issubclass(env, VectorEnv) else None
    return VectorMaker(env, options) if callable(env) and "num_envs" in _parameters(env) else None


@dataclass(frozen=True)
class Passed:
    """One object: a run has no other, so nothing can be evaluated beside it."""

    env: VectorEnv

    def __call__(self, num_envs: int) -> VectorEnv:
        if num_envs != self.env.num_envs:
            raise ValueError(
                f"this {type(self.env).__name__} steps {self.env.num_envs} environments, and {num_envs} in a group were asked "
                f"for: num_envs={self.env.num_envs} and groups=1, or pass a function f(num_envs) that makes them"
            )
        return self.env


@dataclass(frozen=True)
class VectorMaker:
    """A class, or a function, that is called with `num_envs`."""

    make: Any
    options: dict[str, Any]

    def __call__(self, num_envs: int) -> VectorEnv:
        takes_mode = "autoreset_mode" in _parameters(self.make) and "autoreset_mode" not in self.options
        more = {"autoreset_mode": AutoresetMode.NEXT_STEP} if takes_mode else {}
        made = self.make(num_envs=num_envs, **self.options, **more)
        name = getattr(self.make, "__name__", type(self.make).__name__)
        if not isinstance(made, VectorEnv):
            what = f"{name}(num_envs={num_envs}) made a {type(made).__name__}"
            raise ValueError(f"{what}: a gymnasium.vector.VectorEnv is expected")
        if (many := getattr(made, "num_envs", None)) != num_envs:
            raise ValueError(f"{name}(num_envs={num_envs}) made a VectorEnv whose num_envs is {many}")
        return made


def check_autoreset(env: VectorEnv, name: str) -> None:
    """Refuse a VectorEnv that does not reset on the next step, with the remedy."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        raise WrongAutoreset(f"{name!r}: its VectorEnv does not say when it resets; {REMEDY}")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        shown = mode.name if isinstance(mode, AutoresetMode) else mode
        raise WrongAutoreset(f"{name!r}: its VectorEnv resets in mode {shown}; {REMEDY}")


def single_spaces(env: VectorEnv, name: str) -> tuple[Space, Space]:
    """Return the spaces of one environment: observation, action."""
    found = [getattr(env, f"single_{role}_space", None) for role in ("observation", "action")]
    for role, space in zip(("observation", "action"), found):
        if not isinstance(space, Space):
            raise ValueError(f"{name!r}: its VectorEnv has no single_{role}_space, the space of one of its environments")
    return found[0], found[1]  # type: ignore[return-value]


def taken(answered: Any, space: Space, B: int) -> tuple[PyTree, np.ndarray, np.ndarray, np.ndarray]:
    """Check what `step` answered and copy it: observation [B, ...], reward, terminated and truncated [B]."""
    try:
        observation, reward, terminated, truncated, _ = answered
    except (TypeError, ValueError):
        raise WrongAnswer("step() answers (observations, rewards, terminations, truncations, infos)") from None
    reward = _row("rewards", reward, B).astype(np.float32)
    ends = [_row(name, value, B).astype(bool) for name, value in (("terminations", terminated), ("truncations", truncated))]
    return copied(observation, space, B), reward, ends[0], ends[1]


def copied(observation: Any, space: Space, B: int) -> PyTree:
    """Check the shapes of observations [B, ...] and copy them."""
    for path, keys, leaf in spaces.leaves(space):
        value = observation
        try:
            for key in keys:
                value = value[key]
        except (KeyError, IndexError, TypeError):
            raise WrongAnswer(f"its observations have no leaf {path!r}") from None
        expected = (B, *(leaf.shape or ()))
        if np.shape(value) != expected:
            raise WrongAnswer(f"its {path or 'observations'} have the shape {np.shape(value)}, and {expected} was promised")
    return tree_map(np.array, observation)


def _row(name: str, value: Any, B: int) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != (B,) or array.dtype.kind not in "biuf":
        raise WrongAnswer(f"its {name} are {array.dtype} of shape {array.shape}, and ({B},) numbers are expected")
    return array


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
