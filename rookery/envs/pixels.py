"""See an environment by the pictures that it draws of itself, and repeat actions: for those that Python steps one by one.

    rookery train sac --env Pendulum-v1 --env-options pixels=64 action_repeat=2

Pictures are drawn at the end of a step only, so none is drawn that nobody sees, and scaled down by the mean over the area of
each pixel. What the environment observes by itself is left out. See docs/howto/pixels.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from rookery.envs.rendering import RGB, Camera, CannotDraw, about_gl, draw_without_display, in_short
from rookery.types import Array

STACK = 3  # frames that are seen together unless `frame_stack` says otherwise, as in papers: from one, no speed can be told
SIDES = (8, 1024)
ONE = 256  # the weights of a pixel's parts sum to it: 255 of them still fit into 16 bits


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """How an environment that Python steps is seen and acted in."""

    pixels: int | Sequence[int] | None = None  # observe the rendered frame, uint8 RGB of that side, or of (height, width)
    action_repeat: int = 1  # steps for each action, or until the episode ends; rewards are summed, the last frame is seen

    def __post_init__(self) -> None:
        if self.pixels is not None:
            sides = self.pixels if isinstance(self.pixels, (list, tuple)) else (self.pixels, self.pixels)
            if len(sides) != 2 or not all(_is_whole(side) and SIDES[0] <= side <= SIDES[1] for side in sides):
                raise ValueError(
                    f"pixels is the side of a square picture, from {SIDES[0]} to {SIDES[1]} (64 or 84), or its height and "
                    f"width ([48, 64]), not {self.pixels!r}"
                )
        if not _is_whole(self.action_repeat) or not 1 <= self.action_repeat <= 1000:
            raise ValueError(f"action_repeat is a number of steps for each action, from 1 to 1000, not {self.action_repeat!r}")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what is seen; None: the environment's own observations."""
        if isinstance(self.pixels, Sequence):
            return int(self.pixels[0]), int(self.pixels[1])
        return None if self.pixels is None else (self.pixels, self.pixels)


NAMES = tuple(field.name for field in fields(PixelOptions))
_drawn: set[str] = set()  # environments of which this process has seen a picture


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def make_seen(creator: Callable[..., gymnasium.Env], options: PixelOptions, own: dict[str, Any], name: str) -> SeenEnv:
    """Make one environment with its own options, and see it as `options` say.

    The first of its kind in a process is drawn at once: what cannot be is told before anything starts.
    """
    if options.size is None:
        return SeenEnv(_gymnasiums(creator(**own), name), options, name)
    if own.get("render_mode", RGB) != RGB:
        raise CannotDraw(f"pixels are seen by render_mode={RGB!r}: leave out render_mode={own['render_mode']!r}")
    draw_without_display()
    env = SeenEnv(_drawing(creator, own, name), options, name)
    if name not in _drawn:
        env.reset(seed=0)
        _drawn.add(name)
    return env


def _drawing(creator: Callable[..., gymnasium.Env], own: dict[str, Any], name: str) -> gymnasium.Env:
    """Make an environment that draws pictures. CannotDraw where it has no such mode."""
    takes = "it takes render_mode"
    try:
        env = creator(**{**own, "render_mode": RGB})
    except gymnasium.error.DependencyNotInstalled as error:
        raise CannotDraw(f"{name!r} draws with a package that is missing: {error}") from error
    except TypeError:  # perhaps of the parameter; if not, it is raised again
        env, takes = creator(**own), "its class or function takes render_mode, which this one does not,"
    except Exception as error:
        if about_gl(str(error)):  # MuJoCo asks for OpenGL when it is imported
            raise CannotDraw(f"{name!r} cannot be made: {in_short(error)}{about_gl(str(error))}") from error
        raise
    modes = (_gymnasiums(env, name).metadata or {}).get("render_modes") or []
    if getattr(env, "render_mode", None) != RGB or (modes and RGB not in modes):
        env.close()
        has = f"it draws as {', '.join(map(str, modes))}" if modes else "it has no metadata['render_modes']"
        raise CannotDraw(
            f"{name!r} cannot be seen by pixels, {has}: an environment of yours is, when metadata['render_modes'] has {RGB!r}, "
            f"{takes} and keeps it as self.render_mode, and render() returns uint8 of shape (H, W, 3)"
        )
    return env


