"""The network of value-based algorithms: encoder -> core -> one value, or a distribution of returns, for each action.

    network = q_network(spec, config=NetworkConfig(), dueling=True)
    values, memory = network.step(params, observation, network.memory(B))

Dueling (Wang et al. 2016): a stream for the state and one for the actions, each with a hidden layer as wide as the
features, joined as V + A − mean A. Noisy (Fortunato et al. 2018): factorised noise in the layers after the encoder. Who acts
draws it for each row, so that environments that share a call explore apart; who learns once for a batch, as the paper does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks import encoders, units
from rookery.networks.config import NetworkConfig
from rookery.networks.cores import Core, initial_memory
from rookery.networks.network import as_pair, orthogonal
from rookery.networks.products import dot_general, relu
from rookery.networks.torso import Torso, check_given, encoding_of
from rookery.ops import mask_logits, spread
from rookery.types import Array, PyTree, Spec

HIDDEN_GAIN, OUTPUT_GAIN = 2.0**0.5, 0.01  # a new network values every action about 0


class Values(NamedTuple):
    q: Array  # [..., A] expected returns; illegal actions -1e9
    logits: Array  # [..., A, K] of the distribution over the support; K = 1 and q itself without one


class Noise(NamedTuple):
    key: Array
    strength: Array  # [...] for each row, which has noise of its own, or [] for rows that share it; 0: the mean of the weights


class QNetwork(NamedTuple):
    """A tuple of pure functions. noise: None where the network is not noisy, or for the mean of its weights."""

    init: Callable[[Array], PyTree]
    memory: Callable[[int], PyTree]
    step: Callable[[PyTree, PyTree, PyTree, Noise | None], tuple[Values, PyTree]]
    #   (params, observation [B, ...], memory [B, ...], noise [B]) -> Values [B, ...], memory
    unroll: Callable[[PyTree, PyTree, PyTree, Array, Noise | None], tuple[Values, PyTree]]
    #   (params, observation [T, B, ...], memory, first [T, B], noise [T, B] or []) -> Values [T, B, ...], memory after the last


def q_network(
    spec: Spec,
    config: NetworkConfig,
    *,
    atoms: Array | None = None,
    near_zero: bool = False,
    dueling: bool = False,
    noisy: bool = False,
    noise_scale: float = 0.5,
    torso: Torso | None = None,
) -> QNetwork:
    """Build a network of action values.

    atoms: [K] the support of a distribution of returns; None: only their mean. near_zero: a new network takes every return
    to be about 0, not one as likely as another; on a wide support that would be an error of thousands to be unlearned.
    torso: the user's own encoder (see torso.py).
    """
    if not isinstance(spec.action, gymnasium.spaces.Discrete):
        raise ValueError(
            f"value-based algorithms choose among countable actions, and {spec.id or 'this environment'} takes {spec.action}: "
            f"{_instead(spec.action)}"
        )
    A, K = int(spec.action.n), 1 if atoms is None else len(atoms)
    own = None if torso is None else encoding_of(torso)
    encode = own or as_pair(encoders.Encoder(encoders.leaves(spec.observation, config.encoder), config))
    core = None if config.core == "none" else Core(config.core, config.core_size)

    def memory(B: int) -> PyTree:
        return initial_memory(config.core, config.core_size, B)

    def init(key: Array) -> PyTree:
        own_key, torso_key = jax.random.split(key)
        observation = encoders.zeros(spec.observation)
        params = {"encoder": encode.init(torso_key, observation)}
        if own is not None:
            check_given(own, params["encoder"], spec.observation, num_outputs=None, config=config)
        features = jax.eval_shape(encode.apply, params["encoder"], observation)
        size = features.shape[-1]
        if core is not None:
            params["core"] = core.init(key, jnp.zeros((1, 1, size)), memory(1), jnp.zeros((1, 1)))["params"]
            size = config.core_size
        heads = {"action": _stack(size, A * K, dueling), "state": _stack(size, K, True)} if dueling else {}
        params["heads"] = heads or {"action": _stack(size, A * K, False)}
        ours = {name: part for name, part in params.items() if own is None or name != "encoder"}
        params |= orthogonal(own_key, ours)
        if near_zero and atoms is not None:
            last = params["heads"]["state" if dueling else "action"][-1]
            last["bias"] = jnp.tile(_around_zero(atoms), 1 if dueling else A)
        if noisy:  # beside the weights, which are orthogonal; noise is the same for all of a layer
            params["heads"] = {name: [_with_noise(p, noise_scale) for p in head] for name, head in params["heads"].items()}
        return params

    def unroll(params: PyTree, observation: PyTree, memory: PyTree, first: Array, noise: Noise | None) -> tuple[Values, PyTree]:
        T, B = first.shape
        folded = jax.tree.map(lambda x: x.reshape(T * B, *x.shape[2:]), observation)
        x = encode.apply(params["encoder"], folded)
        if core is not None:
            rows, memory = core.apply({"params": params["core"]}, x.reshape(T, B, -1), memory, first)
            x = rows.reshape(T * B, -1)
        heads = params["heads"]
        drawn = {name: [None] * len(head) for name, head in heads.items()} if noise is None else _drawn(noise, heads)
        logits = _apply(heads["action"], x, drawn["action"]).reshape(T * B, A, K)
        if dueling:
            state = _apply(heads["state"], x, drawn["state"]).reshape(T * B, 1, K)
            logits = state + logits - logits.mean(1, keepdims=True)
        q = logits[..., 0] if atoms is None else jnp.sum(jax.nn.softmax(logits) * atoms.reshape(1, 1, -1), -1)
        mask = encoders.split_mask(folded)
        if mask is not None:
            q = mask_logits(q, mask)
        return jax.tree.map(lambda x: x.reshape(T, B, *x.shape[1:]), Values(q, logits)), memory

    def step(params: PyTree, observation: PyTree, memory: PyTree, noise: Noise | None) -> tuple[Values, PyTree]:
        row = jax.tree.map(lambda x: x[None], observation)
        first = jnp.zeros((1, jax.tree.leaves(observation)[0].shape[0]))
        values, memory = unroll(params, row, memory, first, noise)
        return jax.tree.map(lambda x: x[0], values), memory

    def unroll_spread(
        params: PyTree, observation: PyTree, memory: PyTree, first: Array, noise: Noise | None
    ) -> tuple[Values, PyTree]:
        if noise is not None:  # is drawn for all rows at once
            return unroll(params, observation, memory, first, noise)
        return spread.by_columns(functools.partial(unroll, noise=None))(params, observation, memory, first)

    return QNetwork(init, memory, step, unroll_spread)


def _around_zero(atoms: Array) -> Array:
    """Return the logits [K] of a distribution over the atoms next to 0: a normal in their number, three wide."""
    places = jnp.arange(len(atoms)) - jnp.argmin(jnp.abs(atoms))
    return -0.5 * jnp.square(places / 3.0)


def _stack(size: int, out: int, hidden: bool) -> list[PyTree]:
    """Make the layers of a head, kernels full of their gain (see `orthogonal`)."""
    layer = lambda p, q, gain: {"kernel": jnp.full((p, q), gain), "bias": jnp.zeros(q)}
    return [layer(size, size, HIDDEN_GAIN), layer(size, out, OUTPUT_GAIN)] if hidden else [layer(size, out, OUTPUT_GAIN)]


def _with_noise(layer: PyTree, scale: float) -> PyTree:
    p, q = layer["kernel"].shape
    sigma = scale / p**0.5
    return layer | {"noise_kernel": jnp.full((p, q), sigma), "noise_bias": jnp.full((q,), sigma)}


class _Drawn(NamedTuple):
    """The noise of a layer: of its inputs [rows, p] and of its outputs [rows, q], one row where all share it."""

    inputs: Array
    outputs: Array
    strength: Array  # [rows, 1]


def _drawn(noise: Noise, heads: PyTree) -> dict[str, list[_Drawn | None]]:
    """Draw the noise of all layers at once: on CPU twelve small draws take a third of an update's gradient."""
    strength = noise.strength.reshape(-1, 1)
    kernels = {name: [layer.get("noise_kernel") for layer in head] for name, head in heads.items()}
    sizes = [size for head in kernels.values() for kernel in head if kernel is not None for size in kernel.shape]
    normal = jax.random.normal(noise.key, (len(strength), sum(sizes)))
    parts = iter(jnp.split(jnp.sign(normal) * jnp.sqrt(jnp.abs(normal)), np.cumsum(sizes)[:-1], 1))
    return {
        name: [None if kernel is None else _Drawn(next(parts), next(parts), strength) for kernel in head]
        for name, head in kernels.items()
    }


