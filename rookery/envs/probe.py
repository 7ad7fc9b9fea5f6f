"""Try an environment before a run: its spaces, what a step costs, and whether it keeps the contract of Gymnasium.

Run in a process of its own, so that an environment that exits or hangs takes nothing with it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from rookery import spaces
from rookery.envs import legal
from rookery.envs.gym_envs import AnswerRows, GymEnvs, MakeEnv

MAX_STEPS = 2000


class _Failed(Exception):
    """It broke a promise while it was played."""


class Probe(NamedTuple):
    observation: Space
    action: Space
    step_seconds: float  # of one environment, resets included
    notes: tuple[str, ...]  # promises that it does not keep, but that a run can live with


def probe(make_env: MakeEnv, name: str, *, seconds: float = 0.15) -> Probe:
    """Make one, play it at random for a moment and check what it answers. Raises if it is not fit to be used."""
    gym_envs = GymEnvs(make_env, [0], 1, name=name)
    tree, flags = spaces.zeros(gym_envs.observation, (1,)), [np.zeros(1, bool) for _ in range(3)]
    answer = AnswerRows(gym_envs.observation, tree, np.zeros(1, np.float32), *flags, start=0)
    notes = []
    begin, step_seconds = time.perf_counter(), 0.0
    try:
        if not _seed_counts(gym_envs, answer):
            notes.append(_IGNORES_SEED.format(name=name))
        gym_envs.reseed(0, 0, seed=0)
        step_seconds = _play(gym_envs, answer, seconds)
    except _Failed as error:  # a run may live with it, within its budget
        notes.append(f"it failed when it was tried: {error}")
        step_seconds = (time.perf_counter() - begin) / max(1, gym_envs.steps[0])
    gym_envs.close()
    return Probe(gym_envs.observation, gym_envs.action, step_seconds, (*notes, *gym_envs.notes))


_IGNORES_SEED = (
    "{name!r} ignores the seed of reset(): the same seed and the same actions show different things, so a run cannot be "
    "repeated. Its reset() should call super().reset(seed=seed) and draw from self.np_random"
)


def _play(gym_envs: GymEnvs, answer: AnswerRows, seconds: float) -> float:
    """Return the seconds that a step takes, without those in which other processes had the core."""
    begin, count, queued = time.perf_counter(), 0, _run_delay()
    while count < MAX_STEPS and (count < 3 or time.perf_counter() - begin < seconds):
        _advance(gym_envs, answer, _action(gym_envs, answer))
        count += 1
    return (time.perf_counter() - begin - (_run_delay() - queued)) / count


def _run_delay() -> float:
    """Return the seconds that this thread was ready to run and had to wait for a core; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def _seed_counts(gym_envs: GymEnvs, answer: AnswerRows) -> bool:
    """Return whether two resets from one seed, and the first steps after each, show the same."""
    seen: list[list[np.ndarray]] = []
    for _ in range(2):
        gym_envs.reseed(0, 0, seed=0)
        now = []
        for step in range(4):
            _advance(gym_envs, answer, _action(gym_envs, answer))
            if step == 0:  # that was the reset: what was drawn for it hung on the mask of an episode before
                gym_envs.action.seed(0)
            now += [leaf.buffer.copy() for leaf in answer.leaves]
        seen.append(now)
    return all(np.array_equal(a, b) for a, b in zip(*seen))


def _advance(gym_envs: GymEnvs, answer: AnswerRows, action: Any) -> None:
    for failure in gym_envs.advance([0], [action], answer):
        raise _Failed(failure.message)


def _action(gym_envs: GymEnvs, answer: AnswerRows) -> Any:
    """Draw an action that the environment's last observation allows."""
    return legal.sample(gym_envs.action, spaces.take(answer.observation, 0))
