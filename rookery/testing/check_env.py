"""check_env, check_pool: does an environment, or a pool of them, keep what EnvPool and TimeStep promise?

    check_env("MyEnv-v0")                                       # or the class, or whatever rookery.envs.make takes
    check_pool(lambda num_envs, groups: MyPool(num_envs, groups))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rookery import envs, spaces
from rookery.testing.contracts import require
from rookery.testing.playing import (
    Playthrough,
    advance,
    assert_next_step_autoreset,
    assert_same,
    play,
    random_action,
    reference_episodes,
)
from rookery.testing.snapshots import checkpointed
from rookery.trees import tree_leaves, tree_map
from rookery.types import EnvPool, TimeStep

MakePool = Callable[[int, int], EnvPool]  # (num_envs, groups), as in a Job


def check_env(env: Any, *, num_envs: int = 4, steps: int = 200, seed: int = 7, **options: Any) -> None:
    """Assert that an environment works as a pool of several, played with random actions. Raises ContractBroken."""
    check_pool(lambda n, groups: envs.make(env, n, groups=groups, **options), num_envs=num_envs, steps=steps, seed=seed)


def check_pool(
    make_pool: MakePool, *, num_envs: int = 4, steps: int = 200, seed: int = 7, as_played: bool = True
) -> None:
    """Assert the contracts of a pool: shapes and types, next-step autoreset, episodes, seeds, groups, snapshots, rebuild.

    steps: that are played; some episode must end in them. as_played: rewards are those of the episodes; False where they are
    clipped or lives end episodes. Raises ContractBroken.
    """
    with _Opened(make_pool, num_envs, 1) as pool:
        _check_groups(pool, num_envs, 1)
        played = play(pool, steps, seed=seed)
        for number, step in enumerate(played.steps):
            _check_step(pool, step, number)
        _check_autoreset(played)
        if as_played:
            _check_episodes(played)
    with _Opened(make_pool, num_envs, 1) as pool:
        try:
            assert_same(play(pool, steps, seed=seed).steps, played.steps)
        except AssertionError as error:
            require(False, f"reset({seed}) and the same actions gave something else the second time: {error}")
        _check_snapshot(pool, make_pool, num_envs, steps=min(steps, 30))
        _check_rebuild(pool)
    if num_envs > 1:
        with _Opened(make_pool, num_envs, 2) as pool:
            _check_groups(pool, num_envs, 2)
            _check_autoreset(play(pool, steps, seed=seed))


class _Opened:
    def __init__(self, make_pool: MakePool, num_envs: int, groups: int) -> None:
        self._pool = make_pool(num_envs, groups)

    def __enter__(self) -> EnvPool:
        return self._pool

    def __exit__(self, *_: Any) -> None:
        self._pool.close()


def _check_groups(pool: EnvPool, num_envs: int, groups: int) -> None:
    require(pool.num_envs == num_envs, f"num_envs is {pool.num_envs}, {num_envs} were asked for")
    require(len(pool.groups) == groups, f"there are {len(pool.groups)} groups, {groups} were asked for")
    covered = [i for group in pool.groups for i in range(group.start, group.stop)]
    require(covered == list(range(num_envs)), f"groups {pool.groups} are not contiguous slices of {num_envs} environments")
    for role, space in (("observation", pool.spec.observation), ("action", pool.spec.action)):
        require(spaces.canonical(space) == space, f"spec.{role} is not canonical: {space}; use rookery.spaces.spec_of")


def _check_step(pool: EnvPool, step: TimeStep, number: int) -> None:
    B, where = pool.num_envs, "reset" if number == 0 else f"step {number}"
    wanted = tree_map(lambda spec: ((B, *spec.shape), spec.dtype), {"": spaces.array_specs(pool.spec.observation)})
    leaves = zip(tree_leaves(step.observation), _pairs(wanted))
    for found, (shape, dtype) in leaves:
        fits = found.shape == shape and found.dtype == dtype
        require(fits, f"{where}: an observation is {found.dtype}{list(found.shape)}, the spec says {dtype}{list(shape)}")
    types = {"env_ids": np.int32, "reward": np.float32, "terminated": np.bool_, "truncated": np.bool_, "first": np.bool_}
    for name, dtype in types.items():
        found = getattr(step, name)
        fits = found.shape == (B,) and found.dtype == dtype
        require(fits, f"{where}: {name} is {found.dtype}{list(found.shape)}, not {np.dtype(dtype).name}[{B}]")
    require(np.isfinite(step.reward).all(), f"{where}: a reward is not finite")
    require((step.env_ids == np.arange(B)).all(), f"{where}: env_ids are {step.env_ids}")


def _pairs(tree: Any) -> list[tuple[tuple[int, ...], Any]]:
    """List the leaves that are (shape, type), in jax's order."""
    if isinstance(tree, dict):
        return [pair for key in sorted(tree) for pair in _pairs(tree[key])]
    if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[1], np.dtype):
        return [tree]
    return [pair for part in tree for pair in _pairs(part)]


def _check_autoreset(played: Playthrough) -> None:
    try:
        assert_next_step_autoreset(played.steps)
    except AssertionError as error:
        require(False, "autoreset is not next-step: after an end the next answer is `first`, with reward 0 and no flags, "
                       f"and no other answer is ({str(error).strip()})")  # fmt: skip


def _check_episodes(played: Playthrough) -> None:
    expected, found = reference_episodes(played.steps), played.episodes
    require(expected, f"no episode ended in {len(played.steps) - 1} steps: give check_env more steps")
    rounded = lambda episodes: sorted((e.env_id, round(e.total_reward, 3), e.length) for e in episodes)
    missing = [e for e in rounded(expected) if e not in rounded(found)]
    require(len(found) == len(expected), f"take_episodes() gives {len(found)} episodes, {len(expected)} ended")
    require(not missing, f"take_episodes() has no episode of (environment, return, length) {missing[:3]}")


def _check_snapshot(pool: EnvPool, make_pool: MakePool, num_envs: int, *, steps: int) -> None:
    saved = checkpointed(pool.snapshot())
    if saved is None:
        return
    rng = np.random.default_rng(3)
    newest = advance(pool, random_action(pool, rng))
    saved = checkpointed(pool.snapshot())
    rest = play(pool, steps, start=newest, actions=5).steps
    with _Opened(make_pool, num_envs, 1) as other:
        other.reset(99)
        shown = tree_map(np.array, other.restore(saved))
        try:
            assert_same(tuple(shown), tuple(rest[0]))
            assert_same(play(other, steps, start=shown, actions=5).steps, rest)
        except AssertionError as error:
            require(False, f"restore(snapshot) does not continue as if never stopped: {error}")


def _check_rebuild(pool: EnvPool) -> None:
    rng = np.random.default_rng(4)
    pool.reset(1)
    for _ in range(20):
        step = advance(pool, random_action(pool, rng))
        running = np.flatnonzero(~(step.terminated | step.truncated))
        if running.size:
            break
    env = int(running[0]) if running.size else 0
    pool.rebuild(env)
    step = advance(pool, random_action(pool, rng))
    begun = step.first[env] and step.reward[env] == 0 and not step.terminated[env] and not step.truncated[env]
    require(begun, f"rebuild({env}): the next answer of environment {env} is not the first of an episode")
