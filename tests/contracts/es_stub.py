"""Evolution strategies against the contracts: no gradients; a perturbation is named by a number; only returns travel.

`perturb` gives the parameters of many members at once, with the key that `learn` will be given: member 2j and 2j + 1 are
the two signs of pair j. `process` turns a whole episode into one row: its return. Column i of a batch is member i.
Salimans et al., 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Agent, Array, Batch, Decision, Learned, Needs, PyTree, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class ES:
    max_episode_steps: int = 16
    sigma: float = 0.1
    learning_rate: float = 0.1

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        shape = (int(np.prod(spec.observation.shape or ())), int(spec.action.n))

        def noise(member: Array, key: Array) -> Array:
            """member [] -> mirrored noise [shape], the same on every machine"""
            return (1 - 2 * (member % 2)) * jax.random.normal(jax.random.fold_in(key, member // 2), shape)

        def init(key: Array) -> TrainState:
            return TrainState({"w": 0.1 * jax.random.normal(key, shape)}, (), (), jnp.int32(0))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            return Decision(jnp.argmax(observation @ params["w"], -1), memory, {})

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return np.zeros(len(env_index), np.float32)  # parameters explore, not actions

        def perturb(params: PyTree, member: Array, key: Array) -> PyTree:
            return {"w": params["w"] + self.sigma * jax.vmap(noise, (0, None))(member, key)}

        def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
            ended = jnp.cumsum(1 - rollout.valid, 0) > 0  # rows after the episode's end
            total = jnp.sum(jnp.where(ended, 0.0, rollout.reward), 0, keepdims=True)  # [1, B]
            one = jnp.ones_like(total)
            row = rollout._replace(observation=(), action=(), reward=total, discount=0 * one, valid=one, extras={})
            return row._replace(version=rollout.version[:1]), None

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            total = batch.rollout.reward[0]  # [B]
            member = jnp.arange(len(total))
            rank = jnp.mean((total[:, None] > total) + 0.5 * (total[:, None] == total), 1)  # ties share a rank
            weight = (rank - 0.5) * batch.rollout.valid[0]
            direction = jnp.tensordot(weight, jax.vmap(noise, (0, None))(member, key), 1) / len(total)
            params = {"w": state.params["w"] + self.learning_rate * direction}
            report = {"population_return_mean": jnp.mean(total), "direction_norm": jnp.linalg.norm(direction)}
            return Learned(state._replace(params=params, updates=state.updates + 1), report, priorities=None)

        needs = Needs(self.max_episode_steps, discount=1.0, max_lag=0, whole_episodes=True)
        return Agent(init, lambda num: (), act, explore, learn, needs, process=process, perturb=perturb)
