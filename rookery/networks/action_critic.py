"""The critic of SAC, TD3, DDPG and QT-Opt: the value of an action in a state, Q(observation, action).

    critic = action_critic(spec, config, ensemble=2)
    params = critic.init(key)
    q = critic.apply(params, observation, action)  # [2, B]: twins

The action is one more leaf of what an encoder reads (see encoders.py): beside vectors it enters the first layer, beside an
image it joins the image's features; one of choices is one-hot. Members of an ensemble differ by their weights alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp

from rookery.networks import encoders
from rookery.networks.config import NetworkConfig
from rookery.networks.network import as_pair, orthogonal
from rookery.types import Array, PyTree, Spec


class ActionCritic(NamedTuple):
    init: Callable[[Array], PyTree]  # (key) -> params, each leaf [ensemble, ...]
    apply: Callable[[PyTree, PyTree, PyTree], Array]  # (params, observation [B, ...], action [B, ...]) -> [ensemble, B]


def action_critic(spec: Spec, config: NetworkConfig, *, ensemble: int = 1) -> ActionCritic:
    """Build `ensemble` critics of the same form, which are evaluated together."""
    if config.core != "none":
        raise ValueError("A critic of (observation, action) has no recurrent state: take network.core='none'.")
    space = gymnasium.spaces.Dict({"action": spec.action, "observation": spec.observation})
    encode = as_pair(encoders.Encoder(encoders.leaves(space, config.encoder), config))
    head = as_pair(encoders.dense(1, gain=1.0))

    def init_one(key: Array) -> PyTree:
        seen = encoders.zeros(space)
        encoder = encode.init(key, seen)
        features = jax.eval_shape(encode.apply, encoder, seen)
        return orthogonal(key, {"encoder": encoder, "head": head.init(key, jnp.zeros(features.shape))})

    def one(params: PyTree, seen: PyTree) -> Array:
        return head.apply(params["head"], encode.apply(params["encoder"], seen))[:, 0]

    def init(key: Array) -> PyTree:
        return jax.lax.map(init_one, jax.random.split(key, ensemble))  # batched QR of a wide kernel may hang on two cores

    def apply(params: PyTree, observation: PyTree, action: PyTree) -> Array:
        values: Array = jax.vmap(one, (0, None))(params, {"action": action, "observation": observation})
        return values

    return ActionCritic(init, apply)
