"""Play an environment at random and note what it breaks: one by Gymnasium's calls (`try_env`), or a pool (`try_pool`)."""

from __future__ import annotations

import os
import time
import traceback
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery import spaces
from rookery.envs import legal
from rookery.envs.pools.pool import EnvironmentFailed
from rookery.trees import tree_leaves, tree_map
from rookery.types import EnvPool, PyTree, TimeStep

JUDGED = 500  # observations that are compared with their space, and with what becomes of them later
EXPECTED = "(observation, reward, terminated, truncated, info)"


@dataclass
class Trial:
    """What was seen. Each complaint is a sentence and a remedy, told once."""

    steps: int = 0
    longest: int = 0  # steps of one environment
    seconds: float = 0.0  # of its own time
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    both: int = 0
    masked: str = ""  # "ok", or what is wrong with the mask; "": there is none
    shown: list[int] = field(default_factory=list)  # of a pool: a digest of each answer
    broken: list[tuple[str, str]] = field(default_factory=list)  # no run can live with these
    wrong: list[tuple[str, str]] = field(default_factory=list)  # a run ends by these
    notes: list[tuple[str, str]] = field(default_factory=list)
    told: set[tuple[str, str]] = field(default_factory=set)

    def complain(self, where: list[tuple[str, str]], name: str, text: str, remedy: str) -> None:
        """Add a complaint about a leaf, if there is none of the kind yet."""
        if (name, remedy) not in self.told:
            self.told.add((name, remedy))
            where.append((f"{name} {text}", remedy))


class Breach(Exception):
    """It did not do what Gymnasium promises: a sentence, and a remedy."""


def try_env(env: Any, *, seconds: float, steps: int) -> Trial:
    """Play one environment by its own calls, until it breaks or the time is over."""
    trial, rng, begin = Trial(), np.random.default_rng(0), time.perf_counter()
    alias = _Alias(trial)
    seed: int | None = 0
    promised = (env.observation_space, env.action_space)
    try:
        while trial.steps < steps and (trial.steps < 3 or time.perf_counter() - begin < seconds):
            observation, length, seed = _first(env, seed), 0, None
            if (env.observation_space, env.action_space) != promised:
                raise Breach("its spaces changed with a new episode", "Spaces stay what they were when it was made")
            _judge(env, observation, trial)
            alias.watch(observation)
            while trial.steps < steps and (trial.steps < 3 or time.perf_counter() - begin < seconds):
                trial.steps, length, trial.longest = trial.steps + 1, length + 1, trial.steps + 1
                observation, reward, terminated, truncated = _answer(env, observation, rng, trial.steps)
                trial.rewards.append(reward)
                if trial.steps <= JUDGED:
                    alias.look()
                    _judge(env, observation, trial)
                    alias.watch(observation)
                if terminated or truncated:
                    trial.lengths.append(length)
                    trial.terminated, trial.truncated = trial.terminated + terminated, trial.truncated + (not terminated)
                    trial.both += terminated and truncated
                    break
    except Breach as breach:
        trial.broken.append((str(breach.args[0]), str(breach.args[1])))
    trial.seconds = time.perf_counter() - begin
    return trial


def _first(env: Any, seed: int | None) -> Any:
    try:
        answered = env.reset(seed=seed)
    except (Exception, SystemExit) as error:
        remedy = "It is called as reset(seed=..., options=...), before the first step and after every end"
        raise Breach(f"reset() raised {in_short(error)}", remedy) from error
    if not isinstance(answered, tuple) or len(answered) != 2:
        raise Breach(f"reset() returned {_brief(answered)}, but (observation, info) is expected", "return observation, {}")
    return answered[0]


