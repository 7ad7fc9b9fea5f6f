"""The toy that QT-Opt is shown on: a gripper above coloured shapes, seen from above, and one chance to close it.

    action  (dx, dy, dz, close), each in [-1, 1]: move by so much, then close if the last is above one half
    reward  1 for closing low enough around a shape; an episode ends with the closing, or after `length` steps

The camera hangs at the gripper and looks down. Its image shows all that there is to know: the shapes, where they are from
there, the edge of the tray, and the two fingers, which are wider apart the higher they are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery.types import Array, PyTree

if TYPE_CHECKING:  # toys.py has the table of all toys, this one included
    from rookery.envs.toys import Draws, State

TRAY, FLOOR = np.array([60, 60, 60], np.uint8), np.array([0, 0, 0], np.uint8)
COLOURS = np.array([(220, 60, 60), (60, 190, 80), (70, 110, 230), (220, 190, 60), (180, 80, 200)], np.uint8)
FORMS = 3  # square, disc, diamond
CLOSES = 0.5  # of the last number of an action
FINGER = 0.2  # half the length of a finger


@dataclass(frozen=True, kw_only=True)
class Grasping:
    """Lower a gripper onto one of the coloured shapes below it and close it there (Box actions, image): 1 if it holds one.

    uint8 [size, size, 3], what is up to 1 away from the gripper, of a tray from -1 to 1. Heights go from 0 to 1, an episode
    begins at 1.
    """

    size: int = 32
    shapes: int = 4
    length: int = 10
    speed: float = 0.3  # of a step along each side of the square
    descent: float = 0.5  # of a step up or down
    reach: float = 0.3  # from the centre of a shape, along each side of the square
    low: float = 0.5  # height below which closing holds something
    pause: float = 0.0  # seconds that a step takes, as that of a robot does: of the clock, not of the processor
    truncates: ClassVar[bool] = True
    action = property(lambda self: gs.Box(-1, 1, (4,), np.float32))
    optimal_return = property(lambda self: 1.0)
    random_return = property(lambda self: 0.078)  # simulated, for the default options

    @property
    def observation(self) -> Space:
        return gs.Box(0, 255, (self.size, self.size, 3), np.uint8)

    @property
    def _edge(self) -> np.float32:
        """How far from the middle shapes and gripper may be: none is cut by the image's edge."""
        return np.float32(1.0 - self.reach)

    def start(self, draws: Draws) -> State:
        place = lambda: np.stack([self._edge * (2 * draws.uniform() - 1) for _ in range(2)], axis=-1)
        gripper = place()
        per_shape = lambda draw: np.stack([draw() for _ in range(self.shapes)], axis=1)
        return {
            "gripper": gripper,
            "height": np.ones(len(gripper), np.float32),
            "places": per_shape(place),
            "forms": per_shape(lambda: draws.integers(FORMS)),
            "colours": per_shape(lambda: draws.integers(len(COLOURS))),
            "over": np.zeros(len(gripper), bool),
        }

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        time.sleep(self.pause)
        state["gripper"][:] = np.clip(state["gripper"] + np.float32(self.speed) * action[:, :2], -self._edge, self._edge)
        state["height"][:] = np.clip(state["height"] + np.float32(self.descent) * action[:, 2], 0, 1)
        away = np.abs(state["places"] - state["gripper"][:, None]).max(axis=2)  # [B, shapes]
        state["over"][:] = action[:, 3] > CLOSES
        return state["over"] & (state["height"] <= self.low) & (away.min(axis=1) <= self.reach)

    def observe(self, state: State) -> PyTree:
        B, at = len(state["height"]), (np.arange(self.size, dtype=np.float32) + 0.5) * np.float32(2 / self.size) - 1
        image = np.empty((B, self.size, self.size, 3), np.uint8)
        beyond = [np.abs(at[None] + state["gripper"][:, axis, None]) > 1 for axis in (0, 1)]  # [B, size]
        image[:] = np.where((beyond[0][:, None] | beyond[1][:, :, None])[..., None], FLOOR, TRAY)
        places = state["places"] - state["gripper"][:, None]
        for number in range(self.shapes):
            x, y = (np.abs(at[None] - places[:, number, axis, None]) for axis in (0, 1))  # [B, size]
            form = state["forms"][:, number, None, None]
            far = np.maximum(y[:, :, None], x[:, None]), np.hypot(y[:, :, None], x[:, None]), y[:, :, None] + x[:, None]
            inside = np.choose(form, [far[0] <= 0.85 * self.reach, far[1] <= self.reach, far[2] <= 1.2 * self.reach])
            np.copyto(image, COLOURS[state["colours"][:, number]][:, None, None], where=inside[..., None])
        apart = np.where(state["over"], 0.0, self.reach + 0.5 * state["height"])[:, None, None]
        fingers = (np.abs(np.abs(at)[None, None] - apart) <= 1.5 / self.size) & (np.abs(at) <= FINGER)[None, :, None]
        np.copyto(image, np.uint8(255), where=fingers[..., None])
        return image
