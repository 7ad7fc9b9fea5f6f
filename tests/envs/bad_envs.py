"""Environments that break their promises, for pools to survive. In a module, so that worker processes can import them."""

from __future__ import annotations

import os
import sys
import time
import zlib

import gymnasium
import numpy as np
from gymnasium import spaces as gs


class Counter(gymnasium.Env):
    """Shows [number, steps]; pays 1 a step; an episode has `length` steps. Its whole state can be saved."""

    observation_space = gs.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length, self.steps, self.number = length, 0, 0

    def _seen(self):
        return np.array([self.number, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.steps = int(1e6 * self.np_random.random()), 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), 1.0, False, self.steps == self.length, {}

    def get_state(self):
        words = self.np_random.bit_generator.state["state"]
        split = [number >> 64 * i & (1 << 64) - 1 for number in (words["state"], words["inc"]) for i in (0, 1)]
        return {"counts": np.array([self.steps, self.number]), "random": np.array(split, np.uint64)}

    def set_state(self, state):
        self.steps, self.number = (int(count) for count in state["counts"])
        low, high, inc_low, inc_high = (int(word) for word in state["random"])
        generator = self.np_random.bit_generator.state
        generator["state"] = {"state": high << 64 | low, "inc": inc_high << 64 | inc_low}
        self.np_random.bit_generator.state = generator


def fault(name: str):
    """What goes wrong in a step: given the right answer, gives the wrong one, or does not return."""

    def hang(*answer):
        while True:
            time.sleep(60)

    def explode(*answer):
        raise OSError("the simulator is gone")

    seen = lambda value: lambda o, *rest: (value, *rest)
    return {
        "raises": explode,
        "exits": lambda *answer: os._exit(7),
        "leaves": lambda *answer: sys.exit("goodbye"),
        "hangs": hang,
        "NaN": seen(np.array([0, np.nan], np.float32)),
        "shape": seen(np.zeros(3, np.float32)),
        "dtype": seen(np.zeros(2, complex)),
        "reward": lambda o, r, *rest: (o, None, *rest),
        "flag": lambda o, r, t, *rest: (o, r, "yes", *rest),
        "old interface": lambda o, r, t, u, i: (o, r, t, i),
        "nothing": lambda *answer: None,
    }[name]


class Faulty(Counter):
    """A Counter that goes wrong in its third step if it got an action of 1 there."""

    def __init__(self, wrong: str) -> None:
        super().__init__(length=100)
        self.wrong = fault(wrong)

    def step(self, action):
        answer = super().step(action)
        return self.wrong(*answer) if self.steps == 3 and action == 1 else answer


class ResetRaises(Counter):
    """The second episode never starts."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        if self.episodes == 2:
            raise ValueError("no second chance")
        return super().reset(seed=seed)


class OldReset(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Growing(Counter):
    """Another observation space in its second episode."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        if self.episodes == 2:
            self.observation_space = gs.Box(-1, 1, (3,), np.float32)
        return super().reset(seed=seed)


class Seedless(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Reusing(Counter):
    """The same array again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def _seen(self):
        self.buffer[:] = super()._seen()
        return self.buffer


class Index(Counter):
    """An index that leaves its range at the third step."""

    observation_space = gs.Discrete(3)

    def _seen(self):
        return self.steps


class Beyond(Counter):
    """A little outside of its box, as many good environments are."""

    observation_space = gs.Box(-1, 1, (2,), np.float32)


class DiesInConstructor(Counter):
    def __init__(self) -> None:
        os._exit(9)


class HangsInConstructor(Counter):
    def __init__(self) -> None:
        time.sleep(600)


class Slow(Counter):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class Checked(gymnasium.Env):
    """An observation that carries its own checksum: one that is torn shows. [process, episode, step, checksum, noise]."""

    observation_space = gs.Dict(
        head=gs.Box(0, 2**31 - 1, (4,), np.int32),
        body=gs.Box(0, 255, (4096,), np.uint8),
        tail=gs.Box(0, 2**31 - 1, (4,), np.int32),
    )
    action_space = gs.Discrete(2)
    episode = -1

    def _seen(self):
        body = np.frombuffer(np.random.default_rng((self.episode, self.steps)).bytes(4096), np.uint8)
        head = np.array([os.getpid(), self.episode, self.steps, zlib.crc32(body.tobytes()) & 0x7FFFFFFF], np.int32)
        return {"head": head, "body": body, "tail": head.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), float(self.steps), False, self.steps == 50, {}


def whole(observation) -> bool:
    """Is every row of these observations one that Checked made?"""
    same = (observation["head"] == observation["tail"]).all()
    sums = [zlib.crc32(body.tobytes()) & 0x7FFFFFFF for body in observation["body"]]
    return bool(same and (observation["head"][:, 3] == sums).all())


class HangsAtOnce(Counter):
    """Deaf to every signal that can be ignored."""

    def step(self, action):
        import signal

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
