"""`envpool:<id>`: the C++ environments of EnvPool, one of its pools per group, so that `send` really returns at once.

What EnvPool 1.2.5 does, measured (the tests hold it to that):

- Autoreset is on the next step, as TimeStep says: the action after an end is ignored, the reward is 0, `elapsed_step` is 0.
- A time limit (`max_episode_steps`) sets `truncated`, with the true last observation.
- `reset(seed)` of EnvPool ignores the seed, and a second `reset()` goes on with the same random numbers. Only the seed given
  when a pool is made counts; an integer seeds its environments with neighbouring numbers, so that pools of neighbouring
  seeds share most of their games. Here every environment has a seed of its own, made of (seed, env id), and `reset(seed)`
  makes the pools anew. `rebuild` resets a slot with its next random numbers.
- Atari: `episodic_life=True` ends an episode with each life and goes on with the same game. Episodes are counted by game over
  all the same, and with the rewards before `reward_clip`. `Pong-v5` means no sticky actions here (Gymnasium's `ALE/Pong-v5`
  means 0.25), and the stack of a first observation repeats its frame instead of starting with zeros: hence no `stack_axis`.

The package is large (0.9 GB) and slow to import (8 s): it is imported here alone, when such an environment is asked for.
"""

from __future__ import annotations

import warnings
from collections import deque
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from rookery import spaces
from rookery.envs.pools.pool import (
    EnvironmentFailed,
    OnNan,
    PendingActions,
    Tally,
    check_options,
    clip_step,
    clipped,
    derive_seed,
    env_ids,
    find_not_finite,
    group_of,
    join,
    not_finite_kind,
    split,
)
from rookery.envs.processes.cores import usable_cores
from rookery.envs.registry import UnknownEnvironment
from rookery.trees import tree_map
from rookery.types import Array, Episode, PyTree, TimeStep

PREFIX = "envpool:"
OURS = ("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info", "max_num_players")  # not to be set


class _Answer(NamedTuple):
    step: TimeStep
    played: Array  # [B] rewards before they were clipped
    over: Array  # [B] bool: the game is over


