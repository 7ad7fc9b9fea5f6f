"""ScriptedPool: environments whose every number can be foretold, behind the EnvPool protocol.

Episode e of environment i has `episode_length(i, e)` steps, from 1 to 5; every third is truncated, the others terminate. An
observation is (environment, episode, step), so whatever a rollout holds says itself where it comes from. `scripted_step` is
the one rule; a test plays it beside the pool and compares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rookery.envs.pools.pool import split
from rookery.types import Array, Episode, PyTree, Spec, TimeStep

NUM_ACTIONS = 4
LONGEST_EPISODE = 5
FAR = 2.0**20
SPEC = Spec(
    gymnasium.spaces.Box(-FAR, FAR, (3,), np.float32), gymnasium.spaces.Discrete(NUM_ACTIONS, dtype=np.int32), "scripted"
)


class Slot(NamedTuple):
    """Where one environment is. Episode e of environment i has `episode_length(i, e)` steps."""

    env: int
    episode: int
    step: int
    ended: bool


def episode_length(env: int, episode: int) -> int:
    """Return a length from 1 to 5 steps, different in neighbouring environments and episodes."""
    return 1 + (3 * env + 2 * episode) % LONGEST_EPISODE


def truncates(env: int, episode: int) -> bool:
    """Tell whether an episode is truncated; else it terminates."""
    return (env + episode) % 3 == 1


def scripted_step(slot: Slot, action: int) -> tuple[Slot, float, bool, bool, bool]:
    """Step one environment, with next-step autoreset. -> next slot, reward, terminated, truncated, first."""
    if slot.ended:
        return Slot(slot.env, slot.episode + 1, 0, False), 0.0, False, False, True
    step = slot.step + 1
    over = step == episode_length(slot.env, slot.episode)
    reward = 1.0 + slot.env + 0.25 * slot.step + 0.125 * action
    cut = over and truncates(slot.env, slot.episode)
    return Slot(slot.env, slot.episode, step, over), reward, over and not cut, cut, False


def scripted_observation(slot: Slot) -> list[float]:
    """Return what is observed there: environment, episode and step."""
    return [float(slot.env), float(slot.episode), float(slot.step)]


class ScriptedPool:
    """The script behind the EnvPool protocol. Each `send` spoils the group's last answer, as it is allowed to."""

    def __init__(
        self,
        num_envs: int,
        groups: int = 1,
        *,
        first_env: int = 0,
        savable: bool = True,
        on_step: Callable[[Slot], float | None] = lambda slot: None,
    ) -> None:
        """first_env: the number that the first environment shows, where several pools must be told apart; savable: whether
        there are snapshots; on_step: called before each step of an environment; may sleep or raise, or give another reward."""
        self.spec, self.num_envs, self.groups = SPEC, num_envs, split(num_envs, groups)
        self._first_env, self._savable, self._on_step = first_env, savable, on_step
        self._slots: list[Slot] = []
        self._sent: list[Array | None] = [None] * groups
        self._answers: list[TimeStep] = []
        self._episodes: list[Episode] = []
        self._totals = np.zeros(num_envs)
        self.seeds: list[int] = []
        self.closed = 0

    def reset(self, seed: int) -> TimeStep:
        self.seeds.append(seed)
        self._slots = [Slot(self._first_env + env, 0, 0, False) for env in range(self.num_envs)]
        self._totals[:] = 0
        outcomes = [(slot, 0.0, False, False, True) for slot in self._slots]
        self._answers = [_answer(group, outcomes[group]) for group in self.groups]
        return TimeStep(*(np.concatenate(parts) for parts in zip(*self._answers)))

    def send(self, action: Array, group: int = 0) -> None:
        part = self.groups[group]
        assert self._sent[group] is None and not self.closed
        assert action.shape == (part.stop - part.start,) and np.issubdtype(action.dtype, np.integer)
        self._sent[group] = np.array(action)
        old = self._answers[group]
        old.observation[:] = np.nan
        old.reward[:] = np.nan
        for flags in (old.terminated, old.truncated, old.first):
            flags[:] = ~flags

    def recv(self, group: int = 0) -> TimeStep:
        action = self._sent[group]
        assert action is not None
        self._sent[group] = None
        outcomes = []
        for env, a in zip(range(self.groups[group].start, self.groups[group].stop), action):
            instead = self._on_step(self._slots[env])
            slot, reward, terminated, truncated, first = scripted_step(self._slots[env], int(a))
            reward = reward if instead is None or first else instead
            self._slots[env] = slot
            self._totals[env] = (0 if first else self._totals[env]) + reward
            if slot.ended:
                self._episodes.append(Episode(env, float(self._totals[env]), slot.step))
            outcomes.append((slot, reward, terminated, truncated, first))
        self._answers[group] = _answer(self.groups[group], outcomes)
        return self._answers[group]

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def snapshot(self) -> PyTree | None:
        assert all(action is None for action in self._sent)
        if not self._savable:
            return None
        last = {name: np.concatenate([getattr(a, name) for a in self._answers]) for name in TimeStep._fields}
        return {"slots": np.array(self._slots, np.int64), "totals": self._totals.copy(), "last": last}

    def restore(self, snapshot: PyTree) -> TimeStep:
        self._slots = [Slot(int(e), int(p), int(s), bool(d)) for e, p, s, d in snapshot["slots"]]
        self._totals = np.array(snapshot["totals"])
        last = TimeStep(**{name: np.array(value) for name, value in snapshot["last"].items()})
        self._answers = [TimeStep(*(part[g] for part in last)) for g in self.groups]
        return last

    def rebuild(self, env_id: int) -> None:
        """Drop the running episode: the next answer is the first of the next one."""
        self._slots[env_id] = self._slots[env_id]._replace(ended=True)

    def close(self) -> None:
        self.closed += 1


def slow_steps(seconds: float) -> Callable[[Slot], None]:
    """Make every step of an environment take so long (`on_step` of a ScriptedPool)."""
    return lambda slot: time.sleep(seconds)


def _answer(group: slice, outcomes: list[Any]) -> TimeStep:
    slots, reward, terminated, truncated, first = zip(*outcomes)
    ids = np.arange(group.start, group.stop, dtype=np.int32)
    observation = np.array([scripted_observation(slot) for slot in slots], np.float32)
    return TimeStep(ids, observation, np.array(reward, np.float32), np.array(terminated), np.array(truncated), np.array(first))
