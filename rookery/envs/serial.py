"""Any Gymnasium environment, stepped one after the other in this process.

Observations are written into two alternating sets of preallocated arrays per group, so an answer stays whole
until the one after the next is received, and an environment that reuses its own buffers does no harm. The step
that follows the end of an episode resets the environment here; no Gymnasium vector class is involved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from rookery import spaces
from rookery.envs.pool import EnvironmentFailed, LetterBox, Tally, derive_seed, env_ids, join, not_finite, split
from rookery.trees import tree_map
from rookery.types import Episode, PyTree, TimeStep


class SerialPool:
    """`make_env()` gives a gymnasium.Env; one is made per slot."""

    stack_axis: int | None = None

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        num_envs: int,
        *,
        id: str,
        seed: int = 0,
        groups: int = 1,
    ) -> None:
        self.id, self.num_envs, self.groups = id, num_envs, split(num_envs, groups)
        self._make, self._seed, self._incarnation = make_env, seed, [0] * num_envs
        self._envs = [make_env() for _ in range(num_envs)]
        self._observation, self._action = self._envs[0].observation_space, self._envs[0].action_space
        spaces.check(self._observation, "observation")
        spaces.check(self._action, "action")
        self.spec = spaces.spec_of(self._observation, self._action, id)
        self._encode = [spaces.action_encoder(self._action, g.stop - g.start) for g in self.groups]
        self._box, self._tally = LetterBox(groups), Tally(self.groups)
        self._answers = [(_Answer(self._observation, g), _Answer(self._observation, g)) for g in self.groups]
        self._turn = [0] * groups  # which of the two answers was given last
        self._todo: list[list[int]] = [[] for _ in self.groups]  # rows still to step, should one fail in the middle
        self._ended = [True] * num_envs  # the next answer is a first one
        self._reseed: list[int | None] = [None] * num_envs
        self._steps = [0] * num_envs  # within the episode, for messages
        self._warned = False

    def reset(self, seed: int | None = None) -> TimeStep:
        """All environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._seed = self._seed if seed is None else seed
        self._incarnation = [0] * self.num_envs
        self._tally.start_all()
        self._box.clear_all()
        for group, ids in enumerate(self.groups):
            self._turn[group] = 0
            for env in range(ids.start, ids.stop):
                self._reseed[env] = derive_seed(self._seed, env, 0)
                self._start_episode(env, self._answers[group][0])
        return self._everything()

    def send(self, action: PyTree, group: int = 0) -> None:
        """Returns at once: the environments are stepped by `recv`."""
        size = self.groups[group].stop - self.groups[group].start
        self._box.put(tree_map(np.copy, self._encode[group](action)), group)  # it may be the caller's own array
        self._turn[group] ^= 1
        self._todo[group] = list(range(size - 1, -1, -1))

    def recv(self, group: int = 0) -> TimeStep:
        action, start = self._box.peek(group), self.groups[group].start
        answer = self._answers[group][self._turn[group]]
        todo = self._todo[group]
        while todo:  # a row leaves the list when it is done: after a failure and a rebuild, recv() goes on from there
            env = start + todo[-1]
            if self._ended[env]:
                self._start_episode(env, answer)
            else:
                self._step(env, spaces.take(action, todo[-1]), answer)
            todo.pop()
        self._check_finite(group, answer, action)
        self._tally.add(group, answer.step.reward, answer.step.terminated | answer.step.truncated)
        self._box.clear(group)
        return answer.step

    def rebuild(self, env_id: int) -> None:
        self._tally.abort(env_id)
        with suppress(Exception):  # it may be broken: that is why it is replaced
            self._envs[env_id].close()
        self._incarnation[env_id] += 1
        self._reseed[env_id] = derive_seed(self._seed, env_id, self._incarnation[env_id])
        self._ended[env_id] = True
        self._envs[env_id] = self._make()

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    def snapshot(self) -> PyTree | None:
        """None unless every environment has `get_state()` (a tree of arrays) and `set_state(state)`.

        Only the outermost object is asked: what a wrapper such as TimeLimit counts must be in the state too.
        """
        self._box.require_idle("snapshot()")
        if not all(hasattr(env, "get_state") and hasattr(env, "set_state") for env in self._envs):
            return None
        last = self._everything()
        return {
            "envs": tuple(env.get_state() for env in self._envs),  # type: ignore[attr-defined]
            "last": dict(zip(TimeStep._fields, last)),
            "ended": np.array(self._ended),
            "reseed": np.array([-1 if seed is None else seed for seed in self._reseed], np.int64),
            "incarnation": np.array(self._incarnation, np.int64),
            "steps": np.array(self._steps, np.int64),
            "seed": np.array(self._seed, np.int64),
            "tally": self._tally.snapshot(),
        }

    def restore(self, snapshot: PyTree) -> TimeStep:
        if len(snapshot["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot has {len(snapshot['envs'])} environments, this pool {self.num_envs}")
        for env, state in zip(self._envs, snapshot["envs"]):
            env.reset()  # a new environment may refuse to step before its first reset
            env.set_state(state)  # type: ignore[attr-defined]
        self._ended = [bool(ended) for ended in snapshot["ended"]]
        self._reseed = [None if seed < 0 else int(seed) for seed in snapshot["reseed"]]
        self._incarnation = [int(count) for count in snapshot["incarnation"]]
        self._steps = [int(count) for count in snapshot["steps"]]
        self._seed = int(snapshot["seed"])
        self._tally.restore(snapshot["tally"])
        self._box.clear_all()
        for group, ids in enumerate(self.groups):
            part = spaces.take(tuple(snapshot["last"][name] for name in TimeStep._fields[1:]), ids)
            tree_map(np.copyto, tuple(self._answers[group][self._turn[group]].step)[1:], part)
        return self._everything()

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _everything(self) -> TimeStep:
        """The last answers of all groups, copied."""
        return join([answers[turn].step for answers, turn in zip(self._answers, self._turn)])

    # ------------------------------------------------------------------------------------------ one environment

    def _start_episode(self, env: int, answer: _Answer) -> None:
        try:
            observation, _ = self._envs[env].reset(seed=self._reseed[env])
        except Exception as error:
            raise EnvironmentFailed(f"{self._place(env)}: reset() raised {error!r}", env) from error
        self._reseed[env], self._ended[env], self._steps[env] = None, False, 0
        self._write(env, answer, observation)
        answer.flag(env, reward=0.0, terminated=False, truncated=False, first=True)

    def _step(self, env: int, action: Any, answer: _Answer) -> None:
        self._steps[env] += 1
        try:
            observation, reward, terminated, truncated, _ = self._envs[env].step(action)
        except Exception as error:
            raise EnvironmentFailed(f"{self._place(env)}: step({action}) raised {error!r}", env) from error
        self._write(env, answer, observation)
        try:
            answer.flag(env, reward=reward, terminated=terminated, truncated=truncated, first=False)
        except (TypeError, ValueError) as error:
            message = f"{self._place(env)}: reward {reward!r}, terminated {terminated!r}, truncated {truncated!r}"
            raise EnvironmentFailed(f"{message}: a number and two booleans are expected", env) from error
        self._ended[env] = bool(terminated or truncated)

    def _write(self, env: int, answer: _Answer, observation: PyTree) -> None:
        for leaf in answer.leaves:
            name = leaf.path or "observation"
            try:
                value = observation
                for key in leaf.keys:
                    value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise EnvironmentFailed(f"{self._place(env)}: observation has no leaf {name!r}", env) from error
            array = np.asarray(value)
            if array.shape != leaf.shape or not np.can_cast(array.dtype, leaf.buffer.dtype, "same_kind"):
                got = f"shape {array.shape} of {array.dtype}"
                raise EnvironmentFailed(
                    f"{self._place(env)}: {name} has {got}, but its space promises {leaf.shape} of {leaf.declared}", env
                )
            if array.dtype.name == "float64" and leaf.declared.name == "float32" and not self._warned:
                self._warned = True
                warnings.warn(f"{self.id!r}: {name} is float64 although its space says float32; cast", stacklevel=4)
            if leaf.limit is not None:
                array = array - leaf.start
                if (array < 0).any() or (array >= leaf.limit).any():
                    raise EnvironmentFailed(f"{self._place(env)}: {name} = {value} is outside its space", env)
            leaf.buffer[env - answer.start] = spaces.saturate(leaf.space, array) if leaf.narrowed else array

    def _check_finite(self, group: int, answer: _Answer, action: PyTree) -> None:
        for name, buffer in answer.floats:
            bad = not_finite(buffer)
            if len(bad):
                row = int(bad[0])
                self._todo[group].append(row)  # after a rebuild, recv() asks this one again
                message = f"{self._place(answer.start + row)}: {name} is not finite after action"
                raise EnvironmentFailed(f"{message} {spaces.take(action, row)}", answer.start + row)

    def _place(self, env: int) -> str:
        return f"{self.id!r}, environment {env} (incarnation {self._incarnation[env]}), step {self._steps[env]}"


@dataclass(frozen=True)
class _Leaf:
    path: str
    keys: tuple[Any, ...]  # how to reach it in an observation
    shape: tuple[int, ...]
    space: gs.Space
    declared: np.dtype[Any]
    narrowed: bool  # 64-bit integers, stored in 32
    start: Any
    limit: Any  # of Discrete and MultiDiscrete, else None
    buffer: np.ndarray  # [B, *shape]


class _Answer:
    """Preallocated arrays of one group and the TimeStep that shows them."""

    def __init__(self, observation: gs.Space, group: slice) -> None:
        size, self.start = group.stop - group.start, group.start
        tree = spaces.zeros(observation, (size,))
        flags = [np.zeros(size, bool) for _ in range(3)]
        self.step = TimeStep(env_ids(group), tree, np.zeros(size, np.float32), *flags)
        self.leaves = [_leaf(path, keys, space, tree) for path, keys, space in spaces.leaves(observation)]
        named = [(leaf.path or "observation", leaf.buffer) for leaf in self.leaves]
        self.floats = [(name, b) for name, b in [*named, ("reward", self.step.reward)] if b.dtype.kind == "f"]

    def flag(self, env: int, *, reward: Any, terminated: Any, truncated: Any, first: bool) -> None:
        row, step = env - self.start, self.step
        step.reward[row], step.terminated[row], step.truncated[row] = float(reward), terminated, truncated
        step.first[row] = first


def _leaf(path: str, keys: tuple[Any, ...], space: gs.Space, tree: PyTree) -> _Leaf:
    for key in keys:
        tree = tree[key]
    limit = space.n if isinstance(space, gs.Discrete) else space.nvec if isinstance(space, gs.MultiDiscrete) else None
    start = space.start if isinstance(space, (gs.Discrete, gs.MultiDiscrete)) else 0
    declared = np.dtype(space.dtype)
    narrowed = isinstance(space, gs.Box) and declared.kind in "iu" and declared != tree.dtype
    return _Leaf(path, keys, tree.shape[1:], space, declared, narrowed, start, limit, tree)
