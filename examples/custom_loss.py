"""A loss of your own on the machinery of an existing algorithm: A2C whose policy is smooth in time.

    python examples/custom_loss.py

A term is added that holds the policy of a state close to that of the state before (CAPS, Mysore et al. 2021,
https://arxiv.org/abs/2012.06644): fewer jerks for a motor, at some cost in return. `actor_critic.build` gives the network
and how it acts, `a2c.loss` the three terms of A2C, and `first_order` makes an Agent of any loss: gradients are clipped,
accumulated over chunks, shipped by AsyncGradients or Gossip as those of A2C are. A subclass keeps A2C's hyper-parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import rookery
from rookery import ops
from rookery.algorithms import a2c, actor_critic, hyper, optimizers
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.updates import first_order
from rookery.ranges import NotNegative
from rookery.types import Agent, Needs, PyTree, Report, Rollout, Spec


@dataclass(frozen=True, kw_only=True)
class SmoothA2C(a2c.A2C):
    leaves: ClassVar[tuple[str, ...]] = (*a2c.A2C.leaves, "smoothness_cost")  # `Trainer.tune` may change it in a running job
    rollout_length: int = 8
    smoothness_cost: NotNegative = 0.1
    """Of the divergence between the policies of two states in a row."""

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Any = None) -> Agent:
        model = actor_critic.build(spec, self.network, torso=torso)
        return first_order(
            model,
            optimizers.rmsprop(decay=0.99, epsilon=self.rmsprop_epsilon),
            config=self,
            loss=lambda params, slow, rollout: loss(params, rollout, model=model, config=self),
            planned=num_updates if self.anneal else None,
            needs=Needs(self.rollout_length, self.discount, max_lag=0),
        )


def loss(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: SmoothA2C) -> tuple[jax.Array, Report]:
    total, report = a2c.loss(params, rollout, model=model, config=config)
    logits = jax.nn.log_softmax(model.evaluate(params, rollout).outputs)  # [T, B, A]; computed once: XLA finds both calls
    before, after = jax.lax.stop_gradient(logits[:-1]), logits[1:]
    divergence = (jnp.exp(before) * (before - after)).sum(-1)  # [T - 1, B] in nats
    weight = rollout.valid[:-1] * ops.row_weights(rollout)[1:]  # a row that leads to another episode is no transition
    roughness = ops.masked_mean(divergence, weight)
    smooth = hyper.read(config, params).smoothness_cost * roughness
    return total + smooth, report | {"loss/smooth": smooth, "roughness": roughness}


def main(total_steps: int = 60_000, runs: str = "runs") -> dict[float, float]:
    roughness = {}
    for cost in (0.0, 1.0):
        algorithm = SmoothA2C(smoothness_cost=cost, learning_rate=3e-3)
        with rookery.Trainer(algorithm, env="CartPole-v1", num_envs=32, total_steps=total_steps, runs=runs) as trainer:
            for progress in trainer:
                roughness[cost] = progress.report.get("roughness", 0.0)
            print(f"cost {cost:g}: return {trainer.return_mean:.0f}, roughness {roughness[cost]:.3f} nats")
    return roughness


if __name__ == "__main__":
    main()
