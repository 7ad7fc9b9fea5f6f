"""What an actor and its critics read of observations: features of an encoder that they share, or observations as they are.

    front = front_of(spec, config)
    policy, critic = actor(front.spec, 2, front.network), action_critic(...)     read what `front.read` gives
    params = front.init(key, critic.init(key))                                   of the critic, the encoder among them
    q = critic.apply(front.heads(params), front.read(params, observation), action)

The encoder is the critics': their loss trains it, and a policy reads its features without a gradient (Yarats et al. 2021,
SAC-AE). Its features are normalised and bounded (layer normalisation, tanh), as many as the encoder of the image's size has.
`network.heads` says whether one is shared; auto: for images, as in an actor-critic. A torso of the user's is shared only
where it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks import encoders
from rookery.networks.config import NetworkConfig
from rookery.networks.network import observation_encoder, orthogonal, separate
from rookery.networks.torso import Torso, check_given
from rookery.types import Array, PyTree, Spec


class Front(NamedTuple):
    spec: Spec  # its observation is what networks behind this read
    network: NetworkConfig  # theirs
    shared: bool
    init: Callable[[Array, PyTree], PyTree]  # (key, params of the critics' heads) -> params of the critics
    read: Callable[[PyTree, PyTree], PyTree]  # (params of the critics, observation [B, ...]) -> what heads read
    heads: Callable[[PyTree], PyTree]  # (params of the critics) -> those of their heads


def front_of(spec: Spec, config: NetworkConfig, torso: Torso | None = None) -> Front:
    """Build what stands before the heads; where each network has an encoder of its own, nothing does."""
    if separate(spec, config, torso) or (torso is not None and config.heads != "shared"):
        return Front(spec, config, False, lambda key, heads: heads, lambda params, seen: seen, lambda params: params)
    encode, ours = observation_encoder(spec, config, torso), torso is None
    shapes = jax.eval_shape(encode.init, jax.random.key(0), encoders.zeros(spec.observation))
    if not ours:
        check_given(encode, shapes, spec.observation, num_outputs=None, config=config)
    size = jax.eval_shape(encode.apply, shapes, encoders.zeros(spec.observation)).shape[-1]

    def init(key: Array, heads: PyTree) -> PyTree:
        own_key, torso_key = jax.random.split(key)
        made = encode.init(torso_key, encoders.zeros(spec.observation))
        return {"encoder": orthogonal(own_key, made) if ours else made, "heads": heads}

    def read(params: PyTree, observation: PyTree) -> Array:
        return jnp.tanh(standardised(encode.apply(params["encoder"], observation)))

    features = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
    behind = dataclasses.replace(config, encoder="auto")
    return Front(spec._replace(observation=features), behind, True, init, read, lambda params: params["heads"])


def standardised(x: Array) -> Array:
    """Normalise each row over its features: layer normalisation without parameters. [..., F]"""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
