"""Fakes of the engine's parts whose every number can be foretold: a scripted pool and an agent that counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.data import arrays
from rookery.envs.pools.pool import split
from rookery.trees import tree_leaves
from rookery.types import (
    Agent,
    Array,
    Batch,
    Decision,
    Episode,
    Gradients,
    Learned,
    Needs,
    PyTree,
    Rollout,
    Spec,
    TimeStep,
    TrainState,
)  # fmt: skip
from rookery.workers.acting.collector import Collected, Collector

ACTIONS = 4
SPEC = Spec(gymnasium.spaces.Box(-(2.0**20), 2.0**20, (3,), np.float32), gymnasium.spaces.Discrete(ACTIONS), "scripted")


class Slot(NamedTuple):
    """Where one environment is. Episode e of environment i has `length(i, e)` steps."""

    env: int
    episode: int
    step: int
    ended: bool


def length(env: int, episode: int) -> int:
    """From 1 to 5 steps, different in neighbouring environments and episodes."""
    return 1 + (3 * env + 2 * episode) % 5


def truncates(env: int, episode: int) -> bool:
    return (env + episode) % 3 == 1


def play(slot: Slot, action: int) -> tuple[Slot, float, bool, bool, bool]:
    """-> next slot, reward, terminated, truncated, first; the rule that both the pool and the expectations follow."""
    if slot.ended:
        return Slot(slot.env, slot.episode + 1, 0, False), 0.0, False, False, True
    step = slot.step + 1
    over = step == length(slot.env, slot.episode)
    reward = 1.0 + slot.env + 0.25 * slot.step + 0.125 * action
    cut = over and truncates(slot.env, slot.episode)
    return Slot(slot.env, slot.episode, step, over), reward, over and not cut, cut, False


def shown(slot: Slot) -> list[float]:
    return [float(slot.env), float(slot.episode), float(slot.step)]


class ScriptedPool:
    """The rule above behind the EnvPool protocol. Each `send` spoils the group's last answer, as it is allowed to."""

    def __init__(
        self,
        num_envs: int,
        groups: int = 1,
        *,
        savable: bool = True,
        on_step: Callable[[Slot], float | None] = lambda slot: None,
    ) -> None:
        """on_step: called before each step of an environment; may sleep or raise, or give another reward."""
        self.spec, self.num_envs, self.groups = SPEC, num_envs, split(num_envs, groups)
        self._savable, self._on_step = savable, on_step
        self._slots: list[Slot] = []
        self._sent: list[Array | None] = [None] * groups
        self._answers: list[TimeStep] = []
        self._episodes: list[Episode] = []
        self._totals = np.zeros(num_envs)
        self.seeds: list[int] = []
        self.closed = 0

    def reset(self, seed: int) -> TimeStep:
        self.seeds.append(seed)
        self._slots = [Slot(env, 0, 0, False) for env in range(self.num_envs)]
        self._totals[:] = 0
        first = np.ones(self.num_envs, bool)
        return self._show([(slot, 0.0, False, False, True) for slot in self._slots], first)

    def send(self, action: Array, group: int = 0) -> None:
        assert self._sent[group] is None and not self.closed
        assert action.shape == (self._size(group),) and np.issubdtype(action.dtype, np.integer)
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
            slot, reward, terminated, truncated, first = play(self._slots[env], int(a))
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
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1

    def _size(self, group: int) -> int:
        return self.groups[group].stop - self.groups[group].start

    def _show(self, outcomes: list, first: Array) -> TimeStep:
        self._answers = [_answer(group, outcomes[group]) for group in self.groups]
        return TimeStep(*(np.concatenate(parts) for parts in zip(*self._answers)))


def _answer(group: slice, outcomes: list) -> TimeStep:
    slots, reward, terminated, truncated, first = zip(*outcomes)
    ids = np.arange(group.start, group.stop, dtype=np.int32)
    observation = np.array([shown(slot) for slot in slots], np.float32)
    return TimeStep(ids, observation, np.array(reward, np.float32), np.array(terminated), np.array(truncated), np.array(first))


