"""APPO: PPO's clipped objective on V-trace targets, so that it may learn from slightly old data.

Two designs were published under this name:

- `sample-factory` (Petrenko et al. 2020, https://arxiv.org/abs/2006.11751): the old policy of the ratio is the one that
  acted; the clip is symmetric in the ratio, [1 / (1 + clip), 1 + clip]; the value is clipped too.
- `target-policy` (RLlib's APPO): the old policy is a target network, refreshed every `target_period` updates; V-trace
  corrects from the acting policy to the target, and the ratio current / target is clipped to [1 - clip, 1 + clip].

In the first the ratio of the objective is the whole correction, so its advantage is r + gamma v' − V without V-trace's
weight; in the second V-trace's weight corrects up to the target, and the ratio from there.

Differs from both: several passes over each batch, as PPO makes them: targets and advantages are made once, by the parameters
before the first pass, and steps are shuffled one by one (whole sequences with a recurrent network). Sample Factory's default
is one pass in one piece, and with few environments that is too few steps. Advantages are normalised over a minibatch. Who
ships gradients, and one pass in one piece, takes the gradient of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import actor_critic, hyper, optimizers, ppo
from rookery.algorithms.actor_critic import ActorCritic, RolloutEvaluation
from rookery.algorithms.minibatches import chunks_for
from rookery.algorithms.normalisers import RewardClip
from rookery.algorithms.updates import first_order
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, Long, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Array, Batch, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class APPO:
    """Asynchronous PPO: the clipped objective on V-trace targets."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "entropy_cost", "value_cost", "clip", "value_clip", "max_gradient_norm", "discount",
    )  # may change while a run goes on (see hyper.py); as an argument, trace_lambda moved the last bits  # fmt: skip
    variant: Literal["sample-factory", "target-policy"] = "sample-factory"
    """Ratios are clipped around the policy that acted (Sample Factory), or around a target policy (IMPACT, RLlib)."""
    rollout_length: Count = 64
    discount: Share = 0.99
    trace_lambda: Share = 0.95
    epochs: Count = 10
    """Passes over each batch."""
    minibatches: Count | None = None
    """Per epoch; None: of 64 rows each, but at most 32, and of whole sequences with a core."""
    clip: Positive = 0.2
    """PPO's; 0.1 in Sample Factory, 0.4 in RLlib."""
    value_clip: Positive = 1.0
    """How far a value may move from the one that acted; sample-factory only."""
    target_period: Long = 2
    learning_rate: Rate = 3e-4
    anneal: bool = True
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.01
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
        optimizer = optimizers.adam(epsilon=1e-6)
        planned = num_updates if self.anneal else None
        with_target = self.variant == "target-policy"

        def refresh(state: TrainState) -> PyTree:
            now = state.updates % self.target_period == 0
            return jax.tree.map(lambda new, old: jnp.where(now, new, old), state.params["network"], state.slow)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            out = model.evaluate(state.params, batch.rollout)
            data = prepare(out, state.params, state.slow, batch.rollout, model=model, config=self)
            data = ops.spread.everywhere(data if model.recurrent else ppo.steps_of(data))
            rate = optimizers.remaining(state.updates, planned)
            params, opt_state, report = ppo.passes(state, data, key, model=model, optimizer=optimizer, config=self, rate=rate)
            params = model.normalisers.observed(params, model.normalisers.statistics(batch.rollout))
            state = TrainState(params, state.slow, opt_state, state.updates + 1)
            return Learned(state._replace(slow=refresh(state)) if with_target else state, report, None)

        agent = first_order(
            model,
            optimizer,
            config=self,
            loss=lambda params, slow, rollout: loss(params, slow, rollout, model=model, config=self),
            planned=planned,
            num_chunks=lambda batch: chunks_for(spec, batch),
            slow=(lambda params: jax.tree.map(jnp.copy, params["network"])) if with_target else lambda params: (),
            refresh=refresh if with_target else lambda state: (),
            target_period=self.target_period if with_target else None,
            needs=Needs(self.rollout_length, self.discount, return_discount=model.normalisers.return_discount(self.discount)),
        )
        return agent if (self.epochs, self.minibatches) == (1, 1) else agent._replace(learn=learn)

    def limits(self) -> ppo.Limits:
        if self.variant == "sample-factory":
            return ppo.Limits(1.0 / (1.0 + self.clip), 1.0 + self.clip, self.value_clip)
        return ppo.Limits(1.0 - self.clip, 1.0 + self.clip, None)


def prepare(
    out: RolloutEvaluation, params: PyTree, slow: PyTree, rollout: Rollout, *, model: ActorCritic, config: APPO
) -> ppo.Sequences:
    """Compute V-trace's targets and advantages, [T, B], by what the parameters say of the rollout; no gradient
    flows out of here."""
    config = hyper.read(config, params)
    behaviour_logp = rollout.extras["behaviour_logp"]
    if config.variant == "sample-factory":
        old_logp, log_rho, weight = behaviour_logp, out.logp - behaviour_logp, None
    else:
        old_logp = model.evaluate(params | {"network": slow}, rollout).logp
        log_rho, weight = old_logp - behaviour_logp, 1.0
    trace = ops.vtrace(
        value=out.value, value_next=out.value_next, reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, log_rho=log_rho, lam=config.trace_lambda, rho_pg_bar=weight,
    )  # fmt: skip
    data = ppo.Sequences(
        observation=jax.tree.map(lambda x: x[:-1], rollout.observation),
        action=rollout.action,
        old_logp=old_logp,
        value=rollout.extras["value"],
        target=trace.target,
        advantage=trace.advantage,
        first=actor_critic.first_rows(rollout.valid)[:-1],
        weight=ops.row_weights(rollout),
        memory=rollout.memory,
    )
    return jax.lax.stop_gradient(data)


def loss(params: PyTree, slow: PyTree, rollout: Rollout, *, model: ActorCritic, config: APPO) -> tuple[Array, Report]:
    """Compute the loss of the whole batch as one piece."""
    config, out = hyper.read(config, params), model.evaluate(params, rollout)
    piece = ppo.normalised(prepare(out, params, slow, rollout, model=model, config=config))
    judged = ppo.Judged(out.logp - piece.old_logp, out.entropy, out.value)
    total: Array = sum(ppo.terms(judged, piece, config=config).values())
    return ops.masked_mean(total, piece.weight), ppo.describe(judged, piece, config=config)
