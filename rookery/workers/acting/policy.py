"""A trained policy as a function: `action, memory = policy(observation, memory)`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rookery import ops, spaces
from rookery.envs.pools.adapted import Adapter
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.step import compiled_step, with_previous


class Policy:
    """Acts for one environment (call it) or for many at once (`batch`). Greedy unless told to explore.

    `params` is the tree of arrays that acting needs, normalisers included. `memory` is opaque: pass None at the start
    of an episode and whatever came back at every later step. Where training saw the environment through pool options
    (frame_stack ...), so does a call with one observation: it takes what the environment gives and keeps the frames in
    `memory`. `batch` is for the answers of a pool that was made with the same options.
    """

    def __init__(self, agent: Agent, spec: Spec, params: PyTree, *, seed: int = 0) -> None:
        self.agent, self.spec, self.params = agent, spec, params
        self._key, self._counter = ops.random.key(seed), 0
        self._step = compiled_step(agent)
        raw, _ = spec.raw or (spec.observation, spec.action)
        self._adapter = Adapter(spaces.canonical(raw), spec.pool) if spec.pool else None

    def __call__(
        self, observation: PyTree, memory: PyTree = None, *, reward: float = 0.0, explore: float = 0.0
    ) -> tuple[Any, PyTree]:
        """Act: one observation, as the environment gives it -> one action, as the environment takes it, and the memory.

        reward: the last one received; only agents that look at their previous reward need it.
        """
        observation_space, action_space = self.spec.raw or (self.spec.observation, self.spec.action)
        one = jax.tree.map(lambda x: x[None], spaces.canonical_observation(observation_space, observation))
        first, rewards = np.array([memory is None]), np.array([reward], np.float32)
        frames: PyTree = ()
        if self._adapter is not None:
            frames, memory = memory or (self._adapter.start(1), None)
            frames = self._adapter.push(frames, one, first)
            one, rewards = self._adapter.show(frames, one), self._adapter.reward(rewards)
        action, memory = self.batch(one, memory, first=first, reward=rewards, explore=explore)
        taken = spaces.canonical_action(action_space, jax.tree.map(lambda x: x[0], action))
        return taken, memory if self._adapter is None else (frames, memory)

    def batch(
        self, observation: PyTree, memory: PyTree, *, first: np.ndarray, reward: np.ndarray, explore: float = 0.0
    ) -> tuple[PyTree, PyTree]:
        """Act: observations [B, ...] -> canonical actions [B, ...] and memory, which is reset where `first`."""
        B = len(first)
        inner, previous_action = memory or (self.agent.memory(B), spaces.zeros(self.spec.action, (B,)))
        if self.agent.needs.previous:
            observation = with_previous(observation, previous_action, reward, first)
        most = self.agent.explore(self.params, np.arange(B), B, 0)
        strength = jax.tree.map(lambda x: np.asarray(x) * np.float32(explore), most)
        counter = np.uint32(self._counter)
        self._counter += 1
        _, decision = self._step(self.params, observation, inner, first, strength, self._key, counter)
        action = jax.tree.map(np.asarray, decision.action)
        return action, (decision.memory, action)
