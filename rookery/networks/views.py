"""Views of images: random windows for learning, the central one for acting. The same window for all frames of a stack.

    views = views_of(spec, ViewsConfig(kind="crop"), "auto")
    network = build(views.spec)                   for what is seen through a window
    seen = views.random(key, observation)         a window of its own for each row
    seen = views.centre(observation)              the same one for all

A window leaves the same number of pixels on both sides, so that the central one is exact: of 100 x 100 pixels 84 x 84 are
seen, of 24 x 24 20 x 20. What is no image (numbers beside it, a mask) is passed on as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks import encoders
from rookery.networks.config import ViewsConfig
from rookery.types import Array, PyTree, Spec


class Views(NamedTuple):
    spec: Spec  # of what is seen
    random: Callable[[Array, PyTree], PyTree]  # (key, observation [..., image]) -> another window for each of [...]
    centre: Callable[[PyTree], PyTree]  # (observation [..., image]) -> the central window of each


def views_of(spec: Spec, config: ViewsConfig, encoder: str) -> Views:
    """Build the views of all images of an observation; refuse one without."""
    images = [leaf for leaf in encoders.leaves(spec.observation, encoder) if leaf.layout]
    if not images:
        raise ValueError(
            f"--views.kind {config.kind} shows windows of images, and the observation {spec.observation} has none that is read "
            f"by convolutions: use --views.kind whole; or --env-options that give images of {encoders.AUTO_SIDES['small']} "
            "pixels a side or more"
        )

    def of_images(observation: PyTree, change: Callable[[int, str, Any], Any]) -> PyTree:
        for index, leaf in enumerate(images):
            observation = _replaced(observation, leaf.path, functools.partial(change, index, leaf.layout))
        return observation

    def random(key: Array, observation: PyTree) -> PyTree:
        return of_images(observation, lambda i, layout, x: random_window(jax.random.fold_in(key, i), x, layout, config))

    def centre(observation: PyTree) -> PyTree:
        return of_images(observation, lambda _, layout, x: central_window(x, layout, config))

    def seen(_: int, layout: str, box: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
        low, high = (central_window(np.asarray(end), layout, config) for end in (box.low, box.high))
        return gymnasium.spaces.Box(low, high, dtype=box.dtype)

    return Views(spec._replace(observation=of_images(spec.observation, seen)), random, centre)


def margin(side: int, config: ViewsConfig) -> int:
    """Count the pixels that a window may be moved by in each direction: at least one."""
    return max(1, min((side - 1) // 2, round(side * (1.0 - config.window) / 2)))


def random_window(key: Array, image: Array, layout: str, config: ViewsConfig) -> Array:
    """Cut another window out of each image [..., *shape], whose axes are named by `layout`; all frames of a stack alike."""
    lead, flat = image.shape[: -len(layout)], image.reshape(-1, *image.shape[-len(layout) :])
    sides = [1 + layout.index(name) for name in "HW"]
    margins = [margin(flat.shape[side], config) for side in sides]
    if config.kind == "shift":
        around = {side: (by, by) for side, by in zip(sides, margins)}
        flat = jnp.pad(flat, [around.get(axis, (0, 0)) for axis in range(flat.ndim)], mode="edge")
    cut = {side: flat.shape[side] - 2 * by for side, by in zip(sides, margins)}
    size = [cut.get(axis, length) for axis, length in enumerate(flat.shape)][1:]
    keys = jax.random.split(key)
    starts = [jax.random.randint(k, (len(flat),), 0, 2 * by + 1) for k, by in zip(keys, margins)]

    def window(one: Array, top: Array, left: Array) -> Array:
        begin = {sides[0] - 1: top, sides[1] - 1: left}
        return jax.lax.dynamic_slice(one, [begin.get(axis, jnp.zeros_like(top)) for axis in range(one.ndim)], size)

    return jax.vmap(window)(flat, *starts).reshape(*lead, *size)


def central_window(image: Any, layout: str, config: ViewsConfig) -> Any:
    """Cut the central window out of images [..., *shape]; of those that are shifted it is the whole."""
    if config.kind == "shift":
        return image
    part = [slice(None)] * image.ndim
    for name in "HW":
        axis = image.ndim - len(layout) + layout.index(name)
        by = margin(image.shape[axis], config)
        part[axis] = slice(by, image.shape[axis] - by)
    return image[tuple(part)]


def _replaced(tree: Any, path: encoders.Path, change: Callable[[Any], Any]) -> Any:
    """Return a tree, or a space, with one leaf changed."""
    if not path:
        return change(tree)
    if isinstance(tree, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict(_replaced(dict(tree.items()), path, change))
    if isinstance(tree, gymnasium.spaces.Tuple):
        return gymnasium.spaces.Tuple(_replaced(tree.spaces, path, change))
    if isinstance(tree, dict):
        return tree | {path[0]: _replaced(tree[path[0]], path[1:], change)}
    return tuple(_replaced(part, path[1:], change) if i == path[0] else part for i, part in enumerate(tree))
