"""APPO: PPO's clipped objective on V-trace targets, so that it may learn from slightly old data.

Two designs were published under this name:

- `sample-factory` (Petrenko et al. 2020, https://arxiv.org/abs/2006.11751): the old policy of the ratio is the one that
  acted; the clip is symmetric in the ratio, [1 / (1 + clip), 1 + clip]; the value is clipped too.
- `target-policy` (RLlib's APPO): the old policy is a target network, refreshed every `target_period` updates; V-trace
  corrects from the acting policy to the target, and the ratio current / target is clipped to [1 - clip, 1 + clip].

In the first the ratio of the objective is the whole correction, so its advantage is r + gamma v' − V without V-trace's
weight; in the second V-trace's weight corrects up to the target, and the ratio from there.

Differs from both: several passes over each batch in minibatches of whole sequences, as PPO makes them (Sample Factory's
default is one pass in one piece: with few environments that is too few steps); advantages are normalised over the rows that
are differentiated together, a minibatch or a chunk of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import actor_critic, optimizers
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.minibatches import chunks_for
from rookery.algorithms.normalisers import RewardClip
from rookery.algorithms.updates import first_order
from rookery.networks import NetworkConfig
from rookery.networks.network import Torso
from rookery.ranges import Count, Long, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Array, Needs, PyTree, Report, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class APPO:
    """Asynchronous PPO: the clipped objective on V-trace targets."""

    whole_sequences: ClassVar[bool] = True  # a minibatch is made of these, whatever the network
    variant: Literal["sample-factory", "target-policy"] = "sample-factory"
    rollout_length: Count = 32
    discount: Share = 0.99
    trace_lambda: Share = 0.95
    epochs: Count = 2
    """Passes over each batch."""
    minibatches: Count = 4
    """Groups of whole sequences (columns of a batch), with a gradient step for each."""
    clip: Positive = 0.1
    """0.1 in Sample Factory, 0.4 in RLlib."""
    value_clip: Positive = 1.0
    """How far a value may move from the one that acted; sample-factory only."""
    target_period: Long = 2
    learning_rate: Rate = 3e-4
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.003
    value_cost: NotNegative = 0.5
    max_gradient_norm: Positive = 4.0
    reward_clip: RewardClip = "none"
    """unit: to [-1, 1]; soft-asymmetric: 5 tanh(r/5)."""
    normalise_observations: bool | None = None
    """By running moments; None: numbers without bounds within ±100."""
    normalise_rewards: bool | None = None
    """By the deviation of returns; None: unless clipped."""
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = actor_critic.build(
            spec, self.network, torso=torso, remembers=("behaviour_logp", "value"),
            normalise_observations=self.normalise_observations, normalise_rewards=self.normalise_rewards,
            reward_clip=self.reward_clip,
        )  # fmt: skip
        steps = num_updates * self.epochs * self.minibatches if num_updates and self.anneal else None
        optimizer = optimizers.adam(self.learning_rate, num_steps=steps, epsilon=1e-6)
        with_target = self.variant == "target-policy"

        def refresh(state: TrainState) -> PyTree:
            now = state.updates % self.target_period == 0
            return jax.tree.map(lambda new, old: jnp.where(now, new, old), state.params["network"], state.slow)

        return first_order(
            model,
            optimizer,
            loss=lambda params, slow, rollout: loss(params, slow, rollout, model=model, config=self),
            max_gradient_norm=self.max_gradient_norm,
            epochs=self.epochs,
            minibatches=self.minibatches,
            num_chunks=lambda batch: chunks_for(spec, batch),
            slow=(lambda params: jax.tree.map(jnp.copy, params["network"])) if with_target else lambda params: (),
            refresh=refresh if with_target else lambda state: (),
            target_period=self.target_period if with_target else None,
            needs=Needs(self.rollout_length, self.discount, return_discount=model.normalisers.return_discount(self.discount)),
        )


def loss(params: PyTree, slow: PyTree, rollout: Rollout, *, model: ActorCritic, config: APPO) -> tuple[Array, Report]:
    out = model.evaluate(params, rollout)
    behaviour_logp, behaviour_value = rollout.extras["behaviour_logp"], rollout.extras["value"]
    if config.variant == "sample-factory":
        old_logp, low, high = behaviour_logp, 1.0 / (1.0 + config.clip), 1.0 + config.clip
        log_rho, weight = out.logp - behaviour_logp, None
    else:
        old_logp = jax.lax.stop_gradient(model.evaluate(params | {"network": slow}, rollout).logp)
        low, high = 1.0 - config.clip, 1.0 + config.clip
        log_rho, weight = old_logp - behaviour_logp, 1.0
    trace = ops.vtrace(
        value=out.value, value_next=out.value_next, reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, log_rho=log_rho, lam=config.trace_lambda, rho_pg_bar=weight,
    )  # fmt: skip
    ratio = jnp.exp(out.logp - old_logp)
    advantage = ops.masked_normalise(trace.advantage, rollout.valid)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    error = jnp.square(trace.target - out.value)
    if config.variant == "sample-factory":
        near = behaviour_value + jnp.clip(out.value - behaviour_value, -config.value_clip, config.value_clip)
        error = jnp.maximum(error, jnp.square(trace.target - near))
    terms = {
        "policy": -surrogate,
        "value": config.value_cost * 0.5 * error,
        "entropy": -config.entropy_cost * out.entropy,
    }  # each [T, B]; one reduction, here:
    means = {name: ops.masked_mean(term, rollout.valid) for name, term in terms.items()}
    report = {f"loss/{name}": mean for name, mean in means.items()}
    report["entropy"] = ops.masked_mean(out.entropy, rollout.valid)
    report["clip_fraction"] = ops.masked_mean(((ratio < low) | (ratio > high)).astype(jnp.float32), rollout.valid)
    return sum(means.values()), report
