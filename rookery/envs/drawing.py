"""Draw what an environment shows as a picture: for toys and environments written in JAX, which have no pictures of their own.

A picture is uint8 [H, W, 3]. Boards and images are enlarged cell by cell, indices and bits are rows of lamps, vectors are bars
around a line; parts of a Dict or a Tuple stand below each other. `PointReach` and `jax:CartPole-v1` are drawn as what they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery import spaces
from rookery.types import Array, PyTree

DARK, DIM, BRIGHT, ACCENT, WARM = ((24, 26, 33), (52, 56, 69), (230, 232, 240), (90, 170, 250), (250, 160, 80))
SIDE = 320  # pixels of the longer side, at least


def draw(id: str, space: Space, observation: PyTree) -> Array:
    """Draw one observation, as its space [uint8 H, W, 3]; some ids have a drawing of their own."""
    if id == "jax:CartPole-v1":
        return _cartpole(observation)
    if id == "point-reach":
        return _plane(observation)
    parts = []
    for _, keys, leaf in spaces.leaves(space):
        value = observation
        for key in keys:
            value = value[key]
        parts.append(_leaf(leaf, np.asarray(value)))
    return _stacked(parts)


def enlarged(picture: Array, side: int = SIDE) -> Array:
    """Enlarge [H, W, 3] by a whole number, until the longer side has at least `side` pixels."""
    scale = max(1, math.ceil(side / max(picture.shape[:2])))
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)


def _ruled(picture: Array) -> Array:
    """Enlarge a picture, and where that makes tiles of its pixels leave a line between them."""
    large = enlarged(picture)
    tile = large.shape[0] // picture.shape[0]
    if tile >= 10:
        large[::tile], large[:, ::tile] = DIM, DIM
    return large


def _leaf(space: Space, value: Array) -> Array:
    if isinstance(space, gs.Discrete):
        return _lamps(np.arange(space.n)[None] == value, cell=SIDE // max(8, min(SIDE, int(space.n))))
    if isinstance(space, gs.MultiDiscrete):
        rows = np.zeros((value.size, int(space.nvec.max())), bool)
        rows[np.arange(value.size), value.reshape(-1)] = True
        return _lamps(rows, cell=SIDE // max(8, rows.shape[1]), used=np.arange(rows.shape[1]) < space.nvec.reshape(-1, 1))
    if isinstance(space, gs.MultiBinary):
        return _lamps(value.reshape(1, -1) != 0, cell=SIDE // max(8, value.size))
    if value.ndim >= 2:
        return _ruled(_image(space, value))
    return _bars(space, value.reshape(-1).astype(np.float64))


def _image(space: Any, value: Array) -> Array:
    """Return a board or an image as [H, W, 3]; of a stack of frames the newest, of many channels one colour each."""
    while value.ndim > 3:
        value = value[-1]
    ends = (float(np.min(space.low)), float(np.max(space.high)))
    low, high = ends if np.isfinite(ends).all() else (float(value.min()), float(value.max()))
    if value.ndim == 3 and value.shape[-1] not in (1, 3) and value.shape[0] <= 8 < value.shape[1]:
        value = value[-1]
    level = np.clip((value.astype(np.float64) - low) / ((high - low) or 1.0), 0, 1)
    if level.ndim == 2 or level.shape[-1] == 1:
        level = level.reshape(*level.shape[:2], 1)
        return (np.array(DARK) * (1 - level) + np.array(BRIGHT) * level).astype(np.uint8)
    if level.shape[-1] == 3:
        return (255 * level).astype(np.uint8)
    hues = np.array([_hue(channel / level.shape[-1]) for channel in range(level.shape[-1])])
    lit = level.max(axis=-1, keepdims=True)
    return (np.array(DARK) * (1 - lit) + hues[level.argmax(axis=-1)] * lit).astype(np.uint8)


def _hue(turn: float) -> tuple[float, float, float]:
    red, green, blue = (160 + 90 * math.cos(2 * math.pi * (turn - third / 3)) for third in range(3))
    return red, green, blue


def _lamps(lit: Array, *, cell: int, used: Array | None = None) -> Array:
    """Draw rows of squares, bright where `lit` [rows, columns]."""
    cell = max(cell, 3)
    colours = np.where(lit[..., None], BRIGHT, DIM)
    if used is not None:
        colours = np.where(used[..., None], colours, DARK)
    picture = colours.astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
    gap = max(1, cell // 10)
    for edge in range(gap):
        picture[edge::cell] = DARK
        picture[:, edge::cell] = DARK
    return picture


def _bars(space: Any, value: Array) -> Array:
    """Draw a bar for each number of a vector, as long as its bound (or 1, or what there is): up or down from a line."""
    size = max(1, value.size)
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
    bound = np.maximum(np.abs(low), np.abs(high))
    bound = np.where(np.isfinite(bound) & (bound < 1e6), bound, np.maximum(1.0, np.abs(np.nan_to_num(value))))
    height, wide = SIDE // 2, max(3, SIDE // size)
    line = height - 4 if (low >= 0).all() else height // 2
    picture = np.full((height, wide * size, 3), DARK, np.uint8)
    picture[line] = DIM
    for i, share in enumerate(np.clip(np.nan_to_num(value) / np.maximum(bound, 1e-9), -1, 1)):
        top, end = sorted((line, line - round(share * (line - 4))))
        left = i * wide + max(1, wide // 8)
        picture[top : end + 1, left : (i + 1) * wide - wide // 8] = ACCENT if share >= 0 else WARM
    return picture


def _stacked(parts: list[Array]) -> Array:
    """Put pictures below each other, each in the middle, with a line between."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.shape[1] for part in parts)
    rows = []
    for part in parts:
        room = np.full((part.shape[0] + 8, width, 3), DARK, np.uint8)
        left = (width - part.shape[1]) // 2
        room[4:-4, left : left + part.shape[1]] = part
        rows.append(room)
    return np.concatenate(rows)


