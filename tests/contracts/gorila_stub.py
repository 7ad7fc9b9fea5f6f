"""GORILA's bundle against the contracts: actor, local replay and learner in one; gradients of DQN go to K shards.

`Agent.gradients` and `Agent.apply` are all that the bundle and the shards know of DQN. A shard owns some leaves of the
parameters: the same trees as the whole, with None (an empty subtree) for every leaf that another shard owns, so that
`apply` runs on a shard unchanged as long as it works leaf by leaf. Nair et al., 2015; Mnih et al., 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class DQN:
    gamma: float = 0.99
    target_period: int = 2

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        num_inputs, num_actions = int(np.prod(spec.observation.shape or ())), int(spec.action.n)
        optimizer = optax.adam(1e-2)

        def init(key: Array) -> TrainState:
            params = {"w": 0.1 * jax.random.normal(key, (num_inputs, num_actions)), "b": jnp.zeros(num_actions)}
            return TrainState(params, slow=params, optimizer=optimizer.init(params), updates=jnp.int32(0))

        def values(params: PyTree, observation: Array) -> Array:
            return observation @ params["w"] + params["b"]

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            q, (coin, choice) = values(params, observation), jax.random.split(key)
            random = jax.random.randint(choice, q.shape[:1], 0, num_actions)
            greedy = jax.random.uniform(coin, q.shape[:1]) >= explore["epsilon"]
            return Decision(jnp.where(greedy, jnp.argmax(q, -1), random), memory, {})

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return {"epsilon": np.full(len(env_index), max(0.1, 1 - env_steps / 1e6), np.float32)}

        def loss(params: PyTree, slow: PyTree, batch: Batch) -> Array:
            rollout = batch.rollout
            q = jnp.take_along_axis(values(params, rollout.observation[:-1]), rollout.action[..., None], -1)[..., 0]
            target = rollout.reward + rollout.discount * jnp.max(values(slow, rollout.observation[1:]), -1)  # [T, B]
            return jnp.mean(batch.weight * rollout.valid * jnp.square(target - q))

        def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
            value, tree = jax.value_and_grad(loss)(params, slow, batch)
            return Gradients(tree, {"loss": value})

        def apply(state: TrainState, gradients: Gradients) -> TrainState:
            change, memory = optimizer.update(gradients.tree, state.optimizer, state.params)
            params, updates = optax.apply_updates(state.params, change), state.updates + 1
            refresh = updates % self.target_period == 0
            slow = jax.tree.map(lambda new, old: jnp.where(refresh, new, old), params, state.slow)
            return TrainState(params, slow, memory, updates)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            found = gradients(state.params, state.slow, batch, key)
            return Learned(apply(state, found), found.report, priorities=None)

        needs = Needs(rollout_length=1, discount=self.gamma, replay=True)
        return Agent(init, lambda num: (), act, explore, learn, needs, gradients, apply)


# ---------------------------------------------------------------------------------------------- shards and bundle


def owned(tree: PyTree, like: PyTree, shard: int, num_shards: int) -> PyTree:
    """The leaves of `shard` in every subtree of `tree` that is shaped like the parameters; scalars stay whole."""
    shape: Any = jax.tree.structure(like)

    def keep(part: PyTree) -> PyTree:
        if jax.tree.structure(part) != shape:
            return part
        leaves = [x if i % num_shards == shard else None for i, x in enumerate(jax.tree.leaves(part))]
        return jax.tree.unflatten(shape, leaves)

    return jax.tree.map(keep, tree, is_leaf=lambda part: jax.tree.structure(part) == shape)


def joined(parts: list[PyTree]) -> PyTree:
    """The whole of what `owned` cut up."""
    rows = zip(*(jax.tree.leaves(part, is_leaf=lambda x: x is None) for part in parts))
    whole = jax.tree.structure(parts[0], is_leaf=lambda x: x is None)
    return jax.tree.unflatten(whole, [next(x for x in row if x is not None) for row in rows])


@dataclass
class Bundle:
    """Actor, local replay and learner: fed with rollouts, asked for gradients. Stale ones are the server's business."""

    agent: Agent
    capacity: int
    stored: list[Rollout] = field(default_factory=list)

    def insert(self, rollout: Rollout) -> None:
        self.stored = [*self.stored[1 - self.capacity :], rollout]

    def gradients(self, params: PyTree, slow: PyTree, key: Array) -> Gradients:
        rollout = self.stored[int(jax.random.randint(key, (), 0, len(self.stored)))]
        rollout = rollout._replace(discount=rollout.discount * self.agent.needs.discount)
        num = rollout.reward.shape[1]
        assert self.agent.gradients is not None, "this algorithm ships no gradients"
        return self.agent.gradients(params, slow, Batch(rollout, np.ones(num), np.arange(num)), key)
