"""A loss of your own, handed to an existing algorithm as a function: A2C whose policy is smooth in time.

    python examples/custom_loss.py

A term is added that holds the policy of a state close to that of the state before (CAPS, Mysore et al. 2021,
https://arxiv.org/abs/2012.06644): fewer jerks for a motor, at some cost in return. A loss is a function of (params, rollout):
`model` gives what the network says of the rollout, `config` holds A2C's hyper-parameters. Everything else stays A2C's:
networks, normalisers, optimizer, clipping, schedules, and every topology that it runs on. PPO, PG and VTrace take a loss in the
same way (PPO's is one of minibatches). For hyper-parameters of your own, that are options and can be tuned while a run goes on,
copy the algorithm's file: copied_algorithm.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import rookery
from rookery import ops
from rookery.algorithms import a2c
from rookery.algorithms.actor_critic import ActorCritic
from rookery.types import PyTree, Report, Rollout


def smooth(
    params: PyTree, rollout: Rollout, *, model: ActorCritic, config: Any, cost: float = 0.1
) -> tuple[jax.Array, Report]:  # fmt: skip
    """Add to A2C's loss what the policy changes from one state to the next; the second value is what is reported."""
    total, report = a2c.loss(params, rollout, model=model, config=config)
    logits = jax.nn.log_softmax(model.evaluate(params, rollout).outputs)  # [T, B, A]; computed once: XLA finds both calls
    before, after = jax.lax.stop_gradient(logits[:-1]), logits[1:]
    divergence = (jnp.exp(before) * (before - after)).sum(-1)  # [T - 1, B] in nats
    weight = rollout.valid[:-1] * ops.row_weights(rollout)[1:]  # a row that leads to another episode is no transition
    roughness = ops.masked_mean(divergence, weight)
    return total + cost * roughness, report | {"roughness": roughness}


def main(total_steps: int = 60_000, runs: str = "runs") -> dict[float, float]:
    roughness = {}
    for cost in (0.0, 1.0):
        algorithm = a2c.A2C(loss=partial(smooth, cost=cost), rollout_length=8, learning_rate=3e-3)
        with rookery.Trainer(algorithm, env="CartPole-v1", num_envs=32, total_steps=total_steps, runs=runs) as trainer:
            for progress in trainer:
                roughness[cost] = progress.report.get("roughness", 0.0)
            print(f"cost {cost:g}: return {trainer.return_mean:.0f}, roughness {roughness[cost]:.3f} nats")
    return roughness


if __name__ == "__main__":
    main()
