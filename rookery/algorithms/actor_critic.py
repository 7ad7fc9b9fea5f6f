"""What every policy-gradient algorithm here shares: a network with a policy and a value, and how it acts.

`params` = {"network": ..., "observation": moments of the float leaves, or (), "reward": moments of the discounted
return, or ()}. Normalisers are parameters: publishing, evaluation and checkpoints carry them without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.networks import NetworkConfig
from rookery.networks.network import Torso, actor_critic
from rookery.types import Array, Decision, PyTree, Rollout, Spec


class Evaluation(NamedTuple):
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
    explore: Callable[[Array, int, int], Array]
    forward: Callable[[PyTree, PyTree, PyTree, Array], tuple[Array, Array]]  # unroll -> policy outputs, value
    evaluate: Callable[[PyTree, Rollout], Evaluation]
    observe_batch: Callable[[PyTree, Rollout], PyTree]  # params with normalisers that have seen this rollout
    scale_reward: Callable[[PyTree, Array], Array]
    distribution: ops.Distribution
    action: gymnasium.Space
    recurrent: bool


def build(
    spec: Spec,
    network_config: NetworkConfig,
    *,
    torso: Torso | None = None,
    squash: bool = False,
    normalise_observations: bool = False,
    normalise_rewards: bool = False,
    previous: bool = False,
    remembers: tuple[str, ...] = (),
) -> ActorCritic:
    """previous: the network also sees the previous action and reward; remembers: of behaviour_logp and value, what learning
    needs of the moment when it acted. Without the value, separate networks act at half the price."""
    spec = spaces.with_previous(spec) if previous else spec
    distribution = ops.for_space(spec.action, squash=squash)
    continuous = isinstance(spec.action, gymnasium.spaces.Box)  # the log standard deviation is the outputs' second half
    gaussian_size = distribution.num_outputs // 2 if continuous else 0
    network = actor_critic(spec, distribution.num_outputs, network_config, torso=torso, gaussian_size=gaussian_size)
    normalised = float_leaves(spec) if normalise_observations else ()

    def init(key: Array) -> PyTree:
        leaves = jax.tree.leaves(spaces.zeros(spec.observation, ()))
        return {
            "network": network.init(key),
            "observation": tuple(ops.moments.init(leaves[i].shape) for i in normalised),
            "reward": ops.moments.init(()) if normalise_rewards else (),
        }

    def observe(params: PyTree, observation: PyTree) -> PyTree:
        if not normalised:
            return observation
        leaves, structure = jax.tree.flatten(observation)
        for i, moments in zip(normalised, params["observation"]):
            leaves[i] = ops.moments.normalise(moments, leaves[i])
        return jax.tree.unflatten(structure, leaves)

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: Array) -> Decision:
        out, memory = network.step(params["network"], observe(params, observation), memory)
        sample, mode = distribution.sample(key, out.policy), distribution.mode(out.policy)
        action = jax.tree.map(lambda s, m: jnp.where(_expand(explore > 0, s), s, m), sample, mode)
        known = {"behaviour_logp": distribution.logp(out.policy, action), "value": out.value}
        return Decision(action, memory, {name: known[name] for name in remembers})

    def explore(env_index: Array, num_envs: int, env_steps: int) -> Array:
        return np.ones(len(env_index), np.float32)  # always sample; evaluation passes zeros

    def forward(params: PyTree, observation: PyTree, memory: PyTree, first: Array) -> tuple[Array, Array]:
        """observation [T, B, ...], first [T, B] -> policy [T, B, num_outputs], value [T, B]."""
        out = network.unroll(params["network"], observe(params, observation), memory, first)
        return out.policy, out.value

    def evaluate(params: PyTree, rollout: Rollout) -> Evaluation:
        policy, value = forward(params, rollout.observation, rollout.memory, first_rows(rollout.valid))
        return Evaluation(
            outputs=policy[:-1],
            logp=distribution.logp(policy[:-1], rollout.action),
            entropy=distribution.entropy(policy[:-1]),
            value=value[:-1],
            value_next=value[1:],
        )

    def observe_batch(params: PyTree, rollout: Rollout) -> PyTree:
        if normalised:
            leaves = jax.tree.leaves(rollout.observation)
            seen = tuple(ops.moments.update(m, leaves[i][:-1]) for i, m in zip(normalised, params["observation"]))
            params = params | {"observation": seen}
        if normalise_rewards:
            returns = rollout.extras["discounted_return"]
            params = params | {"reward": ops.moments.update(params["reward"], returns, rollout.valid)}
        return params

    def scale_reward(params: PyTree, reward: Array) -> Array:
        """Divides by the running standard deviation of the discounted return, then clips to ±10."""
        if not normalise_rewards:
            return reward
        return jnp.clip(reward / ops.moments.std(params["reward"]), -10.0, 10.0)

    return ActorCritic(
        init, network.memory, act, explore, forward, evaluate, observe_batch, scale_reward, distribution,
        spec.action, recurrent=bool(jax.tree.leaves(jax.eval_shape(lambda: network.memory(1)))),
    )  # fmt: skip


def first_rows(valid: Array) -> Array:
    """[T, B] -> [T + 1, B]: which observations are the first of an episode (row 0: its memory is already reset)."""
    return jnp.concatenate([jnp.zeros_like(valid[:1]), 1.0 - valid])


def _expand(condition: Array, like: Array) -> Array:
    return condition.reshape(condition.shape + (1,) * (like.ndim - condition.ndim))


def float_leaves(spec: Spec) -> tuple[int, ...]:
    """Which leaves of the observation are normalised: floats. Images (uint8), symbols and masks are left alone."""
    leaves = jax.tree_util.tree_leaves_with_path(spaces.zeros(spec.observation, ()))
    is_mask = lambda path: any(getattr(key, "key", None) == "action_mask" for key in path[:2])  # it may be of floats too
    return tuple(i for i, (path, leaf) in enumerate(leaves) if np.issubdtype(leaf.dtype, np.floating) and not is_mask(path))
