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
from rookery.networks.torso import Encoding, Torso, check_given, encoding_of
from rookery.types import Array, PyTree, Spec

APART = 4  # members up to which each has products of its own: independent ones share the cores; more are batched


class ActionCritic(NamedTuple):
    init: Callable[[Array], PyTree]  # (key) -> params, each leaf [ensemble, ...]
    apply: Callable[[PyTree, PyTree, PyTree], Array]  # (params, observation [B, ...], action [B, ...]) -> [ensemble, B]


def action_critic(
    spec: Spec, config: NetworkConfig, *, ensemble: int = 1, layer_norm: bool = False, torso: Torso | None = None
) -> ActionCritic:
    """Build `ensemble` critics of the same form, which are evaluated together.

    torso: the user's own encoder of observations (see torso.py); its features and the action go through the MLP of `config`.
    """
    if config.core != "none":
        raise ValueError("A critic of (observation, action) has no recurrent state: take network.core='none'.")
    encode = _encoding(spec, config, layer_norm) if torso is None else _behind(encoding_of(torso), spec, config, layer_norm)
    head = as_pair(encoders.dense(1, gain=1.0))

    def init_one(key: Array) -> PyTree:
        own_key, torso_key = jax.random.split(key)
        seen = encoders.zeros(_pair_space(spec))
        encoder = encode.init(torso_key, seen)
        features = jax.eval_shape(encode.apply, encoder, seen)
        params = {"encoder": encoder, "head": head.init(key, jnp.zeros(features.shape))}
        if torso is None:
            return orthogonal(key, params)
        given = {"encoder": {"torso": encoder["torso"]}}  # its weights are what its own init made them
        made = orthogonal(own_key, {"encoder": {"mlp": encoder["mlp"]}, "head": params["head"]})
        return {"encoder": given["encoder"] | made["encoder"], "head": made["head"]}

    def one(params: PyTree, seen: PyTree) -> Array:
        return head.apply(params["head"], encode.apply(params["encoder"], seen))[:, 0]

    def init(key: Array) -> PyTree:
        return jax.lax.map(init_one, jax.random.split(key, ensemble))  # batched QR of a wide kernel may hang on two cores

    def apply(params: PyTree, observation: PyTree, action: PyTree) -> Array:
        seen = {"action": action, "observation": observation}
        if ensemble > APART:
            values: Array = jax.vmap(one, (0, None))(params, seen)
            return values
        return jnp.stack([one(jax.tree.map(lambda leaf, i=i: leaf[i], params), seen) for i in range(ensemble)])

    return ActionCritic(init, apply)


def _pair_space(spec: Spec) -> gymnasium.spaces.Dict:
    return gymnasium.spaces.Dict({"action": spec.action, "observation": spec.observation})


def _encoding(spec: Spec, config: NetworkConfig, layer_norm: bool) -> Encoding:
    return as_pair(encoders.Encoder(encoders.leaves(_pair_space(spec), config.encoder), config, layer_norm, norm_images=True))


def _behind(own: Encoding, spec: Spec, config: NetworkConfig, layer_norm: bool) -> Encoding:
    """Put the MLP behind a torso of the user's: its features and the action, concatenated."""
    mlp: Encoding | None = None

    def join(params: PyTree, seen: PyTree) -> PyTree:
        return {"action": seen["action"], "observation": own.apply(params, seen["observation"])}

    def behind(features: int) -> Encoding:
        space = gymnasium.spaces.Box(-jnp.inf, jnp.inf, (features,))
        return _encoding(spec._replace(observation=space), config, layer_norm)

    def init(key: Array, seen: PyTree) -> PyTree:
        torso = own.init(key, seen["observation"])
        check_given(own, torso, spec.observation, num_outputs=None, config=config)
        joined = jax.eval_shape(join, torso, seen)
        made = behind(joined["observation"].shape[-1])
        return {"torso": torso, "mlp": made.init(key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), joined))}

    def apply(params: PyTree, seen: PyTree) -> Array:
        nonlocal mlp
        joined = join(params["torso"], seen)
        mlp = mlp or behind(joined["observation"].shape[-1])
        features: Array = mlp.apply(params["mlp"], joined)
        return features

    return Encoding(init, apply, own.name)
