"""Small environments, stepped as numpy arrays, for tests and first steps: each asks for one ability.

A toy is a frozen dataclass of its options with four pure parts: its spaces, `start` (the state of new episodes),
`step` (changes the state, gives the reward) and `observe`. Every episode of a toy has `length` steps, or ends before where
the state has an entry "over" that is set. Random numbers are a hash of (seed, env id, incarnation, counter): they do not
depend on the groups, and a snapshot is a few arrays. `optimal_return` and `random_return` are means per episode, of the best
and of the uniform policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery.envs.grasping import Grasping
from rookery.types import Array, PyTree

State = dict[str, Array]  # name -> [B, ...]


class Draws:
    """Random numbers of the environments `rows`: splitmix64 of key + counter (Steele et al. 2014)."""

    def __init__(self, state: State, rows: Array) -> None:
        self._state, self._rows = state, rows

    def bits(self) -> Array:
        """Draw [n] uint64, one per environment; each of their counters grows by one."""
        self._state["counter"][self._rows] += np.uint64(1)
        z = self._state["key"][self._rows] + self._state["counter"][self._rows] * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def integers(self, high: int) -> Array:
        return (self.bits() % np.uint64(high)).astype(np.int32)

    def uniform(self) -> Array:
        """Draw [n] float32 in [0, 1)."""
        return (self.bits() >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


class Toy(Protocol):
    truncates: ClassVar[bool]  # is an episode of `length` steps truncated rather than terminated?

    @property
    def length(self) -> int: ...
    @property
    def observation(self) -> Space: ...
    @property
    def action(self) -> Space: ...
    def start(self, draws: Draws) -> State: ...
    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array: ...  # live [B]: not being reset
    def observe(self, state: State) -> PyTree: ...  # fresh arrays


# ---------------------------------------------------------------------------------------------------- the toys


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Name the symbol that is shown (Discrete observation and action); 1 per right answer."""

    symbols: int = 4
    length: int = 8
    truncates: ClassVar[bool] = False
    observation = property(lambda self: gs.Discrete(self.symbols))
    action = property(lambda self: gs.Discrete(self.symbols))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: self.length / self.symbols)

    def start(self, draws: Draws) -> State:
        return {"shown": draws.integers(self.symbols)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        reward = action == state["shown"]
        state["shown"][:] = draws.integers(self.symbols)
        return reward

    def observe(self, state: State) -> PyTree:
        return state["shown"].copy()


@dataclass(frozen=True, kw_only=True)
class MultiIdentity:
    """Name several symbols at once (MultiDiscrete); the reward is the share of right ones."""

    sizes: tuple[int, ...] = (3, 4)
    length: int = 8
    truncates: ClassVar[bool] = False
    observation = property(lambda self: gs.MultiDiscrete(self.sizes))
    action = property(lambda self: gs.MultiDiscrete(self.sizes))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: self.length * sum(1 / size for size in self.sizes) / len(self.sizes))

    def start(self, draws: Draws) -> State:
        return {"shown": np.stack([draws.integers(size) for size in self.sizes], axis=1)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        reward = (action == state["shown"]).mean(axis=1)
        state["shown"][:] = self.start(draws)["shown"]
        return reward

    def observe(self, state: State) -> PyTree:
        return state["shown"].copy()


@dataclass(frozen=True, kw_only=True)
class BinaryIdentity:
    """Copy a row of bits (MultiBinary); the reward is the share of right ones."""

    bits: int = 3
    length: int = 8
    truncates: ClassVar[bool] = False
    observation = property(lambda self: gs.MultiBinary(self.bits))
    action = property(lambda self: gs.MultiBinary(self.bits))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: self.length / 2)

    def start(self, draws: Draws) -> State:
        return {"shown": np.stack([draws.integers(2).astype(np.int8) for _ in range(self.bits)], axis=1)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        reward = (action == state["shown"]).mean(axis=1)
        state["shown"][:] = self.start(draws)["shown"]
        return reward

    def observe(self, state: State) -> PyTree:
        return state["shown"].copy()


@dataclass(frozen=True, kw_only=True)
class Catch:
    """Catch a falling ball with a paddle (left, stay, right) on a small board; 1 or -1 at the end.

    The board is [rows, columns]: float32 of 0 and 1, or uint8 of 0 and 255 with dtype="uint8".
    """

    rows: int = 10
    columns: int = 5
    dtype: str = "float32"
    truncates: ClassVar[bool] = False
    length = property(lambda self: self.rows - 1)
    action = property(lambda self: gs.Discrete(3))
    optimal_return = property(lambda self: 1.0)
    random_return = property(lambda self: 2 / self.columns - 1)  # the ball's column is independent of the paddle

    @property
    def observation(self) -> Space:
        return gs.Box(0, 255 if self.dtype == "uint8" else 1, (self.rows, self.columns), np.dtype(self.dtype).type)

    def start(self, draws: Draws) -> State:
        column = draws.integers(self.columns)
        return {"column": column, "row": np.zeros_like(column), "paddle": np.full_like(column, self.columns // 2)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        state["row"] += 1
        state["paddle"][:] = np.clip(state["paddle"] + action - 1, 0, self.columns - 1)
        landed = state["row"] == self.rows - 1
        return np.where(landed, np.where(state["paddle"] == state["column"], 1.0, -1.0), 0.0)

    def observe(self, state: State) -> PyTree:
        size = len(state["row"])
        board = np.zeros((size, self.rows, self.columns), self.dtype)
        bright = 255 if self.dtype == "uint8" else 1
        board[np.arange(size), np.minimum(state["row"], self.rows - 1), state["column"]] = bright
        board[np.arange(size), self.rows - 1, state["paddle"]] = bright
        return board


@dataclass(frozen=True, kw_only=True)
class CueRecall:
    """See a cue, wait `delay` steps, name it at the go signal: 1 if right. Without memory half of it is luck.

    float32 [cues + 1]: one-hot cue at step 0, then zeros; the last entry is 1 at step `delay`, the last one.
    """

    delay: int = 8
    cues: int = 2
    truncates: ClassVar[bool] = False
    length = property(lambda self: self.delay + 1)
    observation = property(lambda self: gs.Box(0, 1, (self.cues + 1,), np.float32))
    action = property(lambda self: gs.Discrete(self.cues))
    optimal_return = property(lambda self: 1.0)
    random_return = property(lambda self: 1 / self.cues)

    def start(self, draws: Draws) -> State:
        cue = draws.integers(self.cues)
        return {"cue": cue, "waited": np.zeros_like(cue)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        reward = (state["waited"] == self.delay) & (action == state["cue"])
        state["waited"] += 1
        return reward

    def observe(self, state: State) -> PyTree:
        shown = np.zeros((len(state["cue"]), self.cues + 1), np.float32)
        shown[np.arange(len(shown)), state["cue"]] = state["waited"] == 0
        shown[:, -1] = state["waited"] == self.delay
        return shown


@dataclass(frozen=True, kw_only=True)
class DictObservation:
    """An image (uint8 8x8x1, its left or right half bright) and a vector (a sign and noise): answer side XOR sign."""

    length: int = 8
    truncates: ClassVar[bool] = False
    action = property(lambda self: gs.Discrete(2))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: self.length / 2)

    @property
    def observation(self) -> Space:
        image, vector = gs.Box(0, 255, (8, 8, 1), np.uint8), gs.Box(-1, 1, (2,), np.float32)
        return gs.Dict({"image": image, "vector": vector})

    def start(self, draws: Draws) -> State:
        return {"side": draws.integers(2), "sign": draws.integers(2), "noise": draws.uniform()}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        reward = action == (state["side"] ^ state["sign"])
        for name, value in self.start(draws).items():
            state[name][:] = value
        return reward

    def observe(self, state: State) -> PyTree:
        image = np.zeros((len(state["side"]), 8, 2, 4, 1), np.uint8)
        image[np.arange(len(image)), :, state["side"]] = 255
        vector = np.stack([2.0 * state["sign"] - 1.0, 2.0 * state["noise"] - 1.0], axis=1)
        return {"image": image.reshape(-1, 8, 8, 1), "vector": vector.astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Take the legal action of highest score: 1. Two actions are legal (`action_mask`); any other raises."""

    actions: int = 5
    length: int = 8
    truncates: ClassVar[bool] = False
    action = property(lambda self: gs.Discrete(self.actions))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: self.length / 2)  # of a uniform choice among the legal ones

    @property
    def observation(self) -> Space:
        scores = gs.Box(0, 1, (self.actions,), np.float32)
        return gs.Dict({"action_mask": gs.MultiBinary(self.actions), "scores": scores})

    def start(self, draws: Draws) -> State:
        scores = np.stack([draws.uniform() for _ in range(self.actions)], axis=1)
        one, shift = draws.integers(self.actions), 1 + draws.integers(self.actions - 1)
        mask = np.zeros(scores.shape, np.int8)
        mask[np.arange(len(mask)), one] = mask[np.arange(len(mask)), (one + shift) % self.actions] = 1
        return {"scores": scores, "mask": mask}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        illegal = np.flatnonzero(live & (state["mask"][np.arange(len(action)), action] == 0))
        if len(illegal):
            env, mask = state["env_id"][illegal[0]], state["mask"][illegal[0]].tolist()
            message = f"'masked', environment {env}: action {action[illegal[0]]} is illegal, action_mask is {mask}"
            raise ValueError(f"{message}: choose among the actions whose mask is 1")
        reward = action == np.where(state["mask"], state["scores"], -1.0).argmax(axis=1)
        for name, value in self.start(draws).items():
            state[name][:] = value
        return reward

    def observe(self, state: State) -> PyTree:
        return {"action_mask": state["mask"].copy(), "scores": state["scores"].copy()}


@dataclass(frozen=True, kw_only=True)
class PointReach:
    """Move a point to a target in the plane (Box actions, at most `speed` per axis); minus the distance, each step.

    float32 [4]: position and target, both uniform in the square [-1, 1]². Episodes are truncated.
    """

    length: int = 20
    speed: float = 0.2
    truncates: ClassVar[bool] = True
    observation = property(lambda self: gs.Box(-1, 1, (4,), np.float32))
    action = property(lambda self: gs.Box(-1, 1, (2,), np.float32))
    optimal_return = property(lambda self: -2.35)  # simulated, for the default options
    random_return = property(lambda self: -21.2)  # simulated, for the default options

    def start(self, draws: Draws) -> State:
        return {"point": np.stack([2 * draws.uniform() - 1 for _ in range(4)], axis=1)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        position, target = state["point"][:, :2], state["point"][:, 2:]
        position[:] = np.clip(position + np.float32(self.speed) * action, -1, 1)
        return -np.sqrt(np.square(position - target).sum(axis=1))

    def observe(self, state: State) -> PyTree:
        return state["point"].copy()


@dataclass(frozen=True, kw_only=True)
class PixelReach:
    """Point-reach from an image: a bright dot is moved to a dim target; minus the distance, each step.

    uint8 [side, side]: two blobs, of which the brighter one hides the other. Nobody says where they are in numbers.
    """

    length: int = 20
    speed: float = 0.2
    side: int = 24
    truncates: ClassVar[bool] = True
    observation = property(lambda self: gs.Box(0, 255, (self.side, self.side), np.uint8))
    action = property(lambda self: gs.Box(-1, 1, (2,), np.float32))
    optimal_return = property(lambda self: -2.35)  # point-reach's
    random_return = property(lambda self: -21.2)

    start, step = PointReach.start, PointReach.step

    def observe(self, state: State) -> PyTree:
        """Draw the blobs: as wide as a twelfth of the image, their centres at least that far from its border."""
        pixels = np.linspace(-1.0, 1.0, self.side, dtype=np.float32) * np.float32(1.25)  # of the square [-1, 1]
        near = np.exp(-0.5 * np.square((pixels - state["point"][..., None]) / np.float32(0.125)))  # [B, 4, side]
        dot, target = (near[:, i + 1, :, None] * near[:, i, None, :] for i in (0, 2))
        return np.maximum(255.0 * dot, 110.0 * target).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Truncating:
    """Reward 1 for ever, but cut every `length` steps: bootstrapped right, the value is 1 / (1 - discount)."""

    length: int = 10
    truncates: ClassVar[bool] = True
    observation = property(lambda self: gs.Box(0, 1, (1,), np.float32))
    action = property(lambda self: gs.Discrete(2))
    optimal_return = property(lambda self: float(self.length))
    random_return = property(lambda self: float(self.length))

    def start(self, draws: Draws) -> State:
        return {}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        return np.ones(len(action), np.float32)

    def observe(self, state: State) -> PyTree:
        return np.ones((len(state["key"]), 1), np.float32)  # always the same: a value cannot depend on time


@dataclass(frozen=True, kw_only=True)
class DeepSea:
    """Dive right at every step: 1 in the far corner, which chance finds in 2^-size episodes; every step right costs a little.

    float32 [size, size]: where the diver is, one row deeper at every step (Osband et al. 2019). Which of the two actions
    leads right differs from cell to cell, so no action is better by itself.
    """

    size: int = 10
    cost: float = 0.01  # of a whole way right
    truncates: ClassVar[bool] = False
    length = property(lambda self: self.size)
    observation = property(lambda self: gs.Box(0, 1, (self.size, self.size), np.float32))
    action = property(lambda self: gs.Discrete(2))
    optimal_return = property(lambda self: 1.0 - self.cost)
    random_return = property(lambda self: 0.5**self.size - self.cost / 2)

    def right(self, row: Array, column: Array) -> Array:
        """Return [B] the action that leads right from there: always the same one in a cell."""
        z = (np.asarray(row) * self.size + column + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        return (z >> np.uint64(40)).astype(np.int32) & 1

    def start(self, draws: Draws) -> State:
        column = np.zeros_like(draws.integers(self.size))
        return {"column": column, "row": np.zeros_like(column)}

    def step(self, state: State, action: Array, live: Array, draws: Draws) -> Array:
        went = action == self.right(state["row"], state["column"])
        found = went & (state["row"] == self.size - 1) & (state["column"] == self.size - 1)
        state["row"] += 1
        state["column"][:] = np.clip(state["column"] + np.where(went, 1, -1), 0, self.size - 1)
        return found - went * (self.cost / self.size)

    def observe(self, state: State) -> PyTree:
        sea = np.zeros((len(state["row"]), self.size, self.size), np.float32)
        at = np.arange(len(sea))
        sea[at, np.minimum(state["row"], self.size - 1), state["column"]] = state["row"] < self.size
        return sea


TOYS: dict[str, type] = {
    "identity": Identity,
    "multi-discrete": MultiIdentity,
    "multi-binary": BinaryIdentity,
    "catch": Catch,
    "cue-recall": CueRecall,
    "deep-sea": DeepSea,
    "dict-obs": DictObservation,
    "grasping": Grasping,
    "masked": Masked,
    "pixel-reach": PixelReach,
    "point-reach": PointReach,
    "truncating": Truncating,
}
