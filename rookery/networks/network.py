"""The network that every actor-critic and value-based algorithm starts from: encoder -> core -> heads.

    network = actor_critic(spec, num_outputs=6, config=NetworkConfig())
    params = network.init(key)
    output, memory = network.step(params, observation, network.memory(B))

Weights are orthogonal (sqrt 2 in hidden layers, 0.01 in the policy head, 1 in the value head), biases zero: a new
policy is close to uniform, whatever it sees (Andrychowicz et al., 2021, recommend this most strongly of all).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.networks import encoders
from rookery.networks.config import Network, NetworkConfig, Output
from rookery.networks.cores import Core, initial_memory
from rookery.networks.torso import Encoding, Torso, check_given, encoding_of
from rookery.ops import mask_logits, spread
from rookery.types import Array, PyTree, Spec


def actor_critic(
    spec: Spec, num_outputs: int, config: NetworkConfig, *, torso: Torso | None = None, gaussian_size: int = 0
) -> Network:
    """Build a policy of `num_outputs` numbers and a value for any observation space.

    gaussian_size: so many of the outputs, the last ones, are a learned log standard deviation that does not depend on
    the observation; those before are the mean.
    torso: your own encoder: a flax module, or `init(key, observation) -> params` and `apply(params, observation [B, ...]) ->
    [B, F]` (see torso.py). Core and heads stay; unless it gives an Output instead of features: policy [B, num_outputs] (as the
    action distribution takes it: logits, or mean and log standard deviation) and value [B]. Then it is the whole network.
    A leaf `action_mask` of the observation makes illegal actions impossible: their logits become -1e9.
    """
    _check_mask(spec, num_outputs, gaussian_size)
    own = None if torso is None else encoding_of(torso)
    encode = own or as_pair(encoders.Encoder(encoders.leaves(spec.observation, config.encoder), config))
    core = None if config.core == "none" else Core(config.core, config.core_size)
    heads = Heads(num_outputs, gaussian_size, config.initial_log_std)
    names = ("policy_encoder", "value_encoder") if separate(spec, config, torso) else ("encoder",)

    def memory(B: int) -> PyTree:
        return initial_memory(config.core, config.core_size, B)

    def init(key: Array) -> PyTree:
        own_key, *torso_keys = jax.random.split(key, 1 + len(names))
        keys = dict(zip(names, torso_keys))
        observation = encoders.zeros(spec.observation)
        params = {name: encode.init(keys[name], observation) for name in names}
        if own is not None:
            check_given(own, params[names[0]], spec.observation, num_outputs=num_outputs, config=config)
        shapes = tuple(jax.eval_shape(encode.apply, params[name], observation) for name in names)
        if isinstance(shapes[0], Output):
            return params
        features = tuple(jnp.zeros(shape.shape) for shape in shapes)
        if core is not None:
            params["core"] = core.init(key, features[0][None], memory(1), jnp.zeros((1, 1)))["params"]
            features = (jnp.zeros((1, config.core_size)),)
        params["heads"] = heads.init(key, features)["params"]
        ours = {name: part for name, part in params.items() if own is None or name not in names}
        return params | orthogonal(own_key, ours)

    def unroll_with_memory(params: PyTree, observation: PyTree, memory: PyTree, first: Array) -> tuple[Output, PyTree]:
        T, B = first.shape
        folded = jax.tree.map(lambda x: x.reshape(T * B, *x.shape[2:]), observation)  # [T * B, ...]
        features = tuple(encode.apply(params[name], folded) for name in names)
        own_heads = isinstance(features[0], Output)
        if core is not None and not own_heads:
            rows = features[0].reshape(T, B, -1)
            rows, memory = core.apply({"params": params["core"]}, rows, memory, first)
            features = (rows.reshape(T * B, -1),)
        output: Output = features[0] if own_heads else heads.apply({"params": params["heads"]}, features)  # type: ignore[assignment]
        mask = encoders.split_mask(folded)
        if mask is not None:
            output = output._replace(policy=mask_logits(output.policy, mask))
        return jax.tree.map(lambda x: x.reshape(T, B, *x.shape[1:]), output), memory

    def step(params: PyTree, observation: PyTree, memory: PyTree) -> tuple[Output, PyTree]:
        row = jax.tree.map(lambda x: x[None], observation)
        first = jnp.zeros((1, jax.tree.leaves(observation)[0].shape[0]))
        output, memory = unroll_with_memory(params, row, memory, first)
        return jax.tree.map(lambda x: x[0], output), memory

    def unroll(params: PyTree, observation: PyTree, memory: PyTree, first: Array) -> Output:
        return spread.by_columns(unroll_with_memory)(params, observation, memory, first)[0]

    return Network(init, memory, step, unroll)


def orthogonal(key: Array, gains: PyTree) -> PyTree:
    """Multiply every kernel, given full of its gain, by a random orthogonal matrix; vectors stay as they are.

    A kernel [..., out] is one matrix with `out` columns, [gates, size, size] one for each gate. All are cut from one
    draw: compiling a draw takes 0.6 s, and a network would need six or more.
    """
    leaves, structure = jax.tree.flatten(gains)
    noise = jax.random.normal(key, (sum(leaf.size for leaf in leaves if leaf.ndim > 1),))
    start = 0
    for index, leaf in enumerate(leaves):
        if leaf.ndim > 1:
            matrix = noise[start : start + leaf.size].reshape(leaf.shape if leaf.ndim == 3 else (-1, leaf.shape[-1]))
            leaves[index], start = leaf * _orthonormal(matrix).reshape(leaf.shape), start + leaf.size
    return jax.tree.unflatten(structure, leaves)


def _orthonormal(normal: Array) -> Array:
    """Return orthonormal columns, or rows where those are fewer, uniformly distributed: the signs of R are made positive."""
    wide = normal.shape[-2] < normal.shape[-1]
    q, r = jnp.linalg.qr(normal.mT if wide else normal)
    q = q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return q.mT if wide else q


class Heads(nn.Module):
    """features ([B, F],) or (for the policy [B, F], for the value [B, F]) -> Output."""

    num_outputs: int
    gaussian_size: int
    initial_log_std: float

    @nn.compact
    def __call__(self, features: tuple[Array, ...]) -> Output:
        policy = encoders.dense(self.num_outputs - self.gaussian_size, gain=0.01, name="policy")(features[0])
        value = encoders.dense(1, gain=1.0, name="value")(features[-1])[:, 0]
        if self.gaussian_size:
            init = nn.initializers.constant(self.initial_log_std)
            log_std = self.param("log_std", init, (self.gaussian_size,))
            rows = jnp.broadcast_to(log_std[None], (policy.shape[0], self.gaussian_size))
            policy = jnp.concatenate([policy, rows], -1)
        return Output(policy, value)


def as_pair(module: nn.Module) -> Encoding:
    """Return a module of ours as functions of its plain parameters."""
    def init(key: Array, observation: PyTree) -> PyTree:
        return module.init(key, observation).get("params", {})  # an encoder without layers has none

    def apply(params: PyTree, observation: PyTree) -> Array:
        features = module.apply({"params": params}, observation)
        assert isinstance(features, jax.Array)
        return features

    return Encoding(init, apply)


def observation_encoder(
    spec: Spec, config: NetworkConfig, torso: Torso | None = None, *, norm_images: bool = False
) -> Encoding:
    """Return what makes features of observations: the user's own, or an encoder of ours."""
    if torso is not None:
        return encoding_of(torso)
    return as_pair(encoders.Encoder(encoders.leaves(spec.observation, config.encoder), config, norm_images=norm_images))


def separate(spec: Spec, config: NetworkConfig, torso: Torso | None = None) -> bool:
    """Tell whether policy and value have an encoder each."""
    if config.heads == "separate" and config.core != "none":
        raise ValueError("network.heads='separate' with a core would need two memories; use 'shared' or core='none'.")
    if config.heads == "auto":
        parts = encoders.leaves(spec.observation, config.encoder) if torso is None else ()
        return config.core == "none" and bool(parts) and not any(leaf.layout for leaf in parts)
    return config.heads == "separate"


def _check_mask(spec: Spec, num_outputs: int, gaussian_size: int) -> None:
    size = encoders.mask_size(spec.observation)
    if size is not None and (gaussian_size or size != num_outputs):
        raise ValueError(
            f"The observation's action_mask has {size} entries and the policy {num_outputs} outputs"
            f"{' for continuous actions' if gaussian_size else ''}: a mask needs one entry for each discrete action "
            "(for MultiDiscrete, those of all components one after the other). Mend the mask, or drop it."
        )
