"""A trained policy as a function: `action, memory = policy(observation, memory)`, or `action = policy.act(observation)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rookery import ops, spaces
from rookery.envs.pools.adapted import Adapter
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.reading import read
from rookery.workers.acting.step import compiled_step, with_previous

APART = 1 << 31  # folded into the seed for `act`, so that other calls do not change what it draws


class Policy:
    """Acts for one environment or for a batch of them, greedily unless told to explore.

    Observations are what the environment gives, or a batch of them (a leading axis on every leaf); actions are what it takes,
    with that axis. `params` is the tree of arrays that acting needs, normalisers included. `memory` is opaque: pass None at the
    start of an episode and whatever came back at every later step; `act` keeps it by itself until `reset`.

    Where training saw the environment through pool options (frame_stack ...), so does a call: it takes what the environment
    gives and keeps the frames in `memory`. `batch` is for the answers of a pool that was made with the same options.

    A policy of a run can be pickled and sent to another process: there it begins an episode, with its seed.
    """

    def __init__(
        self, agent: Agent, spec: Spec, params: PyTree, *, seed: int = 0, env_steps: int = 0,
        build: Callable[[Spec], Agent] | None = None,
    ) -> None:  # fmt: skip
        """env_steps: that were trained for: exploration that is annealed stands where it stood then; build: makes the agent of
        the spec again, where the policy is unpickled."""
        self.agent, self.spec, self.params = agent, spec, params
        self._build, self._seed, self._env_steps = build, seed, env_steps
        self._key, self._counter = ops.random.key(seed), 0
        self._step = compiled_step(agent)
        self._observation, self._action = spec.raw or (spec.observation, spec.action)
        self._adapter = Adapter(spaces.canonical(self._observation), spec.pool) if spec.pool else None
        self._encode = spaces.action_encoder(self._action)
        self._memory: PyTree = None  # of `act`, as all that follows
        self._drawn_from, self._draws = seed, 0
        self._own_key: Any = None

    def __call__(
        self, observation: PyTree, memory: PyTree = None, *, reward: Any = 0.0, explore: float = 0.0, first: Any = None
    ) -> tuple[Any, PyTree]:
        """Act: observation -> action and memory, of one environment or of a batch; ValueError where the space is another.

        explore: 0 is greedy, 1 acts as in training. Of a batch, where `first` [B] is true an episode begins; all do without a
        memory. reward: the last one received ([B] of a batch); only agents that look at their previous reward need it.
        """
        key, counter = self._key, self._counter
        self._counter += 1
        return self._decide(observation, memory, reward, explore, first, key, counter)

    def act(self, observation: PyTree, *, deterministic: bool = False, reward: Any = 0.0, first: Any = None) -> Any:
        """Act as in training, or greedily (deterministic), and keep the memory for the next call: `reset` begins an episode.

        What is drawn is seeded by `reset(seed=...)`, and by nothing else than these calls.
        """
        if self._own_key is None:
            self._own_key = jax.random.fold_in(ops.random.key(self._drawn_from), np.uint32(APART))
        explore, counter = 0.0 if deterministic else 1.0, self._draws
        action, self._memory = self._decide(observation, self._memory, reward, explore, first, self._own_key, counter)
        self._draws += 1
        return action

    def reset(self, *, seed: int | None = None) -> None:
        """Let the next `act` begin an episode; with a seed, draw from its beginning, too."""
        self._memory = None
        if seed is not None:
            self._drawn_from, self._own_key, self._draws = seed, None, 0

    def batch(
        self, observation: PyTree, memory: PyTree, *, first: np.ndarray, reward: np.ndarray, explore: float = 0.0
    ) -> tuple[PyTree, PyTree]:
        """Act for a pool: canonical observations [B, ...] -> canonical actions and memory, which is reset where `first`."""
        counter = self._counter
        self._counter += 1
        return self._step_all(observation, memory, first, reward, explore, self._key, counter)

    def _decide(
        self, observation: PyTree, memory: PyTree, reward: Any, explore: float, first: Any, key: Any, counter: int
    ) -> tuple[Any, PyTree]:
        shown, size, batched = read(self._observation, observation)
        self._check_memory(memory, size)
        begins = np.full(size, memory is None)
        if first is not None and memory is not None:
            begins[:] = first
        rewards = np.empty(size, np.float32)
        rewards[:] = reward
        frames: PyTree = ()
        if self._adapter is not None:
            frames, memory = memory or (self._adapter.start(size), None)
            frames = self._adapter.push(frames, shown, begins)
            shown, rewards = self._adapter.show(frames, shown), self._adapter.reward(rewards)
        action, memory = self._step_all(shown, memory, begins, rewards, explore, key, counter)
        taken = self._encode(action if batched else jax.tree.map(lambda x: x[0], action))
        return taken, memory if self._adapter is None else (frames, memory)

    def _step_all(
        self, observation: PyTree, memory: PyTree, first: np.ndarray, reward: np.ndarray, explore: float, key: Any, counter: int
    ) -> tuple[PyTree, PyTree]:
        B = len(first)
        inner, previous_action = memory or (self.agent.memory(B), spaces.zeros(self.spec.action, (B,)))
        if self.agent.needs.previous:
            observation = with_previous(observation, previous_action, reward, first)
        most = self.agent.explore(self.params, np.zeros(B, int), 1, self._env_steps)  # as one that is alone, whatever B
        strength = jax.tree.map(lambda x: np.asarray(x) * np.float32(explore), most)
        _, decision = self._step(self.params, observation, inner, first, strength, key, np.uint32(counter))
        action = jax.tree.map(np.asarray, decision.action)
        return action, (decision.memory, action)

    def _check_memory(self, memory: PyTree, size: int) -> None:
        if memory is None:
            return
        _, previous_action = memory if self._adapter is None else memory[1]
        held = len(jax.tree.leaves(previous_action)[0])
        if held != size:
            raise ValueError(
                f"the memory is that of {held} environments, and the observation of {size}: pass the memory that came back for "
                "these, or None where their episodes begin (policy.reset() for policy.act)"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the agent behind, whose functions no file holds; it is built again."""
        made = (_given, self.agent) if self._build is None else (self._build, self.spec)
        return _restored, (*made, self.spec, self.params, self._seed, self._env_steps)


def _given(agent: Agent) -> Agent:
    return agent


def _restored(build: Callable[[Any], Agent], of: Any, spec: Spec, params: PyTree, seed: int, env_steps: int) -> Policy:
    return Policy(build(of), spec, params, seed=seed, env_steps=env_steps, build=None if build is _given else build)