def _answer(env: Any, observation: Any, rng: np.random.Generator, step: int) -> tuple[Any, float, bool, bool]:
    action = legal_action(env.action_space, observation, rng)
    try:
        answered = env.step(action)
    except (Exception, SystemExit) as error:
        remedy = "Any action of its action_space must be taken, at any step before an end"
        raise Breach(f"step({action}) raised {in_short(error)}, at step {step}", remedy) from error
    if not isinstance(answered, tuple) or len(answered) != 5:
        remedy = "`done` of older versions of Gym became terminated (the task's end) and truncated (a limit of time)"
        raise Breach(f"step({action}) returned {_brief(answered)}, but {EXPECTED} is expected", remedy)
    observation, reward, terminated, truncated, _ = answered
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if flag is None or np.ndim(flag) != 0 or flag not in (0, 1):
            raise Breach(f"{name} is {_brief(flag)} after step({action})", f"{name} is True or False")
    try:
        number = float("nan" if isinstance(reward, (str, bytes)) else reward)
    except (TypeError, ValueError):
        raise Breach(f"the reward is {_brief(reward)} after step({action})", "A reward is a number") from None
    if not np.isfinite(number):
        raise Breach(f"the reward is {reward!r} after step({action}), at step {step}",
                     "A run ends by it: --on-nan drop-episode or clip goes on, and counts it")  # fmt: skip
    return observation, number, bool(terminated), bool(truncated)


def in_short(error: BaseException) -> str:
    """Return an error in a line, with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    said = (str(error).strip().splitlines() or [""])[0][:300]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if said else ''}{said}{place}"


# --------------------------------------------------------------------------------------------------- observations


def _judge(env: Any, observation: Any, trial: Trial) -> None:
    """Compare an observation with its space, leaf by leaf."""
    for path, keys, leaf in spaces.leaves(env.observation_space):
        name, value = path or "the observation", observation
        try:
            for key in keys:
                value = value[key]
        except (KeyError, IndexError, TypeError):
            raise Breach(f"the observation has no leaf {path!r}", f"Its space is {_brief(env.observation_space)}") from None
        array = np.asarray(value)
        expected = np.dtype(leaf.dtype or np.float32)
        if array.shape != tuple(leaf.shape or ()) or not np.can_cast(array.dtype, expected, "same_kind"):
            told = f"{name} has shape {array.shape} of {array.dtype}, but its space promises {leaf.shape} of {expected}"
            raise Breach(told, "Give what observation_space says, or say what is given")
        _judge_values(name, leaf, array, trial)
    if (mask := legal.mask_of(observation)) is not None:
        trial.masked = trial.masked or "ok"
        entries = sum(legal.choices(env.action_space))
        if entries and mask.size != entries:
            trial.masked = f"action_mask has {mask.size} entries, and there are {entries} actions"
        elif not mask.any():
            trial.masked = f"action_mask leaves no action at step {trial.steps}"


def _judge_values(name: str, leaf: Any, array: np.ndarray, trial: Trial) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        trial.complain(trial.wrong, name, f"is {array[at]} at {list(at)}, step {trial.steps}",
                   "A run ends by it: mend it, or --on-nan drop-episode or clip goes on, and counts it")  # fmt: skip
    elif isinstance(leaf, (gs.Discrete, gs.MultiDiscrete)):
        start, count = leaf.start, leaf.n if isinstance(leaf, gs.Discrete) else leaf.nvec
        if ((array < start) | (array >= start + count)).any():
            raise Breach(f"{name} is {_brief(array)} at step {trial.steps}, outside of its space {leaf}",
                         "It cannot be read: make the space larger, or the index smaller")  # fmt: skip
    elif isinstance(leaf, gs.Box) and ((array < leaf.low) | (array > leaf.high)).any():
        trial.complain(trial.notes, name, f"has values from {array.min():.4g} to {array.max():.4g}, outside of its space",
                   "They are used as they are; make the space as wide as what is shown")  # fmt: skip
    if array.dtype == np.float64 and leaf.dtype == np.float32:
        trial.complain(trial.notes, name, "is float64 although its space says float32: cast at each step",
                   "return observation.astype(np.float32)")  # fmt: skip


class _Alias:
    """Whether an observation that was given changes later, because the same array is given again."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._given: list[tuple[np.ndarray, np.ndarray]] = []

    def watch(self, observation: Any) -> None:
        self._given = [(leaf, leaf.copy()) for leaf in tree_leaves(observation) if isinstance(leaf, np.ndarray) and leaf.ndim]

    def look(self) -> None:
        if any(not np.array_equal(now, then, equal_nan=now.dtype.kind == "f") for now, then in self._given):
            self._trial.complain(
                self._trial.notes, "an observation", "changes when the next is made: the same array is given again and again",
                "No harm here, where each is copied; other libraries need `return self.buffer.copy()`",
            )  # fmt: skip
            self._given = []


