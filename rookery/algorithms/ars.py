"""Augmented random search (Mania et al. 2018, https://arxiv.org/abs/1803.07055): linear policies, found by mirrored steps.

V1 steps along the sum of (r+ - r-) · delta over all directions, divided by their number and by the standard deviation of
the returns. V2 whitens observations by the moments of all that was ever seen. The -t variants keep the `best` directions
by the better of their two returns; of directions that are equal at the bound, all are kept. Where all returns are equal
there is nothing to divide by, and no step.

Differs: the linear policy has a bias; `--network.hidden 32` makes it one that is not linear.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from rookery.algorithms import hyper, perturbed
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, Finite, Positive, Rate
from rookery.types import Agent, Array, Batch, Learned, Needs, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class ARS:
    """Augmented random search."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "sigma", "survival_bonus")  # see hyper.py
    variant: Literal["v1", "v1-t", "v2", "v2-t"] = "v2-t"
    """v2: whitened observations; -t: only the best directions."""
    best: Count = 4
    """Directions that the -t variants keep."""
    max_episode_steps: Count = 1_000
    """A longer episode is cut, and what it got so far counts."""
    sigma: Positive = 0.03
    """Standard deviation of the perturbations (nu)."""
    learning_rate: Rate = 0.02
    survival_bonus: Finite = 0.0
    """Taken off every reward while training: what the environment gives for not falling (1 for Hopper, 5 for Humanoid)."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(), encoder="mlp"))

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = perturbed.build(
            spec, self.network, torso=torso, normalise_observations=self.variant.startswith("v2"), zero_head=True
        )

        def init(key: Array) -> TrainState:
            params = model.init(key) | {"hyper": hyper.leaves(self)}
            return TrainState(params, (), {"network": ()}, jnp.zeros((), jnp.int32))

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            config, rollout, network = hyper.read(self, state.params), batch.rollout, state.params["network"]
            score = rollout.reward[0] - config.survival_bonus * rollout.extras["length"][0]
            weight, std = steps(score, self.best if self.variant.endswith("-t") else None)
            ascent = model.direction(network, config.learning_rate * weight, key)
            params = model.observe(state.params | {"network": jax.tree.map(jnp.add, network, ascent)}, rollout)
            report = {
                "population_return_mean": jnp.mean(rollout.reward),
                "population_return_max": jnp.max(rollout.reward),
                "episode_length_mean": jnp.mean(rollout.extras["length"]),
                "return_std": std,
                "update_norm": optax.tree.norm(ascent),
            }
            return Learned(state._replace(params=params, updates=state.updates + 1), report, None)

        return Agent(
            init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn,
            needs=Needs(self.max_episode_steps, discount=1.0, max_lag=0, whole_episodes=True), process=model.process,
            perturb=lambda params, member, key: model.perturb(params, member, key, hyper.read(self, params).sigma),
            trained=("network",),
        )  # fmt: skip


def steps(score: Array, best: int | None) -> tuple[Array, Array]:
    """Compute how far to go along each direction, [pairs], and sigma_R []. score [2 · pairs]; best: directions
    to keep, None: all."""
    plus, minus = score[0::2], score[1::2]
    better = jnp.maximum(plus, minus)
    if best is not None and best > better.size:
        raise ValueError(f"--best {best}: a population of {score.size} has only {better.size} directions; ask for fewer")
    bound = jnp.min(better) if best is None else jnp.sort(better)[better.size - best]
    keep = (better >= bound).astype(jnp.float32)
    kept = perturbed.in_order(keep)
    mean = perturbed.in_order(keep * (plus + minus)) / (2 * kept)
    variance = perturbed.in_order(keep * (jnp.square(plus - mean) + jnp.square(minus - mean))) / (2 * kept)
    std = jnp.sqrt(variance)
    moves = std > 1e-6 * jnp.abs(mean)  # else the returns differ by no more than rounding
    return jnp.where(moves, keep * (plus - minus) / (kept * jnp.where(moves, std, 1.0)), 0.0), std
