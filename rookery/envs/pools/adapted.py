"""Apply `PoolOptions`: to the answers of any pool (`AdaptedPool`), and to single observations (a Policy's).

Episodes stay counted as they were played: `take_episodes` is the inner pool's. Frames are stacked here and not in the
environments, so that a pool of any kind can have them; a stack starts anew at each `first`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from rookery import spaces
from rookery.envs.options import PoolOptions
from rookery.trees import tree_map
from rookery.types import Array, EnvPool, Episode, PyTree, Spec, TimeStep

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


class Adapter:
    """Convert canonical observations and rewards of an environment [B, ...] into those that the agent sees.

    `frames` [B, k, ...] are the last observations: `()` where nothing is stacked.
    """

    def __init__(self, space: gs.Space, options: PoolOptions) -> None:
        self.options, self.k = options, options.frame_stack
        self._inner = space
        single = self._spaces(space, ())
        self.space = self._stacked_space(single, ())
        boxes = [path for path, keys, leaf in spaces.leaves(space) if self._is_ours(leaf, keys)]
        if not boxes and (options.frame_stack > 1 or options.grayscale or options.observation_scale != 1):
            raise ValueError(f"frame_stack, grayscale and observation_scale are for Box observations, and {space} has none")
        if options.grayscale and all(not self._is_colour(leaf) for _, _, leaf in spaces.leaves(space)):
            raise ValueError(f"grayscale is for uint8 images [H, W, 3], and {space} has none")

    def start(self, num_envs: int) -> PyTree:
        """Return the frames before the first observation."""
        return spaces.zeros(self.space, (num_envs,)) if self.k > 1 else ()

    def push(self, frames: PyTree, observation: PyTree, first: Array) -> PyTree:
        """Return the frames after another observation; where `first`, those before it are zero."""
        return self._push(self._inner, (), frames, observation, first) if self.k > 1 else ()

    def show(self, frames: PyTree, observation: PyTree) -> PyTree:
        """Return what the agent sees, when `frames` end with that observation."""
        return frames if self.k > 1 else self._single(self._inner, (), observation)

    def reward(self, reward: Array) -> Array:
        scale, clip = self.options.reward_scale, self.options.reward_clip
        reward = reward if scale == 1 else reward * np.float32(scale)
        return reward if clip is None else np.clip(reward, np.float32(-clip), np.float32(clip))

    # ----------------------------------------------------------------------------------------------- leaf by leaf

    def _is_ours(self, leaf: gs.Space, keys: tuple[Any, ...]) -> bool:
        return isinstance(leaf, gs.Box) and "action_mask" not in keys

    def _is_colour(self, leaf: gs.Space) -> bool:
        return isinstance(leaf, gs.Box) and leaf.dtype == np.uint8 and len(leaf.shape) == 3 and leaf.shape[-1] == 3

    def _spaces(self, space: gs.Space, keys: tuple[Any, ...]) -> gs.Space:
        """Return the space of a single observation after grayscale and scale."""
        if isinstance(space, gs.Dict):
            return gs.Dict({key: self._spaces(sub, (*keys, key)) for key, sub in space.items()})
        if isinstance(space, gs.Tuple):
            return gs.Tuple([self._spaces(sub, (*keys, i)) for i, sub in enumerate(space.spaces)])
        if not isinstance(space, gs.Box) or not self._is_ours(space, keys):
            return space
        if self.options.grayscale and self._is_colour(space):
            space = gs.Box(0, 255, space.shape[:2], np.uint8)
        scale = self.options.observation_scale
        if scale != 1:
            ends = np.sort(np.stack([space.low.astype(np.float32), space.high.astype(np.float32)]) * scale, axis=0)
            space = gs.Box(ends[0].astype(np.float32), ends[1].astype(np.float32), dtype=np.float32)
        return space

    def _stacked_space(self, space: gs.Space, keys: tuple[Any, ...]) -> gs.Space:
        if self.k == 1:
            return space
        if isinstance(space, gs.Dict):
            return gs.Dict({key: self._stacked_space(sub, (*keys, key)) for key, sub in space.items()})
        if isinstance(space, gs.Tuple):
            return gs.Tuple([self._stacked_space(sub, (*keys, i)) for i, sub in enumerate(space.spaces)])
        if not isinstance(space, gs.Box) or not self._is_ours(space, keys):
            return space
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)  # the frames before the first are zero
        shape = (self.k, *space.shape)
        dtype: Any = space.dtype
        return gs.Box(np.broadcast_to(low, shape).astype(dtype), np.broadcast_to(high, shape).astype(dtype), dtype=dtype.type)

    def _single(self, space: gs.Space, keys: tuple[Any, ...], value: PyTree) -> PyTree:
        if isinstance(space, gs.Dict):
            return {key: self._single(sub, (*keys, key), value[key]) for key, sub in space.items()}
        if isinstance(space, gs.Tuple):
            return tuple(self._single(sub, (*keys, i), value[i]) for i, sub in enumerate(space.spaces))
        if not self._is_ours(space, keys):
            return value
        if self.options.grayscale and self._is_colour(space):
            value = np.rint(value.astype(np.float32) @ LUMA).astype(np.uint8)
        scale = self.options.observation_scale
        return value if scale == 1 else value.astype(np.float32) * np.float32(scale)

    def _push(self, space: gs.Space, keys: tuple[Any, ...], frames: PyTree, value: PyTree, first: Array) -> PyTree:
        if isinstance(space, gs.Dict):
            parts = space.items()
            return {key: self._push(sub, (*keys, key), frames[key], value[key], first) for key, sub in parts}
        if isinstance(space, gs.Tuple):
            subs = enumerate(space.spaces)
            return tuple(self._push(sub, (*keys, i), frames[i], value[i], first) for i, sub in subs)
        value = self._single(space, keys, value)
        if not self._is_ours(space, keys):
            return np.array(value)  # frames outlive the answer of the pool
        after = np.empty_like(frames)
        after[:, :-1], after[:, -1] = frames[:, 1:], value
        after[first, :-1] = 0
        return after


def adapted_spec(spec: Spec, options: PoolOptions) -> Spec:
    """Return the spec of what the agent sees; `raw` stays the environment's own, and `pool` says what lies between."""
    space = Adapter(spec.observation, options).space
    return spec._replace(observation=space, raw=spec.raw or (spec.observation, spec.action), pool=options)