def _plane(observation: Array) -> Array:
    """Draw position and target in the square [-1, 1]²."""
    picture = np.full((SIDE, SIDE, 3), DARK, np.uint8)
    picture[SIDE // 2], picture[:, SIDE // 2] = DIM, DIM
    for (x, y), colour, radius in ((observation[2:4], WARM, 14), (observation[:2], ACCENT, 9)):
        _disc(picture, (x + 1) / 2 * (SIDE - 1), (1 - y) / 2 * (SIDE - 1), radius, colour)
    return picture


def _cartpole(observation: Array) -> Array:
    """Draw the cart on its track of [-2.4, 2.4] and the pole."""
    picture = np.full((SIDE * 2 // 3, SIDE * 3 // 2, 3), 255, np.uint8)
    height, width, _ = picture.shape
    middle, ground = (observation[0] / 2.4 + 1) / 2 * (width - 1), height * 4 // 5
    picture[ground] = 0
    left, right = (int(np.clip(middle + side * 30, 0, width - 1)) for side in (-1, 1))
    picture[ground - 14 : ground + 14, left:right] = 0
    for along in np.linspace(0, 110, 220):
        x, y = middle + along * math.sin(observation[2]), ground - 10 - along * math.cos(observation[2])
        _disc(picture, x, y, 4, (202, 152, 101))
    _disc(picture, middle, ground - 10, 5, (129, 132, 203))
    return picture


def _disc(picture: Array, x: float, y: float, radius: int, colour: tuple[int, int, int]) -> None:
    if not (math.isfinite(x) and math.isfinite(y)):
        return
    top, left = max(0, int(y) - radius), max(0, int(x) - radius)
    part = picture[top : max(0, int(y) + radius + 1), left : max(0, int(x) + radius + 1)]
    rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    part[(rows - y) ** 2 + (columns - x) ** 2 <= radius**2] = colour
