"""What evolution perturbs: a deterministic policy, noise that is named by a key and a number, moments of what was seen.

`params` = {"network": ..., "observation": moments of the float leaves, or ()}. Member 2j of a population acts with the
network + sigma · noise(j), member 2j + 1 with the network - sigma · noise(j) (mirrored sampling). The noise is a hash of
(key, j): whoever knows the key rebuilds it, so nobody sends it.

Sums over members are taken one member after the other, each an operation without a reduction. On CPU, XLA cuts a large
reduction into as many parts as there are cores; workers with different numbers of cores would round differently.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from rookery import ops, spaces
from rookery.algorithms.normalisers import float_leaves
from rookery.networks import NetworkConfig
from rookery.networks.network import actor_critic
from rookery.networks.torso import Torso
from rookery.types import Array, Decision, PyTree, Rollout, Spec


class Seen(NamedTuple):
    """Moments of the observations of an episode."""

    count: Array  # [B] float32
    mean: Array  # [B, *shape]
    m2: Array  # [B, *shape]: sum of squared deviations from the mean


class Perturbed(NamedTuple):
    """A tuple of pure functions."""

    init: Callable[[Array], PyTree]  # (key) -> params
    memory: Callable[[int], PyTree]  # (B): that of the network, and with a normaliser what the episode has shown so far
    act: Callable[[PyTree, PyTree, PyTree, Array, Array], Decision]
    explore: Callable[[PyTree, Array, int, int], Array]
    perturb: Callable[[PyTree, Array, Array, Array | float], PyTree]  # (params, member [B], key, sigma)
    direction: Callable[[PyTree, Array, Array], PyTree]  # (network, weight [pairs], key) -> the sum of weight · noise
    process: Callable[[PyTree, Rollout], tuple[Rollout, Array | None]]
    observe: Callable[[PyTree, Rollout], PyTree]  # params with normalisers that have seen the episodes of a generation


def build(
    spec: Spec, network_config: NetworkConfig, *, torso: Torso | None = None, normalise_observations: bool = False,
    zero_head: bool = False,
) -> Perturbed:  # fmt: skip
    """Build a policy to be perturbed. zero_head: the last layer starts at zero, else at a hundredth of an orthogonal matrix."""
    continuous = isinstance(spec.action, gymnasium.spaces.Box)
    distribution = ops.for_space(spec.action)
    num_outputs = math.prod(spec.action.shape or ()) if continuous else distribution.num_outputs
    network = actor_critic(spec, num_outputs, dataclasses.replace(network_config, heads="shared"), torso=torso)
    normalised = float_leaves(spec) if normalise_observations else ()
    shapes = [leaf.shape for leaf in jax.tree.leaves(spaces.zeros(spec.observation, ()))]

    def init(key: Array) -> PyTree:
        """Initialise without the head for values, which nothing here would read; a torso with heads of its own stays whole."""
        params = network.init(key)
        if "heads" in params:
            head = params["heads"]["policy"]
            params |= {"heads": {"policy": jax.tree.map(jnp.zeros_like, head) if zero_head else head}}
        return {
            "network": params,
            "observation": tuple(ops.moments.init(shapes[i]) for i in normalised),
        }

    def whole(params: PyTree) -> PyTree:
        if "heads" not in params:
            return params
        inputs = params["heads"]["policy"]["kernel"].shape[0]
        value = {"kernel": jnp.zeros((inputs, 1)), "bias": jnp.zeros(1)}
        return params | {"heads": params["heads"] | {"value": value}}

    def memory(B: int) -> PyTree:
        if not normalised:
            return network.memory(B)
        nothing = lambda shape: Seen(jnp.zeros(B), jnp.zeros((B, *shape)), jnp.zeros((B, *shape)))
        return {"network": network.memory(B), "seen": tuple(nothing(shapes[i]) for i in normalised)}

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: Array) -> Decision:
        """Act deterministically, whatever the key; take the first of several best actions."""
        leaves, structure = jax.tree.flatten(observation)
        inner, seen = (memory["network"], memory["seen"]) if normalised else (memory, ())
        seen = tuple(_look(before, leaves[i]) for i, before in zip(normalised, seen))
        for i, moments in zip(normalised, params["observation"]):
            leaves[i] = ops.moments.normalise(moments, leaves[i])
        out, inner = network.step(whole(params["network"]), jax.tree.unflatten(structure, leaves), inner)
        if continuous:
            action = out.policy.reshape(out.policy.shape[:1] + (spec.action.shape or ()))
        else:
            action = distribution.mode(out.policy)
        return Decision(action, {"network": inner, "seen": seen} if normalised else inner, {})

    def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> Array:
        return np.zeros(len(env_index), np.float32)  # parameters explore, not actions

    def perturb(params: PyTree, member: Array, key: Array, sigma: Array | float) -> PyTree:
        flat, unravel = ravel_pytree(params["network"])
        sign = 1.0 - 2.0 * (member % 2)
        one = lambda pair, sign: unravel(flat + sigma * sign * noise(key, pair, flat.size))
        same = lambda x: jnp.broadcast_to(x[None], (member.size, *x.shape))
        return jax.tree.map(same, params | {"network": ()}) | {"network": jax.vmap(one)(member // 2, sign)}

    def direction(tree: PyTree, weight: Array, key: Array) -> PyTree:
        flat, unravel = ravel_pytree(tree)
        add = lambda total, item: (total + item[1] * noise(key, item[0], flat.size), None)
        return unravel(jax.lax.scan(add, jnp.zeros_like(flat), (jnp.arange(weight.size), weight))[0])

    def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
        """Keep one row of a whole episode: its return, its length and what it has shown; not its memory."""
        seen = {"seen": jax.tree.map(lambda x: x[None], rollout.memory["seen"])} if normalised else {}
        return rollout._replace(memory=(), extras=rollout.extras | seen), None

    def observe(params: PyTree, rollout: Rollout) -> PyTree:
        if not normalised:
            return params
        merge = lambda moments, seen: (ops.moments.merge(moments, *seen), None)
        episodes = (jax.tree.map(lambda x: x[0], seen) for seen in rollout.extras["seen"])  # [members, ...]
        pairs = zip(params["observation"], episodes)
        return params | {"observation": tuple(jax.lax.scan(merge, moments, Seen(*seen))[0] for moments, seen in pairs)}

    return Perturbed(init, memory, act, explore, perturb, direction, process, observe)


def noise(key: Array, pair: Array, size: int) -> Array:
    """Draw [size] standard normal numbers, the same wherever they are computed."""
    return jax.random.normal(jax.random.fold_in(key, pair), (size,))


def in_order(x: Array) -> Array:
    """Sum x [N], one number after the other."""
    return jax.lax.scan(lambda total, item: (total + item, None), jnp.zeros((), x.dtype), x)[0]


def _look(seen: Seen, x: Array) -> Seen:
    """Add one more observation [B, *shape] to each column (Welford)."""
    x = x.astype(jnp.float32)
    count = seen.count + 1
    deviation = x - seen.mean
    mean = seen.mean + deviation / count.reshape((-1,) + (1,) * (x.ndim - 1))
    return Seen(count, mean, seen.m2 + deviation * (x - mean))
