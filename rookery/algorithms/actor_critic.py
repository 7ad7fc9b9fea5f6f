"""What every policy-gradient algorithm here shares: a network with a policy and a value, and how it acts.

`params` = {"network": ..., "observation": moments of the float leaves, or (), "reward": moments of the discounted
return, or ()}. Normalisers are parameters: publishing, evaluation and checkpoints carry them without knowing it.

What an algorithm leaves open (None) is derived: `normalised_leaves` and `scales_rewards` say how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.networks import NetworkConfig
from rookery.networks.network import Torso, actor_critic
from rookery.types import Array, Decision, PyTree, Rollout, Spec

RewardClip = Literal["none", "unit", "soft-asymmetric"]


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
    statistics: Callable[[Rollout], PyTree]  # moments of this rollout alone, for the normalisers; () where there are none
    observed: Callable[[PyTree, PyTree], PyTree]  # (params, statistics) -> params whose normalisers have seen them
    reward: Callable[[PyTree, Array], Array]  # (params, reward as played) -> as it is learned from
    return_discount: Callable[[float], float | None]  # gamma -> what `Needs.return_discount` is to be
    distribution: ops.Distribution
    action: gymnasium.Space
    recurrent: bool


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
    """previous: the network also sees the previous action, and the previous reward as it is learned from; remembers: of
    behaviour_logp and value, what learning needs of the moment when it acted. Without the value, separate networks act at half
    the price."""
    normalise_rewards = scales_rewards(normalise_rewards, reward_clip)
    if normalise_rewards and reward_clip != "none":
        raise ValueError(
            f"--normalise-rewards and --reward-clip {reward_clip} both give rewards their unit, in two ways: use one of them"
        )
    spec = spaces.with_previous(spec) if previous else spec
    distribution = ops.for_space(spec.action, squash=squash)
    continuous = isinstance(spec.action, gymnasium.spaces.Box)  # the log standard deviation is the outputs' second half
    gaussian_size = distribution.num_outputs // 2 if continuous else 0
    network = actor_critic(spec, distribution.num_outputs, network_config, torso=torso, gaussian_size=gaussian_size)
    normalised = normalised_leaves(spec, normalise_observations)

    def init(key: Array) -> PyTree:
        leaves = jax.tree.leaves(spaces.zeros(spec.observation, ()))
        return {
            "network": network.init(key),
            "observation": tuple(ops.moments.init(leaves[i].shape) for i in normalised),
            "reward": ops.moments.init(()) if normalise_rewards else (),
        }

    def observe(params: PyTree, observation: PyTree) -> PyTree:
        if previous:
            observation = spaces.map_previous_reward(lambda given: reward(params, given), observation)
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

    def statistics(rollout: Rollout) -> PyTree:
        seen: dict[str, PyTree] = {}
        if normalised:
            leaves = jax.tree.leaves(rollout.observation)
            seen["observation"] = tuple(ops.moments.of(leaves[i][:-1], leaves[i].ndim - 2) for i in normalised)
        if normalise_rewards:
            seen["reward"] = ops.moments.of(rollout.extras["discounted_return"], 0, rollout.valid)
        return seen

    def observed(params: PyTree, statistics: PyTree) -> PyTree:
        is_one = lambda node: isinstance(node, ops.moments.Moments)
        merge = lambda old, new: ops.moments.merge(old, new.count, new.mean, new.m2)
        return params | {
            name: jax.tree.map(merge, params[name], seen, is_leaf=is_one) for name, seen in statistics.items()
        }

    def reward(params: PyTree, reward: Array) -> Array:
        """Divided by the running standard deviation of the discounted return and clipped to ±10, or clipped alone."""
        if not normalise_rewards:
            return clip_reward(reward, reward_clip)
        return jnp.clip(reward / ops.moments.std(params["reward"]), -10.0, 10.0)

    return ActorCritic(
        init, network.memory, act, explore, forward, evaluate, statistics, observed, reward,
        lambda discount: discount if normalise_rewards else None, distribution, spec.action,
        recurrent=bool(jax.tree.leaves(jax.eval_shape(lambda: network.memory(1)))),
    )  # fmt: skip


def first_rows(valid: Array) -> Array:
    """[T, B] -> [T + 1, B]: which observations are the first of an episode (row 0: its memory is already reset)."""
    return jnp.concatenate([jnp.zeros_like(valid[:1]), 1.0 - valid])


def _expand(condition: Array, like: Array) -> Array:
    return condition.reshape(condition.shape + (1,) * (like.ndim - condition.ndim))


def float_leaves(spec: Spec) -> tuple[int, ...]:
    """Which leaves of the observation can be normalised: floats. Images (uint8), symbols and masks are left alone."""
    leaves = jax.tree_util.tree_leaves_with_path(spaces.zeros(spec.observation, ()))
    apart = ("action_mask", "previous_reward")  # a mask may be of floats too; the reward has a scale of its own
    is_apart = lambda path: any(getattr(key, "key", None) in apart for key in path[:2])
    return tuple(i for i, (path, leaf) in enumerate(leaves) if np.issubdtype(leaf.dtype, np.floating) and not is_apart(path))


def normalised_leaves(spec: Spec, asked: bool | None) -> tuple[int, ...]:
    """Choose the leaves of the observation that are normalised: none, all floats, or, where nobody said (None), the vectors of
    numbers that are not declared to lie within [-1, 1].

    Boards and one-hots (two axes and more, or within [0, 1]) have their unit already: a cell that is rarely set would become
    huge by its own deviation.
    """
    if asked is not None:
        return float_leaves(spec) if asked else ()
    wide = lambda space: isinstance(space, gymnasium.spaces.Box) and len(space.shape) <= 1 and not _within_unit(space)
    asking = jax.tree.leaves(spaces.map_space(wide, spec.observation))
    return tuple(i for i in float_leaves(spec) if asking[i])


def _within_unit(space: gymnasium.spaces.Box) -> bool:
    return bool((np.abs(space.low) <= 1.0).all() and (np.abs(space.high) <= 1.0).all())


def scales_rewards(asked: bool | None, reward_clip: RewardClip) -> bool:
    """Decide whether rewards are divided by the deviation of the return. None: unless a clip gives them their unit.

    No space declares how large rewards are, and what stands beside them in a loss (costs, clips of gradients and values) is
    made for returns of about one.
    """
    return reward_clip == "none" if asked is None else asked


def clip_reward(reward: Array, how: RewardClip) -> Array:
    """unit: to [-1, 1]; soft-asymmetric: 5 tanh(r / 5), losses weigh 0.3 of that (IMPALA on DMLab)."""
    if how == "unit":
        return jnp.clip(reward, -1.0, 1.0)
    if how == "soft-asymmetric":
        squeezed = jnp.tanh(reward / 5.0)
        return 5.0 * jnp.where(reward < 0, 0.3 * squeezed, squeezed)
    return reward
