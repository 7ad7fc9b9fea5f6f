"""Plain policy gradient: REINFORCE with reward-to-go (Williams 1992).

Each action is made likelier in proportion to the return that followed it, standardised over the batch. There is no
learned baseline and no advantage; a value head exists only to stand in for the rewards that a rollout's end, or a
truncated episode, does not show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import actor_critic, hyper, optimizers, own_loss
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.normalisers import RewardClip
from rookery.algorithms.own_loss import OwnLoss
from rookery.algorithms.updates import first_order
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Array, Needs, PyTree, Report, Rollout, Spec


@dataclass(frozen=True, kw_only=True)
class PG:
    """Plain policy gradient (REINFORCE with reward-to-go)."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "entropy_cost", "max_gradient_norm", "discount")  # see hyper.py
    rollout_length: Count = 64
    discount: Share = 0.99
    learning_rate: Rate = 3e-3
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.0
    max_gradient_norm: Positive = 0.5
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
        return first_order(
            model,
            optimizers.adam(epsilon=1e-5),
            config=self,
            loss=lambda params, slow, rollout: learned_by(params, rollout, model=model, config=self),
            planned=num_updates if self.anneal else None,
            needs=Needs(
                self.rollout_length, self.discount, max_lag=0, return_discount=model.normalisers.return_discount(self.discount)
            ),
        )


def loss(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: PG) -> tuple[Array, Report]:
    config, out, weight = hyper.read(config, params), model.evaluate(params, rollout), ops.row_weights(rollout)
    to_go = jax.lax.stop_gradient(out.value) + ops.gae(
        value=out.value, value_next=out.value_next, reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, lam=1.0,
    )  # the discounted rewards that followed, up to the end that was seen  # fmt: skip
    score = ops.masked_normalise(to_go, weight)
    terms = {
        "policy": -score * out.logp,
        "value": 0.5 * jnp.square(to_go - out.value),
        "entropy": -config.entropy_cost * out.entropy,
    }  # each [T, B]; one reduction, here:
    means = {name: ops.masked_mean(term, weight) for name, term in terms.items()}
    report = {f"loss/{name}": mean for name, mean in means.items()}
    report["entropy"] = ops.masked_mean(out.entropy, weight)
    return sum(means.values()), report