class EnvpoolPool:
    """Options go to `envpool.make`; `num_threads` is per group, by default one per core and at most one per environment."""

    stack_axis: int | None = None
    on_nan: OnNan = "stop"
    clipped = 0  # answers whose numbers were made finite

    def __init__(self, id: str, num_envs: int, *, seed: int = 0, groups: int = 1, **options: Any) -> None:
        if find_spec("envpool") is None:
            raise UnknownEnvironment(f"{id!r} needs envpool: pip install 'rookery[envpool]'")
        import envpool

        self.id, self.num_envs, self.groups = id, num_envs, split(num_envs, groups)
        self._make, self._name, self._options = envpool.make, id.removeprefix(PREFIX), options
        _check_id(id, envpool.list_all_envs())
        check_options(id, options, [name for name in envpool.make_spec(self._name).config._fields if name not in OURS])
        self._ids = [env_ids(group) for group in self.groups]
        self._seed = seed
        self._envs = self._build()
        self._used = False
        observation, action = self._envs[0].observation_space, self._envs[0].action_space
        self.spec = spaces.spec_of(observation, action, id)
        self._decode = spaces.observation_decoder(observation)
        self._encode = [spaces.action_encoder(action, len(ids)) for ids in self._ids]
        self._leaves = [(path or "observation", keys) for path, keys, _ in spaces.leaves(observation)]
        self._box, self._tally = PendingActions(groups), Tally(self.groups)
        self._ended = [np.zeros(len(ids), bool) for ids in self._ids]  # [B]: the next answer is a first one
        self._over = [np.zeros(len(ids), bool) for ids in self._ids]  # [B]: of a game, and not only of a life
        self._fresh = np.zeros(num_envs, bool)  # rebuilt, to be reset by the next recv
        self._received: list[_Answer | None] = [None] * groups  # one that was not finite, until it is repaired
        self._lives = np.zeros(num_envs, np.int64)  # rows of the running game that only began a life
        self._life_rows: list[deque[int]] = [deque() for _ in range(num_envs)]  # the same, of games that are over

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, made anew where that is what a seed takes; without one, that of the constructor."""
        self._drain()
        if self._used or (seed is not None and seed != self._seed):
            self._seed = self._seed if seed is None else seed
            self._close()
            self._envs = self._build()
        self._used = True
        self._fresh[:], self._lives[:], self._received = False, 0, [None] * len(self.groups)
        for rows in self._life_rows:
            rows.clear()
        steps = []
        for group, (env, ids) in enumerate(zip(self._envs, self._ids)):
            observation, _ = env.reset()
            self._ended[group], self._over[group] = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
            zero, false = np.zeros(len(ids), np.float32), np.zeros(len(ids), bool)
            steps.append(TimeStep(ids, self._decode(observation), zero, false, false, ~false))
        self._tally.start_all()
        self._box.clear_all()
        return join(steps)

    def send(self, action: PyTree, group: int = 0) -> None:
        action = self._encode[group](action)
        self._box.put(True, group)
        self._envs[group].send(action)

    def recv(self, group: int = 0) -> TimeStep:
        self._box.peek(group)
        part = self.groups[group]
        answer = self._received[group] or self._receive(group)
        if self._fresh[part].any():
            answer = self._restart(group, answer)
        self._received[group] = answer
        step, played, over = answer
        step = self._check_finite(step)
        played = clipped(played) if self.on_nan == "clip" else played
        self._lives[part] += step.first & ~self._over[group]
        for env in step.env_ids[over].tolist():
            self._life_rows[env].append(int(self._lives[env]))
            self._lives[env] = 0
        self._tally.add(group, played, over)
        self._ended[group], self._over[group] = step.terminated | step.truncated, over
        self._received[group] = None
        self._box.clear(group)
        return step

    def rebuild(self, env_id: int) -> None:
        group_of(self.groups, env_id)
        self._tally.abort(env_id)
        self._fresh[env_id] = True

    def take_episodes(self) -> list[Episode]:
        """Return whole games, as they were played; steps that only began a life are not counted."""
        episodes = self._tally.take()
        return [e._replace(length=e.length - self._life_rows[e.env_id].popleft()) for e in episodes]

    def snapshot(self) -> PyTree | None:
        """Return None: EnvPool does not give its environments' states away."""
        self._box.require_idle("snapshot()")
        return None

    def restore(self, snapshot: PyTree) -> TimeStep:
        raise NotImplementedError(f"{self.id!r} cannot be restored: its snapshot() is None; reset() it instead")

    def close(self) -> None:
        self._drain()
        self._close()
        self._envs = []

    def _build(self) -> list[Any]:
        made = []
        for ids in self._ids:
            seeds = [derive_seed(self._seed, int(env), 0) for env in ids]
            threads = self._options.get("num_threads") or min(usable_cores(), len(ids))
            with warnings.catch_warnings():  # about the precision of its spaces' bounds
                warnings.simplefilter("ignore")
                options = self._options | {"num_threads": threads}
                made.append(self._make(self._name, env_type="gymnasium", num_envs=len(ids), seed=seeds, **options))
        return made

    def _receive(self, group: int) -> _Answer:
        observation, reward, terminated, truncated, info = self._envs[group].recv()
        if not np.array_equal(info["env_id"], np.arange(len(reward))):
            raise RuntimeError(f"{self.id!r}: EnvPool answered out of order: {info['env_id']}")
        reward = np.array(reward, np.float32)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        first = self._ended[group]
        reward[first] = 0
        played = np.where(first, 0, info["reward"]).astype(np.float32) if "reward" in info else reward.copy()
        ended = np.array(info["terminated"], bool) if "terminated" in info else terminated
        step = TimeStep(self._ids[group], self._decode(observation), reward, terminated, truncated, first.copy())
        return _Answer(step, played, ended | truncated)

    def _restart(self, group: int, answer: _Answer) -> _Answer:
        """Reset the rebuilt rows alone; what they answered is forgotten."""
        part = self.groups[group]
        rows = np.flatnonzero(self._fresh[part])
        observation, _ = self._envs[group].reset(rows.astype(np.int32))
        new, shown = self._decode(observation), tree_map(np.array, answer.step.observation)
        tree_map(lambda all_rows, some: all_rows.__setitem__(rows, some), shown, new)
        step, played, over = answer.step._replace(observation=shown), answer.played, answer.over
        for array in (step.reward, step.terminated, step.truncated, played, over):
            array[rows] = 0
        step.first[rows] = True
        self._over[group][rows], self._lives[part][rows] = True, 0  # the next game, not the next life
        self._fresh[part] = False
        return _Answer(step, played, over)

    def _check_finite(self, step: TimeStep) -> TimeStep:
        if (found := find_not_finite(step, self._leaves)) is not None:
            if self.on_nan == "clip":
                step, rows = clip_step(step, self.spec.observation)
                self.clipped += rows
                return step
            env = int(step.env_ids[found[1]])
            message = f"{self.id!r}, environment {env}: {found[0]} is not finite"
            raise EnvironmentFailed(message, env, kind=not_finite_kind(self.on_nan))
        return step

    def _drain(self) -> None:
        """Receive what is under way, so that nothing steps while the pools are reset or freed."""
        for group, received in enumerate(self._received):
            if self._box.pending(group):
                if received is None:
                    self._envs[group].recv()
                self._box.clear(group)

    def _close(self) -> None:
        for env in self._envs:
            env.close()


def _check_id(id: str, known: list[str]) -> None:
    name = id.removeprefix(PREFIX)
    if name not in known:
        near = get_close_matches(name, known, n=2, cutoff=0.6)
        hint = (
            "did you mean " + " or ".join(f"'{PREFIX}{one}'" for one in near) + "?" if near else "see envpool.list_all_envs()"
        )
        raise UnknownEnvironment(f"there is no environment {id!r}: {hint}")
