"""An algorithm's file, copied and changed: A2C whose policy is smooth in time, with a hyper-parameter of its own.

    python examples/copied_algorithm.py

What rookery/algorithms/a2c.py has, without what is not needed here, and with one term more (that of custom_loss.py).
`smoothness_cost` is an option like the others: it has a range, is saved with the run, and `Trainer.tune` changes it while the
run goes on, because it is among `leaves`. `actor_critic.build` gives the network and how it acts, and `first_order` makes an
Agent of any loss: gradients are clipped, accumulated over chunks, shipped by AsyncGradients or Gossip as those of A2C are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import rookery
from rookery import ops
from rookery.algorithms import actor_critic, hyper, optimizers
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.updates import first_order
from rookery.networks import NetworkConfig
from rookery.ranges import Count, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Needs, PyTree, Report, Rollout, Spec


@dataclass(frozen=True, kw_only=True)
class SmoothA2C:
    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "entropy_cost", "value_cost", "max_gradient_norm", "discount", "smoothness_cost",
    )  # fmt: skip
    rollout_length: Count = 8
    discount: Share = 0.99
    learning_rate: Rate = 2e-3
    entropy_cost: NotNegative = 0.001
    value_cost: NotNegative = 0.5
    max_gradient_norm: Positive = 0.5
    smoothness_cost: NotNegative = 0.1
    """Of the divergence between the policies of two states in a row."""
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Any = None) -> Agent:
        model = actor_critic.build(spec, self.network, torso=torso)
        return first_order(
            model,
            optimizers.rmsprop(decay=0.99, epsilon=1e-10),
            config=self,
            loss=lambda params, slow, rollout: loss(params, rollout, model=model, config=self),
            planned=num_updates,  # the learning rate falls to zero over the run
            needs=Needs(self.rollout_length, self.discount, max_lag=0),
        )


def loss(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: SmoothA2C) -> tuple[jax.Array, Report]:
    config, out = hyper.read(config, params), model.evaluate(params, rollout)
    advantage = ops.gae(
        value=out.value, value_next=out.value_next, reward=rollout.reward, discount=rollout.discount, valid=rollout.valid,
        lam=1.0,
    )  # no gradient flows out of it  # fmt: skip
    target = jax.lax.stop_gradient(out.value) + advantage
    terms = {
        "policy": -advantage * out.logp,
        "value": config.value_cost * 0.5 * jnp.square(target - out.value),
        "entropy": -config.entropy_cost * out.entropy,
    }  # each [T, B]
    means = {name: ops.masked_mean(term, ops.row_weights(rollout)) for name, term in terms.items()}
    logits = jax.nn.log_softmax(out.outputs)  # [T, B, A]
    before, after = jax.lax.stop_gradient(logits[:-1]), logits[1:]
    divergence = (jnp.exp(before) * (before - after)).sum(-1)  # [T - 1, B] in nats
    weight = rollout.valid[:-1] * ops.row_weights(rollout)[1:]  # a row that leads to another episode is no transition
    roughness = ops.masked_mean(divergence, weight)
    means["smooth"] = config.smoothness_cost * roughness
    return sum(means.values()), {f"loss/{name}": mean for name, mean in means.items()} | {"roughness": roughness}


def main(total_steps: int = 60_000, runs: str = "runs") -> rookery.Result:
    algorithm = SmoothA2C(smoothness_cost=1.0)
    result = rookery.train(algorithm, env="CartPole-v1", num_envs=32, total_steps=total_steps, learning_rate=3e-3, runs=runs)
    print(f"return {result.metrics['return_mean']:.0f} with a cost of {algorithm.smoothness_cost:g}")
    return result


if __name__ == "__main__":
    main()
