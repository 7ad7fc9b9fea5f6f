"""Options that every pool has, whatever steps its environments: how observations and rewards reach the agent.

Those of `pixels` (rendered frames, repeated actions) are for environments that Python steps one by one.

They stand among `env_options` and are saved with the run, so that evaluation and `rookery.load` see what training saw. An
environment that has an option of the same name (Atari's `grayscale`, a parameter of your own class) keeps it for itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import gymnasium

from rookery.envs import pixels
from rookery.envs.atari import AtariOptions, is_atari
from rookery.envs.pixels import PixelOptions
from rookery.envs.toys import TOYS


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Box leaves of the observation and the reward; `action_mask` and other spaces pass as they are."""

    frame_stack: int = 1  # the last k observations, on a new first axis, the oldest first; zeros before the first
    grayscale: bool = False  # uint8 images [H, W, 3] become [H, W]
    observation_scale: float = 1.0  # Box leaves are multiplied by it, and become float32
    reward_scale: float = 1.0  # rewards are multiplied by it,
    reward_clip: float | None = None  # and then cut to [-clip, clip]

    def __post_init__(self) -> None:
        if self.frame_stack < 1 or int(self.frame_stack) != self.frame_stack:
            raise ValueError(f"frame_stack is a number of observations, at least 1, not {self.frame_stack!r}")
        if self.reward_clip is not None and not self.reward_clip > 0:
            raise ValueError(f"reward_clip is the largest reward that passes, more than 0, not {self.reward_clip!r}")
        if not self.observation_scale or not self.reward_scale:
            raise ValueError("observation_scale and reward_scale may not be 0: nothing would be left to see")


NAMES = tuple(field.name for field in fields(PoolOptions))


def take_pool_options(env: Any, options: dict[str, Any]) -> tuple[PoolOptions | None, dict[str, Any]]:
    """Split options into (the pool's, or None where there are none; what is left for the environment itself).

    Rendered frames are seen several at a time unless `frame_stack` says otherwise.
    """
    if _ours(env, options, pixels.NAMES).get("pixels") is not None:
        options = _ours(env, {"frame_stack": pixels.STACK}, NAMES) | options
    mine = _ours(env, options, NAMES)
    if not mine:
        return None, options
    return PoolOptions(**mine), {name: value for name, value in options.items() if name not in mine}


def take_pixel_options(env: Any, options: dict[str, Any]) -> tuple[PixelOptions | None, dict[str, Any]]:
    """Split what `take_pool_options` left into (how one environment is seen, None: as it is; its own options)."""
    mine = _ours(env, options, pixels.NAMES)
    seen = PixelOptions(**mine)
    return None if seen == PixelOptions() else seen, {name: value for name, value in options.items() if name not in mine}


def _ours(env: Any, options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of these names that the environment does not keep for itself."""
    mine = {name: value for name, value in options.items() if name in names}
    taken = _own_names(env) if mine else set()
    return {name: value for name, value in mine.items() if name not in taken}


def neutral_value(env: Any, name: str) -> Any:
    """Return the default of an option of this pool, or of every pool."""
    own = fields(AtariOptions) if isinstance(env, str) and is_atari(env) else ()
    return next(field.default for field in (*own, *fields(PoolOptions)) if field.name == name)


def _own_names(env: Any) -> set[str]:
    """Return the names of the options that the environment itself has."""
    if not isinstance(env, str):
        return _parameters(env)
    if is_atari(env):
        return {field.name for field in fields(AtariOptions)}
    if env in TOYS:
        return {field.name for field in fields(TOYS[env])}
    spec = gymnasium.registry.get(env)
    if spec is None:
        return set()
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = gymnasium.envs.registration.load_env_creator(creator)
        except Exception:  # what it misses is told when it is made
            return set(spec.kwargs)
    return set(spec.kwargs) | _parameters(creator)


def _parameters(function: Callable[..., Any] | Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
