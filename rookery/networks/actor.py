"""The policy of SAC, TD3 and DDPG: a network of its own, whose outputs are numbers that each algorithm reads in its way.

    policy = actor(spec, 2 * size, config)
    params = policy.init(key)
    outputs = policy.apply(params, observation)  # [B, 2 * size]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.networks import encoders
from rookery.networks.config import NetworkConfig
from rookery.networks.network import as_pair, observation_encoder, orthogonal
from rookery.networks.torso import Torso, check_given, encoding_of
from rookery.types import Array, PyTree, Spec

HEAD_GAIN = 0.01  # a new policy is close to the middle of the bounds, whatever it sees


class Actor(NamedTuple):
    init: Callable[[Array], PyTree]  # (key) -> params
    apply: Callable[[PyTree, PyTree], Array]  # (params, observation [B, ...]) -> [B, num_outputs]


def actor(spec: Spec, num_outputs: int, config: NetworkConfig, *, torso: Torso | None = None) -> Actor:
    """Build a policy network. torso: the user's own encoder (see torso.py)."""
    if config.core != "none":
        raise ValueError("a policy that learns from single transitions has no recurrent state: use --network.core none")
    own = None if torso is None else encoding_of(torso)
    encode = observation_encoder(spec, config, torso, norm_images=True)
    head = as_pair(encoders.dense(num_outputs, gain=HEAD_GAIN))

    def init(key: Array) -> PyTree:
        own_key, torso_key = jax.random.split(key)
        seen = encoders.zeros(spec.observation)
        params = {"encoder": encode.init(torso_key, seen)}
        if own is not None:
            check_given(own, params["encoder"], spec.observation, num_outputs=None, config=config)
        features = jax.eval_shape(encode.apply, params["encoder"], seen)
        params["head"] = head.init(key, jnp.zeros(features.shape))
        ours = {name: part for name, part in params.items() if own is None or name != "encoder"}
        return params | orthogonal(own_key, ours)

    def apply(params: PyTree, observation: PyTree) -> Array:
        outputs: Array = head.apply(params["head"], encode.apply(params["encoder"], observation))
        return outputs

    return Actor(init, apply)
