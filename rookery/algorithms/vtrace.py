"""V-trace: the algorithm of IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

An actor-critic that learns from slightly old data: truncated importance weights correct for the difference between
the policy that acted and the one that learns.

The loss is summed over the T·B rows of a batch, as published: the clip of its gradient and RMSProp's epsilon, which
belong to that sum, are in the paper's units. (RMSProp divides the sum out again: the learning rate belongs to no batch.)

Differs from the paper: rewards are divided by the running deviation of the return where they are not clipped; a value with a
network of its own is fitted to each batch by several steps, where the policy takes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

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
class VTrace:
    """IMPALA's loss: V-trace targets, policy gradient, value and entropy."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "entropy_cost", "value_cost", "trace_lambda", "rho_bar", "c_bar", "discount",
    )  # may change while a run goes on (see hyper.py); max_gradient_norm is divided by the rows, exactly  # fmt: skip
    rollout_lengths: ClassVar[tuple[int, int]] = (16, 32)  # shorter ones are too few rows, longer ones did not help
    rollout_length: Count | None = None
    """None: 32; fewer in a short run, down to 16, where the value has a network of its own."""
    discount: Share = 0.99
    rho_bar: Positive = 1.0
    c_bar: Positive = 1.0
    trace_lambda: Share = 0.95
    learning_rate: Rate = 2e-3
    anneal: bool = True
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.001
    value_cost: NotNegative = 0.5
    value_steps: Count | None = None
    """Steps of the value on a batch, where the policy takes one; None: 16 if it has a network of its own, else 1."""
    reward_clip: RewardClip = "none"
    """unit: to [-1, 1]; soft-asymmetric: 5 tanh(r/5)."""
    normalise_observations: bool | None = None
    """By running moments; None: numbers without bounds within ±100."""
    normalise_rewards: bool | None = None
    """By the deviation of returns; None: unless clipped."""
    max_gradient_norm: Positive = 40.0
    """Of the loss summed over the T·B rows of a batch."""
    rmsprop_epsilon: Positive = 1e-3
    """Below the root, of the squared gradient of that sum: the paper's 0.01 for 640 rows, at 200."""
    previous: bool = False
    """Show the network its previous action and reward (IMPALA's LSTM agents)."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: OwnLoss = None
    """A function of your own, from Python alone: (params, rollout, *, model, config) -> loss, report; see own_loss.py."""

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = actor_critic.build(
            spec, self.network, torso=torso, previous=self.previous, remembers=("behaviour_logp",),
            normalise_observations=self.normalise_observations, normalise_rewards=self.normalise_rewards,
            reward_clip=self.reward_clip,
        )  # fmt: skip
        learned_by = own_loss.chosen(self.loss, loss)

        def targets(params: PyTree, rollout: Rollout) -> Array:
            return traced(model.evaluate(params, rollout), params, rollout, model=model, config=self).target

        return first_order(
            model,
            optimizers.rmsprop(decay=0.99, epsilon=self.rmsprop_epsilon),
            config=self,
            loss=lambda params, slow, rollout: learned_by(params, rollout, model=model, config=self),
            critic=Critic(targets, self.value_steps) if self.loss is None else None,
            planned=num_updates if self.anneal else None,
            summed=True,
            num_chunks=lambda batch: chunks_for(spec, batch),
            needs=Needs(
                self.rollout_length or self.rollout_lengths[1], self.discount, previous=self.previous,
                return_discount=model.normalisers.return_discount(self.discount),
            ),
        )  # fmt: skip


def traced(
    out: RolloutEvaluation, params: PyTree, rollout: Rollout, *, model: ActorCritic, config: VTrace
) -> ops.VTraceReturns:
    """Compute V-trace's targets and advantages, by what the parameters say of the rollout; no gradient flows out of here."""
    config = hyper.read(config, params)
    return ops.vtrace(
        value=out.value, value_next=out.value_next, reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, log_rho=out.logp - rollout.extras["behaviour_logp"],
        rho_bar=config.rho_bar, c_bar=config.c_bar, lam=config.trace_lambda,
    )  # fmt: skip


def loss(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: VTrace) -> tuple[Array, Report]:
    config, out = hyper.read(config, params), model.evaluate(params, rollout)
    trace = traced(out, params, rollout, model=model, config=config)
    terms = {
        "policy": -trace.advantage * out.logp,
        "value": config.value_cost * 0.5 * jnp.square(trace.target - out.value),
        "entropy": -config.entropy_cost * out.entropy,
    }  # each [T, B]; one reduction, here:
    weight = ops.row_weights(rollout)
    means = {name: ops.masked_mean(term, weight) for name, term in terms.items()}
    report = {f"loss/{name}": mean for name, mean in means.items()}
    report["entropy"] = ops.masked_mean(out.entropy, weight)
    report["rho"] = ops.masked_mean(jnp.exp(out.logp - rollout.extras["behaviour_logp"]), weight)
    return sum(means.values()), report