class AdaptedPool:
    """Any pool, seen through `PoolOptions`."""

    def __init__(self, pool: EnvPool, options: PoolOptions) -> None:
        self.pool, self.options, self.groups, self.num_envs = pool, options, pool.groups, pool.num_envs
        self.id: str = pool.spec.id
        self.spec = adapted_spec(pool.spec, options)
        self._adapter = Adapter(pool.spec.observation, options)
        self.stack_axis: int | None = 0 if options.frame_stack > 1 else getattr(pool, "stack_axis", None)
        self._frames: list[PyTree] = [()] * len(pool.groups)
        if hasattr(pool, "ready_groups"):
            self.ready_groups = pool.ready_groups

    def reset(self, seed: int | None = None) -> TimeStep:
        step = self.pool.reset() if seed is None else self.pool.reset(seed)  # type: ignore[call-arg]
        frames = self._adapter.push(self._adapter.start(self.num_envs), step.observation, step.first)
        self._frames = [spaces.take(frames, group) for group in self.groups]
        return self._seen(step, frames)

    def send(self, action: PyTree, group: int = 0) -> None:
        self.pool.send(action, group)

    def recv(self, group: int = 0) -> TimeStep:
        step = self.pool.recv(group)
        self._frames[group] = self._adapter.push(self._frames[group], step.observation, step.first)
        return self._seen(step, self._frames[group])

    @property
    def clipped(self) -> int:
        return getattr(self.pool, "clipped", 0)

    def rebuild(self, env_id: int) -> None:
        self.pool.rebuild(env_id)

    def take_episodes(self) -> list[Episode]:
        """Return the episodes as they were played: rewards neither scaled nor clipped."""
        return self.pool.take_episodes()

    def snapshot(self) -> PyTree | None:
        inner = self.pool.snapshot()
        if inner is None:
            return None
        frames = tree_map(lambda *parts: np.concatenate(parts), *self._frames)
        return {"pool": inner, "frames": frames}

    def restore(self, snapshot: PyTree) -> TimeStep:
        step = self.pool.restore(snapshot["pool"])
        frames = tree_map(np.array, snapshot["frames"]) if self._adapter.k > 1 else ()
        self._frames = [spaces.take(frames, group) for group in self.groups]
        return self._seen(step, frames)

    def close(self) -> None:
        self.pool.close()

    def _seen(self, step: TimeStep, frames: PyTree) -> TimeStep:
        observation, reward = self._adapter.show(frames, step.observation), self._adapter.reward(step.reward)
        return step._replace(observation=observation, reward=reward)
