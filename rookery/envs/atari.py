"""Atari 2600 through the C++ `AtariVectorEnv` of ale-py, one per group: `send` really returns at once.

Observation: uint8 [stack, height, width] (and 3 with colour), the oldest frame first: `stack_axis = 0`. At the
first step of an episode the older frames are zero. ALE allocates every answer anew, so nothing is copied here.

Autoreset: ale-py's NEXT_STEP mode is what TimeStep promises (a test holds it to that): the action after the end
of a game is ignored, the reward is 0 and the observation is the first of the next game.

Sticky actions: `ALE/Pong-v5` *means* a repeat probability of 0.25 in Gymnasium's registry, and so it does here,
although `AtariVectorEnv` alone and several libraries that accept the id use 0. The `NoFrameskip-v4` ids of older
papers mean 0, and are played with the same preprocessing (frame skip 4), as those papers did in wrappers.
`repeat_action_probability=...` overrides either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from rookery import spaces
from rookery.envs.pools.pool import PendingActions, Tally, derive_seed, env_ids, group_of, read_options, split
from rookery.envs.processes.cores import usable_cores
from rookery.types import Array, Episode, PyTree, TimeStep

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

_ATARI_ID = re.compile(r"ALE/\w+-v5|\w+NoFrameskip-v[04]")


def is_atari(id: str) -> bool:
    """Return whether it is an id of this pool. (Other Atari ids, e.g. Pong-v4, are raw frames for the serial pool.)"""
    return _ATARI_ID.fullmatch(id) is not None


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """The preprocessing; the defaults are those of Machado et al. 2018 and of the DQN papers."""

    repeat_action_probability: float | None = None  # sticky actions; None: what the id means (v5 0.25, v4 0)
    frame_skip: int = 4  # frames per action; the observation is the maximum of the last two
    stack: int = 4  # frames per observation
    life_loss: bool = False  # terminated = True when a life is lost; the game goes on and no `first` follows
    noop_max: int = 30  # a game starts after 1 to this many actions without effect
    fire: bool = True  # press fire after a reset in games that wait for it
    full_action_space: bool = False  # all 18 actions rather than those that matter in the game
    grayscale: bool = True
    height: int = 84
    width: int = 84
    max_frames: int = 108_000  # a game is truncated after so many frames (30 minutes)
    num_threads: int = 0  # per group; 0: one per core, at most one per environment


class AtariPool:
    """Rewards are the game's own; clip them in the algorithm. Episodes are whole games, whatever `life_loss`."""

    stack_axis: int | None = 0

    def __init__(self, id: str, num_envs: int, *, seed: int = 0, groups: int = 1, **options: object) -> None:
        from ale_py.vector_env import AtariVectorEnv  # importing ale_py also registers its ids

        self.id, self.num_envs, self.groups, self._seed = id, num_envs, split(num_envs, groups), seed
        self.options: AtariOptions = read_options(AtariOptions, id, options)
        chosen = self.options
        registered = gymnasium.spec(id).kwargs
        sticky = chosen.repeat_action_probability
        self.repeat_action_probability: float = registered["repeat_action_probability"] if sticky is None else sticky
        self._ids = [env_ids(group) for group in self.groups]
        self._envs: list[AtariVectorEnv] = [
            AtariVectorEnv(
                registered["game"],
                len(ids),
                num_threads=min(chosen.num_threads or usable_cores(), len(ids)),
                max_num_frames_per_episode=chosen.max_frames,
                repeat_action_probability=self.repeat_action_probability,
                full_action_space=chosen.full_action_space,
                img_height=chosen.height,
                img_width=chosen.width,
                grayscale=chosen.grayscale,
                stack_num=chosen.stack,
                frameskip=chosen.frame_skip,
                noop_max=chosen.noop_max,
                use_fire_reset=chosen.fire,
                episodic_life=False,  # it would really reset the game when a life is lost
                life_loss_info=chosen.life_loss,
                reward_clipping=False,
            )
            for ids in self._ids
        ]
        env = self._envs[0]
        self.spec = spaces.spec_of(env.single_observation_space, env.single_action_space, id)
        self._encode = [spaces.action_encoder(env.single_action_space, len(ids)) for ids in self._ids]
        self._box, self._tally = PendingActions(groups), Tally(self.groups, late=chosen.life_loss)
        self._ended = [np.zeros(len(ids), bool) for ids in self._ids]
        self._frames = [np.zeros(len(ids), np.int32) for ids in self._ids]
        self._fresh: list[dict[int, int]] = [{} for _ in self.groups]  # row -> seed, to be reset by the next recv
        self._incarnation = [0] * num_envs

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._drain()
        self._seed = self._seed if seed is None else seed
        self._incarnation = [0] * self.num_envs
        self._fresh = [{} for _ in self.groups]
        observations = []
        for group, (env, ids) in enumerate(zip(self._envs, self._ids)):
            seeds = np.array([derive_seed(self._seed, int(i), 0) for i in ids])
            observation, info = env.reset(seed=seeds)
            observations.append(observation)
            self._ended[group] = np.zeros(len(ids), bool)
            self._frames[group] = info["episode_frame_number"]
        self._tally.start_all()
        self._box.clear_all()
        false = np.zeros(self.num_envs, bool)
        all_ids, reward = np.concatenate(self._ids), np.zeros(self.num_envs, np.float32)
        return TimeStep(all_ids, np.concatenate(observations), reward, false, false, ~false)

    def send(self, action: PyTree, group: int = 0) -> None:
        action = self._encode[group](action)
        self._box.put(True, group)
        self._envs[group].send(action)

    def recv(self, group: int = 0) -> TimeStep:
        self._box.peek(group)
        observation, reward, terminated, truncated, info = self._envs[group].recv()
        self._box.clear(group)
        frames = info["episode_frame_number"]
        first = self._reset_rows(group, frames) if self.options.life_loss else self._ended[group]
        reward, ended = reward.astype(np.float32), terminated | truncated
        over = first if self.options.life_loss else ended
        if self._fresh[group]:
            rows = list(self._fresh[group])
            observation, frames = self._restart(group)
            first, over = first.copy(), over.copy()
            first[rows] = True
            for array in (reward, terminated, truncated, ended, over):
                array[rows] = 0  # what it answered before is forgotten, its episode was given up
        self._ended[group], self._frames[group] = ended, frames
        self._tally.add(group, reward, over)
        return TimeStep(self._ids[group], observation, reward, terminated, truncated, first)

    def rebuild(self, env_id: int) -> None:
        """Start a new game with a new seed in that slot (an emulator in this process cannot be lost)."""
        group = group_of(self.groups, env_id)
        self._incarnation[env_id] += 1
        seed = derive_seed(self._seed, env_id, self._incarnation[env_id])
        self._fresh[group][env_id - self.groups[group].start] = seed
        self._tally.abort(env_id)

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    def snapshot(self) -> PyTree | None:
        """Return None: the vector interface does not give its emulators' states away."""
        return None

    def restore(self, snapshot: PyTree) -> TimeStep:
        raise NotImplementedError(f"{self.id!r} cannot be restored: its snapshot() is None; reset() it instead")

    def close(self) -> None:
        self._drain()
        for env in self._envs:
            env.close()

    def _reset_rows(self, group: int, frames: Array) -> Array:
        """Return, [B] bool, whether the step after `terminated` began a new game, not a new life. (So games count a row late.)

        A step adds 1 to frame_skip frames; after a reset the count starts anew. Lives would not tell: what they
        are at the end of a game is left to each game.
        """
        grown = frames - self._frames[group]
        return self._ended[group] & ((grown <= 0) | (grown > self.options.frame_skip))

    def _restart(self, group: int) -> tuple[Array, Array]:
        """Reset the rebuilt rows alone; ([B, ...] observation, [B] frames) of the whole group."""
        seeds, self._fresh[group] = self._fresh[group], {}
        mask = np.zeros(len(self._ids[group]), bool)
        mask[list(seeds)] = True
        in_order = np.array([seeds[row] for row in sorted(seeds)])
        observation, info = self._envs[group].reset(seed=in_order, options={"reset_mask": mask})
        for row in seeds:
            self._tally.abort(self.groups[group].start + row)
        return observation, info["episode_frame_number"]

    def _drain(self) -> None:
        """Receive what is under way, so that nothing steps while the emulators are reset or freed."""
        for group in range(len(self.groups)):
            if self._box.pending(group):
                self._envs[group].recv()
                self._box.clear(group)