# --------------------------------------------------------------------------------------------------------- actions


def legal_action(space: Space, observation: Any, rng: np.random.Generator) -> Any:
    """Draw an action of an environment, one that its mask allows where it has one; numbers without a bound within ± 1."""
    if isinstance(space, gs.Box) and space.dtype is not None and space.dtype.kind == "f":
        low, high = (np.where(np.isfinite(end), end, other) for end, other in ((space.low, -1.0), (space.high, 1.0)))
        return rng.uniform(low, high).astype(space.dtype)
    if isinstance(space, gs.Discrete) and legal.mask_of(observation) is None:
        return int(rng.choice(np.arange(space.n))) + int(space.start)
    space.seed(int(rng.integers(2**31)))
    return legal.sample(space, observation)


def _rows(space: Space, observation: PyTree, count: int, rng: np.random.Generator) -> PyTree:
    """Draw canonical actions [count, ...]."""
    drawn = [legal_action(space, tree_map(lambda leaf, i=i: leaf[i], observation), rng) for i in range(count)]
    return _stack(space, drawn)


def _stack(space: Space, drawn: list[Any]) -> PyTree:
    if isinstance(space, gs.Dict):
        return {key: _stack(sub, [one[key] for one in drawn]) for key, sub in space.items()}
    if isinstance(space, gs.Tuple):
        return tuple(_stack(sub, [one[i] for one in drawn]) for i, sub in enumerate(space.spaces))
    return np.stack([np.asarray(one, space.dtype) for one in drawn])


# ------------------------------------------------------------------------------------------------------------ pools


def try_pool(pool: EnvPool, *, seconds: float, steps: int, judge: bool = True, seed: int = 7) -> Trial:
    """Play a pool of one group from a seed. Actions depend on the seed alone, but where masks are to be obeyed."""
    trial, rng = Trial(), np.random.default_rng(seed)
    masked = legal.is_masked(pool.spec.observation)
    ready = [_rows(pool.spec.action, (), pool.num_envs, rng) for _ in range(1 if masked else 32)]
    try:
        now = pool.reset(seed)
        pool.take_episodes()
        begin = time.perf_counter()
        rounds = 0
        while trial.steps < steps and (rounds < 3 or time.perf_counter() - begin < seconds):
            action = _rows(pool.spec.action, now.observation, pool.num_envs, rng) if masked else ready[rounds % len(ready)]
            start = time.perf_counter()
            pool.send(action)
            now = pool.recv()
            trial.seconds += time.perf_counter() - start
            rounds, trial.longest, trial.steps = rounds + 1, rounds + 1, trial.steps + pool.num_envs
            if judge:
                _note_step(pool, now, trial)
    except EnvironmentFailed as error:
        trial.broken.append((str(error).splitlines()[0], "Mend it; a run rebuilds it --env-restarts times"))
    trial.lengths = [episode.length for episode in pool.take_episodes()] if judge else []
    return trial


def _note_step(pool: EnvPool, now: TimeStep, trial: Trial) -> None:
    played = ~now.first
    trial.rewards += now.reward[played].tolist()
    trial.terminated += int(now.terminated.sum())
    trial.truncated += int((now.truncated & ~now.terminated).sum())
    digest = zlib.crc32(now.reward.tobytes() + now.terminated.tobytes() + now.truncated.tobytes())
    for leaf in tree_leaves(now.observation):
        digest = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), digest)
    trial.shown.append(digest)
    if trial.steps <= JUDGED:
        for path, keys, leaf in spaces.leaves(pool.spec.observation):
            value = now.observation
            for key in keys:
                value = value[key]
            for row in value:
                _judge_values(path or "the observation", leaf, np.asarray(row), trial)
        if (mask := legal.mask_of(now.observation, batched=True)) is not None:
            trial.masked = trial.masked or "ok"
            if not mask.any(axis=-1).all():
                trial.masked = f"action_mask leaves no action at step {trial.steps}"


def same(a: Any, b: Any) -> bool:
    """Return whether two trees of what was seen are equal, NaN and all."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")


def _brief(value: Any, most: int = 100) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"
