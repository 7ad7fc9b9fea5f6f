"""A network of your own: `torso=` takes a flax module as it is, or a pair of functions (init, apply).

    python examples/custom_network.py

It gives features [B, F] for observations [B, ...] and replaces the encoder; Rookery puts the memory (if any) and the heads for
policy and value behind it, and the parameters travel, are saved and are restored like any others. One is a module of
flax.linen, one of flax.nnx, one is written in plain JAX. The last gives an Output, policy and value, instead of features: its
heads are its own as well.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import rookery
from rookery.networks import Output

FREQUENCIES, FEATURES = 8, 64


class Residual(nn.Module):
    """A pre-activation residual MLP."""

    width: int = 64

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        x = nn.Dense(self.width)(observation)
        for _ in range(2):
            x = x + nn.Dense(self.width)(nn.silu(nn.LayerNorm()(x)))
        return x


class Layers(nnx.Module):
    """Modules of flax.nnx know the size of what they read, and hold their weights."""

    def __init__(self, size: int, *, rngs: nnx.Rngs) -> None:
        self.inside, self.outside = nnx.Linear(size, FEATURES, rngs=rngs), nnx.Linear(FEATURES, FEATURES, rngs=rngs)

    def __call__(self, observation: Any) -> jax.Array:
        return jnp.tanh(self.outside(jnp.tanh(self.inside(observation))))


def init(key: jax.Array, observation: jax.Array) -> dict[str, jax.Array]:
    """observation: one example, [1, D]. The parameters may be any tree of arrays."""
    inside, outside = jax.random.split(key)
    D = observation.shape[-1]
    return {
        "frequency": 0.5 * jax.random.normal(inside, (D, FREQUENCIES * D)),
        "weight": jax.random.normal(outside, (2 * FREQUENCIES * D + D, FEATURES)) / jnp.sqrt(2 * FREQUENCIES * D + D),
        "bias": jnp.zeros(FEATURES),
    }


def apply(params: dict[str, jax.Array], observation: jax.Array) -> jax.Array:
    """Learned Fourier features: [B, D] -> [B, FEATURES]. Called inside the compiled step and inside the loss."""
    phase = observation @ params["frequency"]
    waves = jnp.concatenate([observation, jnp.sin(phase), jnp.cos(phase)], axis=-1)
    return jnp.tanh(waves @ params["weight"] + params["bias"])


class OwnHeads(nn.Module):
    """Policy and value of your own; the value sees the policy's features but does not change them. The policy is what the
    distribution of the actions takes: here 2 logits, for boxes mean and log deviation."""

    num_actions: int = 2

    @nn.compact
    def __call__(self, observation: Any) -> Output:
        x = nn.tanh(nn.Dense(64)(observation))
        policy = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(nn.tanh(nn.Dense(64)(x)))
        seen = jnp.concatenate([observation, jax.lax.stop_gradient(x)], axis=-1)
        value = nn.Dense(1)(nn.tanh(nn.Dense(128)(seen)))
        return Output(policy=policy, value=value[:, 0])  # [B, num_actions], [B]


def main(system: str = "ppo", total_steps: int = 16_000, runs: str = "runs") -> dict[str, rookery.Result]:
    layers = partial(Layers, 4)  # is called with rngs by the seed of the run; Layers(4, rngs=nnx.Rngs(0)) has its weights
    torsos = {"residual": Residual(), "layers": layers, "fourier": (init, apply), "heads": OwnHeads()}
    results = {}
    for name, torso in torsos.items():
        results[name] = rookery.train(
            system, env="CartPole-v1", torso=torso, total_steps=total_steps, num_envs=16, learning_rate=2e-3, runs=runs
        )
        m = results[name].metrics
        print(f"{name}: {m['parameters']:,} parameters, return {m['return_mean']:.0f} after {m['env_steps']:,} steps")
        again = rookery.load(results[name].run, torso=torso)  # code is in no file: the network is passed again
        assert again(jnp.zeros(4))[0] == results[name].policy(jnp.zeros(4))[0]
    return results


if __name__ == "__main__":
    main()
