"""QT-Opt's cut through Q-learning (Kalashnikov et al. 2018): Bellman updaters label batches, the learner fits the labels.

The cross-entropy method over continuous actions is left out (actions here are few, and all are tried): what matters is who
computes a target, with whose parameters, and how it travels: as a declared extra of the batch. With `labelled=False` the
learner computes the same target itself, from the same target network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery.data.config import ReplayConfig, TableSpec
from rookery.types import Agent, Array, Batch, Decision, Learned, Needs, PyTree, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class QTOpt:
    rollout_length: int = 4
    discount: float = 0.9
    batch_size: int = 8
    target_period: int = 3
    labelled: bool = True
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(capacity=256, min_size=8, samples_per_insert=4.0, selector="prioritized")
    )

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        num_inputs, num_actions = int(np.prod(spec.observation.shape or ())), int(spec.action.n)
        optimizer = optax.adam(1e-2)

        def values(params: PyTree, observation: Array) -> Array:
            return observation.reshape((*observation.shape[:2], -1)) @ params["w"]

        def target(slow: PyTree, batch: Batch) -> Array:
            after = values(slow, batch.rollout.observation[1:])
            return jax.lax.stop_gradient(batch.rollout.reward + batch.rollout.discount * after.max(-1))

        def init(key: Array) -> TrainState:
            params = {"w": 0.1 * jax.random.normal(key, (num_inputs, num_actions))}
            return TrainState(params, params, optimizer.init(params), jnp.int32(0))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            q = values(params, observation[None])[0]
            random = jax.random.randint(key, q.shape[:1], 0, num_actions)
            return Decision(jnp.where(explore > 0, random, jnp.argmax(q, -1)), memory, {})

        def explore(*words: object) -> PyTree:
            return np.ones(len(words[-3]), np.float32)  # type: ignore[arg-type]

        def refine(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Batch:
            rollout = batch.rollout
            return batch._replace(rollout=rollout._replace(extras=rollout.extras | {"target": target(slow, batch)}))

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            label = batch.rollout.extras["target"] if self.labelled else target(state.slow, batch)

            def loss(params: PyTree) -> tuple[Array, Array]:
                q = jnp.take_along_axis(values(params, batch.rollout.observation[:-1]), batch.rollout.action[..., None], -1)
                error = label - q[..., 0]
                return jnp.mean(batch.weight * batch.rollout.valid * jnp.square(error)), jnp.abs(error[0]) + 1e-6

            (value, priorities), tree = jax.value_and_grad(loss, has_aux=True)(state.params)
            change, moments = optimizer.update(tree, state.optimizer, state.params)
            params, updates = optax.apply_updates(state.params, change), state.updates + 1
            slow = jax.tree.map(lambda new, old: jnp.where(updates % self.target_period == 0, new, old), params, state.slow)
            return Learned(TrainState(params, slow, moments, updates), {"loss": value}, priorities)

        needs = Needs(self.rollout_length, self.discount, replay=True, table=TableSpec(self.replay, self.batch_size))
        return Agent(init, lambda num: (), act, explore, learn, needs, refine=refine if self.labelled else None)
