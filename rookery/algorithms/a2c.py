"""Advantage actor-critic, synchronous (Mnih et al. 2016, https://arxiv.org/abs/1602.01783, section 4 and its A2C form).

One n-step policy-gradient step per batch of fresh rollouts. With `gae_lambda = 1` the advantage is the n-step return
minus the value, as published. Differs from the paper: means instead of sums over the rollout; a value with a network of its
own is fitted to each batch by several steps, where the policy takes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import actor_critic, hyper, optimizers, own_loss
from rookery.algorithms.actor_critic import ActorCritic, RolloutEvaluation
from rookery.algorithms.critic import Critic
from rookery.algorithms.minibatches import chunks_for
from rookery.algorithms.normalisers import RewardClip
from rookery.algorithms.own_loss import OwnLoss
from rookery.algorithms.updates import first_order
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Array, Needs, PyTree, Report, Rollout, Spec


@dataclass(frozen=True, kw_only=True)
class A2C:
    """Synchronous advantage actor-critic."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "entropy_cost", "value_cost", "gae_lambda", "max_gradient_norm", "discount",
    )  # may change while a run goes on (see hyper.py)  # fmt: skip
    rollout_lengths: ClassVar[tuple[int, int]] = (16, 32)  # shorter ones are too few rows, longer ones did not help
    rollout_length: Count | None = None
    """None: 32; fewer in a short run, down to 16, where the value has a network of its own."""
    discount: Share = 0.99
    gae_lambda: Share = 0.95
    learning_rate: Rate = 2e-3
    anneal: bool = True
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.001
    value_cost: NotNegative = 0.5
    value_steps: Count | None = None
    """Steps of the value on a batch, where the policy takes one; None: 16 if it has a network of its own, else 1."""
    max_gradient_norm: Positive = 0.5
    rmsprop_epsilon: Positive = 1e-10
    """Below the root."""
    reward_clip: RewardClip = "none"
    """unit: to [-1, 1]; soft-asymmetric: 5 tanh(r/5)."""
    normalise_observations: bool | None = None
    """By running moments; None: numbers without bounds within ±100."""
    normalise_rewards: bool | None = None
    """By the deviation of returns; None: unless clipped."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: OwnLoss = None
    """A function of your own, from Python alone: (params, rollout, *, model, config) -> loss, report; see own_loss.py."""

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = actor_critic.build(
            spec, self.network, torso=torso,
            normalise_observations=self.normalise_observations, normalise_rewards=self.normalise_rewards,
            reward_clip=self.reward_clip,
        )  # fmt: skip
        learned_by = own_loss.chosen(self.loss, loss)

        def targets(params: PyTree, rollout: Rollout) -> Array:
            return returns(model.evaluate(params, rollout), params, rollout, model=model, config=self).target

        return first_order(
            model,
            optimizers.rmsprop(decay=0.99, epsilon=self.rmsprop_epsilon),
            config=self,
            loss=lambda params, slow, rollout: learned_by(params, rollout, model=model, config=self),
            critic=Critic(targets, self.value_steps) if self.loss is None else None,
            planned=num_updates if self.anneal else None,
            num_chunks=lambda batch: chunks_for(spec, batch),
            needs=Needs(
                self.rollout_length or self.rollout_lengths[1], self.discount, max_lag=0,
                return_discount=model.normalisers.return_discount(self.discount),
            ),
        )


class Returns(NamedTuple):
    advantage: Array  # [T, B]
    target: Array  # [T, B] of the value


def returns(out: RolloutEvaluation, params: PyTree, rollout: Rollout, *, model: ActorCritic, config: A2C) -> Returns:
    """Compute advantages (GAE; n-step returns at lambda 1) and targets; no gradient flows out of here."""
    advantage = ops.gae(
        value=out.value, value_next=out.value_next, reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, lam=hyper.read(config, params).gae_lambda,
    )  # fmt: skip
    return Returns(advantage, jax.lax.stop_gradient(out.value) + advantage)


def loss(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: A2C) -> tuple[Array, Report]:
    config, out = hyper.read(config, params), model.evaluate(params, rollout)
    advantage, target = returns(out, params, rollout, model=model, config=config)
    terms = {
        "policy": -advantage * out.logp,
        "value": config.value_cost * 0.5 * jnp.square(target - out.value),
        "entropy": -config.entropy_cost * out.entropy,
    }  # each [T, B]; one reduction, here:
    weight = ops.row_weights(rollout)
    means = {name: ops.masked_mean(term, weight) for name, term in terms.items()}
    report = {f"loss/{name}": mean for name, mean in means.items()}
    report["entropy"] = ops.masked_mean(out.entropy, weight)
    return sum(means.values()), report