def slow(seconds: float) -> Callable[[Slot], None]:
    return lambda slot: time.sleep(seconds)


# ------------------------------------------------------------------------------------------------------ agent


def counting_agent(
    rollout_length: int = 3,
    *,
    discount: float = 0.5,
    previous: bool = False,
    return_discount: float | None = None,
    learn: Callable[[TrainState, Batch, Array], Learned] | None = None,
    act: Callable[[PyTree], PyTree] = lambda observation: observation,
    process: Any = None,
) -> Agent:
    """Its memory counts the steps since it was reset; what it saw, remembered and drew is in the extras.

    An action is a function of what is shown and of params["offset"], which every update raises by one. `params["sum"]`
    adds up what was learned from, so that a changed batch shows.
    """

    def init(key: Array) -> TrainState:
        params = {"offset": jnp.zeros((), jnp.int32), "sum": jnp.zeros((), jnp.float32)}
        return TrainState(params, {"target": jnp.zeros((5,))}, {"moment": jnp.ones((2, 3))}, jnp.zeros((), jnp.int32))

    def memory(B: int) -> PyTree:
        return {"count": jnp.zeros((B,), jnp.int32), "wide": jnp.full((B, 2), 7.0)}

    def decide(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        raw = observation["observation"] if previous else observation
        raw = act(raw)
        action = (raw[:, 0] + raw[:, 2] + params["offset"]).astype(jnp.int32) % ACTIONS
        after = {"count": memory["count"] + 1, "wide": memory["wide"] + 1.0}
        drawn = jax.random.uniform(key, (len(raw),))
        extras = {"count": memory["count"], "seen": {"b": raw, "a": raw[:, 1]}, "drawn": drawn, "explore": explore["x"]}
        return Decision(action, after, extras)

    def sum_up(state: TrainState, batch: Batch, key: Array) -> Learned:
        rollout = batch.rollout
        total = (rollout.reward * rollout.discount * rollout.valid).sum() + rollout.observation.sum()
        params = {"offset": state.params["offset"] + 1, "sum": state.params["sum"] + total}
        state = TrainState(params, state.slow, state.optimizer, state.updates + 1)
        return Learned(state, {"loss": total}, None)

    explore = lambda params, env_index, num_envs, env_steps: {"x": np.asarray(env_index + 1000.0 * env_steps, np.float32)}
    needs = Needs(rollout_length, discount, previous=previous, return_discount=return_discount)
    return Agent(init, memory, decide, explore, learn or sum_up, needs, process=process)


def summing_agent() -> Agent:
    """Its gradient is the number of transitions in the rollout: the parameters add up what was applied."""
    agent = counting_agent(3)

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        rows = batch.rollout.valid.sum()
        return Gradients({"offset": jnp.ones((), jnp.int32), "sum": rows}, {"loss": rows})

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        return state._replace(params=jax.tree.map(jnp.add, state.params, gradients.tree), updates=state.updates + 1)

    return agent._replace(gradients=gradients, apply=apply)


def params(offset: int = 0) -> PyTree:
    return {"offset": np.int32(offset), "sum": np.float32(0)}


# ----------------------------------------------------------------------------------------------------- rollouts


def collect(worker: Collector, rollouts: int) -> list[Collected]:
    """Into memory that is not clean: whatever is not written shows."""
    return [worker.collect(dirty(worker._specs)) for _ in range(rollouts)]


def dirty(specs: Rollout) -> Rollout:
    rollout = arrays.allocate(specs)
    for leaf in tree_leaves(rollout):
        leaf[:] = 99
    return rollout


def same(a: Rollout, b: Rollout) -> None:
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.tobytes() == np.ascontiguousarray(y).tobytes(), jax.tree_util.keystr(path)


def checkpointed(tree: Any) -> Any:
    """What a checkpoint makes of a tree: tuples come back as lists, numpy scalars as arrays."""
    if isinstance(tree, dict):
        return {key: checkpointed(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [checkpointed(value) for value in tree]
    return np.array(tree) if isinstance(tree, (np.ndarray, np.generic)) else tree