def _apply(layers: list[PyTree], x: Array, drawn: Sequence[_Drawn | None]) -> Array:
    for index, (layer, noise) in enumerate(zip(layers, drawn)):
        x = units.told(relu(x)) if index else x
        if noise is None:
            x = dot_general(x, layer["kernel"]) + layer["bias"][None]
        else:
            x = (_noisy if len(noise.strength) > 1 else _noisy_alike)(layer, x, noise)
    return x


def _noisy(layer: PyTree, x: Array, noise: _Drawn) -> Array:
    """Apply a layer whose weights have noise of their own for each row of x."""
    y = dot_general(x * noise.inputs, layer["noise_kernel"]) + layer["noise_bias"][None]
    return dot_general(x, layer["kernel"]) + layer["bias"][None] + noise.strength * noise.outputs * y


def _noisy_alike(layer: PyTree, x: Array, noise: _Drawn) -> Array:
    """Apply a layer whose weights have the same noise for all rows of x: added to them, it takes no second product."""
    outputs = noise.strength * noise.outputs
    kernel = layer["kernel"] + noise.inputs.T * outputs * layer["noise_kernel"]
    return dot_general(x, kernel) + layer["bias"][None] + outputs * layer["noise_bias"][None]


def _instead(action: gymnasium.Space) -> str:
    """Say what takes actions that cannot be counted."""
    if isinstance(action, gymnasium.spaces.Box) and not np.issubdtype(action.dtype, np.floating):
        return "declare them as MultiDiscrete, and use ppo, impala or another policy-gradient system"
    numbers = isinstance(action, gymnasium.spaces.Box) and action.is_bounded("both")
    return f"use {'sac, td3, ' if numbers else ''}ppo, impala or another policy-gradient system"
