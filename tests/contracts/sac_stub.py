"""Soft actor-critic (Haarnoja et al. 2018b) against the contracts: three losses and three optimizers in one agent.

`trained` names actor, critic and temperature; `gradients` gives a tree for each and `apply` steps each with its own moments,
so that whatever ships or shards gradients carries them as it carries one network. The target critic is `slow`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery import ops
from rookery.data.config import ReplayConfig, TableSpec
from rookery.networks import NetworkConfig, encoders
from rookery.networks.action_critic import action_critic
from rookery.networks.network import as_pair, orthogonal
from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Report, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class SAC:
    rollout_length: int = 1
    discount: float = 0.99
    batch_size: int = 64
    learning_rates: tuple[float, float, float] = (1e-3, 1e-3, 1e-3)  # actor, critic, temperature
    polyak: float = 0.005
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(capacity=20_000, min_size=64, samples_per_insert=64.0))
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(64, 64), activation="relu"))

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        policy = ops.for_space(spec.action, squash=True)
        encode = as_pair(encoders.Encoder(encoders.leaves(spec.observation), self.network))
        outputs = as_pair(encoders.dense(policy.num_outputs, gain=0.01))
        critic = action_critic(spec, self.network, ensemble=2)
        optimizers = {name: optax.adam(rate) for name, rate in zip(("actor", "critic", "temperature"), self.learning_rates)}
        wanted = -float(np.prod(spec.action.shape or ()))  # entropy: one nat less for each number of an action

        def init(key: Array) -> TrainState:
            keys, seen = jax.random.split(key), encoders.zeros(spec.observation)
            actor = {"encoder": encode[0](key, seen)}
            actor["head"] = outputs[0](key, jnp.zeros(jax.eval_shape(encode[1], actor["encoder"], seen).shape))
            params = {"actor": orthogonal(keys[0], actor), "critic": critic.init(keys[1])}
            params["temperature"] = {"log": jnp.zeros(())}
            moments = {name: optimizer.init(params[name]) for name, optimizer in optimizers.items()}
            return TrainState(params, {"critic": params["critic"]}, moments, jnp.int32(0))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            found = actor_outputs(params["actor"], observation)
            action = jnp.where(explore[:, None] > 0, policy.sample(key, found), policy.mode(found))
            return Decision(action, memory, {})

        def actor_outputs(actor: PyTree, observation: PyTree) -> Array:
            mean, log_std = jnp.split(outputs[1](actor["head"], encode[1](actor["encoder"], observation)), 2, -1)
            return jnp.concatenate([mean, jnp.clip(log_std, -20.0, 2.0)], -1)

        def losses(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> tuple[Array, Report]:
            """The sum of three losses, none of which reaches another's parameters."""
            rollout, still = batch.rollout, jax.lax.stop_gradient(params)
            before, after = (jax.tree.map(lambda x, t=t: x[t], rollout.observation) for t in (0, 1))
            alpha, keys = jnp.exp(still["temperature"]["log"]), jax.random.split(key)
            then, logp_then = policy.sample_and_logp(keys[0], actor_outputs(still["actor"], after))
            soft = critic.apply(slow["critic"], after, then).min(0) - alpha * logp_then
            target = rollout.reward[0] + rollout.discount[0] * soft
            error = critic.apply(params["critic"], before, rollout.action[0]) - target
            now, logp = policy.sample_and_logp(keys[1], actor_outputs(params["actor"], before))
            weight = batch.weight * rollout.valid[0]
            parts = {
                "critic": jnp.mean(weight * jnp.square(error)),
                "actor": jnp.mean(weight * (alpha * logp - critic.apply(still["critic"], before, now).min(0))),
                "temperature": -params["temperature"]["log"] * jnp.mean(jax.lax.stop_gradient(logp) + wanted),
            }
            return sum(parts.values()), {f"loss/{name}": part for name, part in parts.items()} | {"temperature": alpha}

        def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
            tree, report = jax.grad(losses, has_aux=True)(params, slow, batch, key)
            return Gradients(tree, report)

        def apply(state: TrainState, gradients: Gradients) -> TrainState:
            params, moments = dict(state.params), dict(state.optimizer)
            for name, optimizer in optimizers.items():
                change, moments[name] = optimizer.update(gradients.tree[name], moments[name], params[name])
                params[name] = optax.apply_updates(params[name], change)
            slow = jax.tree.map(lambda old, new: old + self.polyak * (new - old), state.slow["critic"], params["critic"])
            return TrainState(params, {"critic": slow}, moments, state.updates + 1)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            found = gradients(state.params, state.slow, batch, key)
            return Learned(apply(state, found), found.report, None)

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return np.ones(len(env_index), np.float32)

        needs = Needs(self.rollout_length, self.discount, replay=True, table=TableSpec(self.replay, self.batch_size))
        trained = tuple(optimizers)
        return Agent(init, lambda num: (), act, explore, learn, needs, gradients, apply, trained=trained)
