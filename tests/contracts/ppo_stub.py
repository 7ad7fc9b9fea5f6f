"""PPO against the contracts: epochs of mini-batches inside `learn`, a normaliser among the parameters, no `gradients`.

A linear policy and value, so that the file shows the contract and nothing else. Schulman et al., 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Agent, Array, Batch, Decision, Learned, Needs, PyTree, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class PPO:
    rollout_length: int = 8
    gamma: float = 0.99
    gae_decay: float = 0.95
    clip: float = 0.2
    num_epochs: int = 2
    num_minibatches: int = 2
    learning_rate: float = 1e-2

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        num_inputs, num_actions = int(np.prod(spec.observation.shape or ())), int(spec.action.n)

        def heads(params: PyTree, observation: Array) -> tuple[Array, Array]:
            x = (observation - params["mean"]) @ params["net"]  # [..., A + 1]
            return x[..., :num_actions], x[..., num_actions]

        def init(key: Array) -> TrainState:
            net = 0.1 * jax.random.normal(key, (num_inputs, num_actions + 1))
            params = {"net": net, "mean": jnp.zeros(num_inputs), "count": jnp.float32(1)}
            return TrainState(params, slow=(), optimizer=(), updates=jnp.int32(0))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            logits, value = heads(params, observation)  # [B, A], [B]
            sampled, best = jax.random.categorical(key, logits), jnp.argmax(logits, -1)
            action = jnp.where(explore["sample"] > 0, sampled, best)  # [B]
            logp = pick(jax.nn.log_softmax(logits), action)
            return Decision(action, memory, {"behaviour_logp": logp, "value": value})

        def loss(net: Array, fixed: PyTree, rollout: Rollout, advantage: Array) -> Array:
            logits, value = heads({**fixed, "net": net}, rollout.observation[:-1])
            ratio = jnp.exp(pick(jax.nn.log_softmax(logits), rollout.action) - rollout.extras["behaviour_logp"])
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            target = jax.lax.stop_gradient(advantage + rollout.extras["value"])
            terms = jnp.square(target - value) - jnp.minimum(ratio * advantage, clipped * advantage)  # [T, B]
            return jnp.sum(terms * rollout.valid) / jnp.maximum(1.0, jnp.sum(rollout.valid))

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            rollout, params = batch.rollout, state.params
            value = heads(params, rollout.observation)[1]  # [T + 1, B]
            delta = rollout.reward + rollout.discount * value[1:] - value[:-1]

            def back(acc: Array, row: Any) -> tuple[Array, Array]:
                acc = row[1] * (row[0] + self.gae_decay * row[2] * acc)
                return acc, acc

            rows = (delta, rollout.valid, rollout.discount)
            advantage = jax.lax.scan(back, jnp.zeros(delta.shape[1]), rows, reverse=True)[1]  # [T, B]
            net, losses = params["net"], list[Array]()
            for epoch_key in jax.random.split(key, self.num_epochs):
                order = jax.random.permutation(epoch_key, delta.shape[1])
                for columns in jnp.split(order, self.num_minibatches):  # B must be a multiple of num_minibatches
                    part = rollout._replace(memory=(), version=(), stream=(), step=())
                    part = jax.tree.map(lambda x, columns=columns: x[:, columns], part)
                    value_and_grad = jax.value_and_grad(loss)(net, params, part, advantage[:, columns])
                    net, losses = net - self.learning_rate * value_and_grad[1], [*losses, value_and_grad[0]]
            seen = rollout.observation[:-1].reshape(-1, num_inputs)  # the normaliser moves after it was used
            count = params["count"] + len(seen)
            mean = params["mean"] + jnp.sum(seen - params["mean"], 0) / count
            state = TrainState({"net": net, "mean": mean, "count": count}, (), (), state.updates + 1)
            return Learned(state, {"loss": jnp.mean(jnp.stack(losses))}, priorities=None)

        needs = Needs(self.rollout_length, self.gamma, max_lag=0)
        return Agent(init, memory=lambda num: (), act=act, explore=sample, learn=learn, needs=needs)


def sample(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
    return {"sample": np.ones(len(env_index), np.float32)}


def pick(values: Array, action: Array) -> Array:
    """values [..., A], action [...] -> [...]"""
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]
