"""Plays a pool of environments, records its answers, and has a slow reference for what a pool promises."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from rookery import spaces
from rookery.envs import legal
from rookery.trees import tree_map
from rookery.types import EnvPool, Episode, TimeStep


class Playthrough(NamedTuple):
    """What a pool answered to a number of actions."""

    steps: list[TimeStep]  # [0] is the answer to reset; all groups joined, copied
    episodes: list[Episode]


def random_action(pool: EnvPool, rng: np.random.Generator, step: TimeStep | None = None) -> Any:
    """Draw actions: canonical, uniform, legal where there is a mask; the same for any number of groups."""
    if step is not None and (mask := legal.mask_of(step.observation, batched=True)) is not None:
        return legal.draw(pool.spec.action, mask, rng)

    def draw(space: Any) -> np.ndarray:
        if hasattr(space, "low"):
            return rng.uniform(-1.5, 1.5, (pool.num_envs, *space.shape)).astype(np.float32)
        limit = getattr(space, "n", None) if space.shape == () else getattr(space, "nvec", 2)
        return rng.integers(0, limit, (pool.num_envs, *space.shape))

    return spaces.map_space(draw, pool.spec.action)


def advance(pool: EnvPool, action: Any) -> TimeStep:
    """Step every group once: all are sent to before any is received, in the reverse order."""
    for g, group in enumerate(pool.groups):
        pool.send(spaces.take(action, group), g)
    answers = {g: pool.recv(g) for g in reversed(range(len(pool.groups)))}
    parts = zip(*(answers[g] for g in range(len(pool.groups))))
    return TimeStep(*(tree_map(lambda *leaves: np.concatenate(leaves), *part) for part in parts))


def play(pool: EnvPool, num_steps: int, *, seed: int = 7, start: TimeStep | None = None, actions: int = 0) -> Playthrough:
    """Play random actions. start: the newest answer of a pool that was played already; actions: seeds the actions."""
    rng = np.random.default_rng(actions)
    steps = [pool.reset(seed) if start is None else start]
    for _ in range(num_steps):
        steps.append(advance(pool, random_action(pool, rng, steps[-1])))
    return Playthrough(steps, pool.take_episodes())


def assert_same(a: Any, b: Any) -> None:
    """Assert that trees of arrays are the same, bit for bit."""

    def same(x: Any, y: Any) -> None:
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)

    tree_map(same, a, b)


def assert_next_step_autoreset(steps: list[TimeStep]) -> None:
    """Assert what TimeStep promises, row by row."""
    assert steps[0].first.all()
    for before, after in itertools.pairwise(steps):
        np.testing.assert_array_equal(after.first, before.terminated | before.truncated)
        assert not after.reward[after.first].any()
        assert not (after.terminated | after.truncated)[after.first].any()


def reference_episodes(steps: list[TimeStep]) -> list[Episode]:
    """Add up the episodes of recorded answers, one environment and one step at a time."""
    num_envs = len(steps[0].first)
    total, length, episodes = [0.0] * num_envs, [0] * num_envs, []
    for step in steps[1:]:
        for env in range(num_envs):
            if step.first[env]:
                total[env], length[env] = 0.0, 0
                continue
            total[env] += float(step.reward[env])
            length[env] += 1
            if step.terminated[env] or step.truncated[env]:
                episodes.append(Episode(env, total[env], length[env]))
    return episodes