def _gymnasiums(env: Any, name: str) -> gymnasium.Env:
    if not isinstance(env, gymnasium.Env):
        raise CannotDraw(f"{name!r} makes a {type(env).__name__}: pixels and action_repeat are for a gymnasium.Env")
    return env


class SeenEnv(gymnasium.Wrapper):
    """One environment, seen by its pictures or as it is, and acted in with repeated actions."""

    def __init__(self, env: gymnasium.Env, options: PixelOptions, name: str) -> None:
        super().__init__(env)
        self._repeat, size = options.action_repeat, options.size
        self._camera: Camera | None = None
        if size is not None:
            observed = env.observation_space
            if isinstance(observed, gs.Dict) and "action_mask" in observed.spaces:
                raise CannotDraw(f"{name!r} says by action_mask what is legal, which no picture shows: leave out pixels")
            self._camera, self._scale = Camera(env, name, size), Scale(*size)
            self.observation_space = gs.Box(0, 255, (*size, 3), np.uint8)
        self._picture: Array | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("get_state", "set_state"):  # by which it is saved, where it can be
            return getattr(self.env, name)
        raise AttributeError(name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        for _ in range(self._repeat - 1):
            if terminated or truncated:
                break
            observation, more, terminated, truncated, info = self.env.step(action)
            reward += more  # type: ignore[operator]
        return self._seen(observation), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return the picture that was seen last, at its full size."""
        if self._camera is None:
            return self.env.render()
        large = self._camera.shoot_large()
        return self._picture if large is None else large

    def close(self) -> None:
        if self._camera is not None:
            self._camera.close()
        self.env.close()

    def _seen(self, observation: Any) -> Any:
        if self._camera is None:
            return observation
        self._picture = self._camera.shoot()
        return self._scale(self._picture)


class Scale:
    """Scale pictures [H, W, 3] of any size to one: each pixel is the mean over its area, rounded.

    In 16 bits, part by part of the area: 0.3 ms from 500 x 500 to 64 x 64, where a product of matrices would wake all cores.
    """

    def __init__(self, height: int, width: int) -> None:
        self._size = (height, width)
        self._parts: dict[tuple[int, int], tuple[Array, Array]] = {}  # by length before and after

    def __call__(self, picture: Array) -> Array:
        height, width = self._size
        if picture.shape[0] != height:
            picture = self._along(picture.reshape(len(picture), -1), height).reshape(height, *picture.shape[1:])
        if picture.shape[1] != width:
            across = np.ascontiguousarray(picture.transpose(1, 0, 2)).reshape(picture.shape[1], -1)
            picture = self._along(across, width).reshape(width, height, 3).transpose(1, 0, 2)
        return picture

    def _along(self, rows: Array, count: int) -> Array:
        """Scale the first axis of [rows, numbers] to `count`."""
        key = (len(rows), count)
        if key not in self._parts:
            self._parts[key] = parts(*key)
        total = np.full((count, rows.shape[1]), ONE // 2, np.uint16)
        for index, weight in zip(*self._parts[key]):
            total += rows[index] * weight[:, None]
        return (total // ONE).astype(np.uint8)


def parts(length: int, count: int) -> tuple[Array, Array]:
    """Return which of `length` pixels overlap each of `count` larger (or smaller) ones, and by how much of `ONE`. [k, count]"""
    edges = np.arange(count + 1) * (length / count)
    first = np.floor(edges[:-1] + 1e-9).astype(np.int64)
    k = int((np.ceil(edges[1:] - 1e-9) - first).max())
    index = first + np.arange(k)[:, None]
    until = np.clip((np.minimum(index + 1, edges[1:]) - edges[:-1]) * (count / length), 0, 1)  # the share passed by then
    weight = np.diff(np.rint(until * ONE).astype(np.int64), axis=0, prepend=0)
    return np.minimum(index, length - 1), weight.astype(np.uint16)
