"""Evolution strategies (Salimans et al. 2017, https://arxiv.org/abs/1703.03864).

Mirrored pairs of perturbed policies play one episode each; the ranks of all returns together, centred, say how far to go
along each perturbation; Adam makes the step, with weight decay. There is no gradient, no value and no discount.

Differs: noise comes from a counter-based hash and not from a table shared by the workers of a machine; returns that are
equal share a rank; actions have no noise of their own; every episode (not one in a hundred) counts for the normaliser.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from rookery import ops
from rookery.algorithms import hyper, optimizers, perturbed
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, NotNegative, Positive, Rate
from rookery.types import Agent, Array, Batch, Learned, Needs, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class ES:
    """Evolution strategies."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "sigma", "weight_decay")  # see hyper.py
    max_episode_steps: Count = 1_000
    """A longer episode is cut, and what it got so far counts."""
    sigma: Positive = 0.02
    """Standard deviation of the perturbations."""
    learning_rate: Rate = 0.01
    weight_decay: NotNegative = 0.005
    normalise_observations: bool = True
    """By running moments."""
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = perturbed.build(spec, self.network, torso=torso, normalise_observations=self.normalise_observations)
        optimizer = optimizers.adam(epsilon=1e-8)

        def init(key: Array) -> TrainState:
            params = model.init(key) | {"hyper": hyper.leaves(self)}
            return TrainState(params, (), {"network": optimizer.init(params["network"])}, jnp.zeros((), jnp.int32))

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            config, rollout, network = hyper.read(self, state.params), batch.rollout, state.params["network"]
            weight = utilities(rollout.reward[0])
            ascent = model.direction(network, weight, key)
            gradient = jax.tree.map(lambda up, theta: config.weight_decay * theta - up, ascent, network)
            moments = state.optimizer["network"]
            step, moments = optimizer.update(gradient, moments, network, learning_rate=config.learning_rate)
            params = model.observe(state.params | {"network": optax.apply_updates(network, step)}, rollout)
            report = {
                "population_return_mean": jnp.mean(rollout.reward),
                "population_return_max": jnp.max(rollout.reward),
                "episode_length_mean": jnp.mean(rollout.extras["length"]),
                "direction_norm": optax.tree.norm(ascent),
                "update_norm": optax.tree.norm(step),
            }
            return Learned(TrainState(params, (), {"network": moments}, state.updates + 1), report, None)

        return Agent(
            init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn,
            needs=Needs(self.max_episode_steps, discount=1.0, max_lag=0, whole_episodes=True), process=model.process,
            perturb=lambda params, member, key: model.perturb(params, member, key, hyper.read(self, params).sigma),
            trained=("network",),
        )  # fmt: skip


def utilities(total: Array) -> Array:
    """Compute how far to go along each perturbation, [pairs]. total [2 · pairs]: returns of members; two neighbours are a pair.

    This is the estimate of the gradient, up to a factor 1 / sigma that Adam would take out again: as in the authors' code.
    """
    rank = ops.centred_ranks(total)
    return (rank[0::2] - rank[1::2]) / total.size
