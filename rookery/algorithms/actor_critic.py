"""What every policy-gradient algorithm here shares: a network with a policy and a value, and how it acts.

`params` = {"network": ..., "observation": moments of the float leaves, or (), "reward": moments of the discounted
return, or ()}: see `normalisers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.algorithms import normalisers
from rookery.algorithms.normalisers import Normalisers, RewardClip
from rookery.networks import NetworkConfig
from rookery.networks.network import actor_critic, separate
from rookery.networks.torso import Torso
from rookery.types import Array, Decision, PyTree, Rollout, Spec


class RolloutEvaluation(NamedTuple):
    """The current parameters' view of a rollout. Gradients flow through everything."""

    outputs: Array  # [T, B, num_outputs] parameters of the policy's distribution
    logp: Array  # [T, B] of the actions that were taken
    entropy: Array  # [T, B]
    value: Array  # [T, B]
    value_next: Array  # [T, B]


class ActorCritic(NamedTuple):
    """A tuple of pure functions."""

    init: Callable[[Array], PyTree]  # (key) -> params
    memory: Callable[[int], PyTree]  # (B)
    act: Callable[[PyTree, PyTree, PyTree, Array, Array], Decision]
    explore: Callable[[PyTree, Array, int, int], Array]
    forward: Callable[[PyTree, PyTree, PyTree, Array], tuple[Array, Array]]  # unroll -> policy outputs, value
    evaluate: Callable[[PyTree, Rollout], RolloutEvaluation]
    normalisers: Normalisers
    distribution: ops.Distribution
    action: gymnasium.Space
    recurrent: bool
    separate: bool  # policy and value have a network each


def build(
    spec: Spec,
    network_config: NetworkConfig,
    *,
    torso: Torso | None = None,
    squash: bool = False,
    normalise_observations: bool | None = False,
    normalise_rewards: bool | None = False,
    reward_clip: RewardClip = "none",
    previous: bool = False,
    remembers: tuple[str, ...] = (),
) -> ActorCritic:
    """Build an actor-critic for the spaces of `spec`.

    previous: the network also sees the previous action, and the previous reward as it is learned from; remembers: of
    behaviour_logp and value, what learning needs of the moment when it acted. Without the value, separate networks act at half
    the price.
    """
    spec = spaces.with_previous(spec) if previous else spec
    distribution = ops.for_space(spec.action, squash=squash)
    continuous = isinstance(spec.action, gymnasium.spaces.Box)  # the log standard deviation is the outputs' second half
    gaussian_size = distribution.num_outputs // 2 if continuous else 0
    network = actor_critic(spec, distribution.num_outputs, network_config, torso=torso, gaussian_size=gaussian_size)
    units = normalisers.build(
        spec, observations=normalise_observations, rewards=normalise_rewards, reward_clip=reward_clip, previous=previous
    )

    def init(key: Array) -> PyTree:
        return {"network": network.init(key)} | units.init()

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: Array) -> Decision:
        out, memory = network.step(params["network"], units.observe(params, observation), memory)
        sample, mode = distribution.sample(key, out.policy), distribution.mode(out.policy)
        action = jax.tree.map(lambda s, m: jnp.where(_expand(explore > 0, s), s, m), sample, mode)
        known = {"behaviour_logp": distribution.logp(out.policy, action), "value": out.value}
        return Decision(action, memory, {name: known[name] for name in remembers})

    def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> Array:
        return np.ones(len(env_index), np.float32)  # always sample; evaluation passes zeros

    def forward(params: PyTree, observation: PyTree, memory: PyTree, first: Array) -> tuple[Array, Array]:
        """Unroll the network. observation [T, B, ...], first [T, B] -> policy [T, B, num_outputs], value [T, B]."""
        out = network.unroll(params["network"], units.observe(params, observation), memory, first)
        return out.policy, out.value

    def evaluate(params: PyTree, rollout: Rollout) -> RolloutEvaluation:
        policy, value = forward(params, rollout.observation, rollout.memory, first_rows(rollout.valid))
        return RolloutEvaluation(
            outputs=policy[:-1],
            logp=distribution.logp(policy[:-1], rollout.action),
            entropy=distribution.entropy(policy[:-1]),
            value=value[:-1],
            value_next=value[1:],
        )

    return ActorCritic(
        init, network.memory, act, explore, forward, evaluate, units, distribution, spec.action,
        recurrent=bool(jax.tree.leaves(jax.eval_shape(lambda: network.memory(1)))),
        separate=separate(spec, network_config, torso),
    )  # fmt: skip


def first_rows(valid: Array) -> Array:
    """Mark the observations that are the first of an episode (row 0: its memory is already reset). [T, B] -> [T + 1, B]"""
    return jnp.concatenate([jnp.zeros_like(valid[:1]), 1.0 - valid])


def _expand(condition: Array, like: Array) -> Array:
    return condition.reshape(condition.shape + (1,) * (like.ndim - condition.ndim))
