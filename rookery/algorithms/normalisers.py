"""The units of what actor-critics see and are given: running moments of observations and of returns, and clips of rewards.

Moments are leaves of the parameters, `params["observation"]` and `params["reward"]`: publishing, evaluation and checkpoints
carry them without knowing it. What an algorithm leaves open (None) is derived: `normalised_leaves` and `scales_rewards`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.types import Array, PyTree, Rollout, Spec

RewardClip = Literal["none", "unit", "soft-asymmetric"]
DISTANT = 100.0  # a bound that is further away says nothing of the unit of a number
LARGEST_REWARD = 10.0  # in deviations of the return


class Normalisers(NamedTuple):
    """A tuple of pure functions."""

    init: Callable[[], PyTree]  # moments of nothing, by name
    observe: Callable[[PyTree, PyTree], PyTree]  # (params, observation) -> as the network sees it
    reward: Callable[[PyTree, Array], Array]  # (params, reward as played) -> as it is learned from
    statistics: Callable[[Rollout], PyTree]  # moments of this rollout alone, by name
    observed: Callable[[PyTree, PyTree], PyTree]  # (params, statistics) -> params whose normalisers have seen them
    return_discount: Callable[[float], float | None]  # gamma -> what `Needs.return_discount` is to be


def build(
    spec: Spec, *, observations: bool | None, rewards: bool | None, reward_clip: RewardClip = "none", previous: bool = False
) -> Normalisers:
    """Build the normalisers of a spec. previous: the observation has the previous reward beside it, which is seen as rewards
    are learned from."""
    scaled = scales_rewards(rewards, reward_clip)
    if scaled and reward_clip != "none":
        raise ValueError(
            f"--normalise-rewards and --reward-clip {reward_clip} both give rewards their unit, in two ways: use one of them"
        )
    normalised = normalised_leaves(spec, observations)  # leaf -> which of its numbers

    def init() -> PyTree:
        moments = tuple(ops.moments.init(which.shape) for which in normalised.values())
        return {"observation": moments, "reward": ops.moments.init(()) if scaled else ()}

    def observe(params: PyTree, observation: PyTree) -> PyTree:
        if previous:
            observation = spaces.map_previous_reward(lambda given: reward(params, given), observation)
        if not normalised:
            return observation
        leaves, structure = jax.tree.flatten(observation)
        for (i, which), moments in zip(normalised.items(), params["observation"]):
            scaled = ops.moments.normalise(moments, leaves[i])
            whole = which.reshape((1,) * (scaled.ndim - which.ndim) + which.shape)
            leaves[i] = scaled if which.all() else jnp.where(whole, scaled, leaves[i])
        return jax.tree.unflatten(structure, leaves)

    def reward(params: PyTree, reward: Array) -> Array:
        """Divide by the running deviation of the discounted return and clip to ±10 of them, or clip alone."""
        if not scaled:
            return clip_reward(reward, reward_clip)
        return jnp.clip(reward / ops.moments.std(params["reward"]), -LARGEST_REWARD, LARGEST_REWARD)

    def statistics(rollout: Rollout) -> PyTree:
        seen: dict[str, PyTree] = {}
        if normalised:
            leaves = jax.tree.leaves(rollout.observation)
            seen["observation"] = tuple(ops.moments.of(leaves[i][:-1], leaves[i].ndim - 2) for i in normalised)
        if scaled:
            seen["reward"] = ops.moments.of(rollout.extras["discounted_return"], 0, rollout.valid)
        return seen

    def observed(params: PyTree, statistics: PyTree) -> PyTree:
        is_one = lambda node: isinstance(node, ops.moments.Moments)
        merge = lambda old, new: ops.moments.merge(old, new.count, new.mean, new.m2)
        return params | {name: jax.tree.map(merge, params[name], seen, is_leaf=is_one) for name, seen in statistics.items()}

    return Normalisers(init, observe, reward, statistics, observed, lambda discount: discount if scaled else None)


def normalised_leaves(spec: Spec, asked: bool | None) -> dict[int, np.ndarray]:
    """Choose what is normalised of the observation: leaf -> which of its numbers. Nothing, all floats, or, where nobody said
    (None), those numbers of vectors that have no bounds, or bounds beyond ±100.

    Who declares bounds near one has given numbers their unit, and running moments only move it while a policy changes. A cell
    or a switch that is rarely set would even become huge by its own deviation. APPO on LunarLander, whose numbers are bounded
    by 10 or less, is at 137 and 187 after 400,000 steps with observations as they come, at -70 and 62 with them normalised.
    """
    floats = float_leaves(spec)
    leaves = jax.tree.leaves(spaces.zeros(spec.observation, ()))
    if asked is not None:
        return {i: np.ones(leaves[i].shape, bool) for i in floats} if asked else {}
    wanted = jax.tree.leaves(spaces.map_space(_without_unit, spec.observation))
    return {i: wanted[i] for i in floats if wanted[i].any()}


def _without_unit(space: gymnasium.Space) -> np.ndarray:
    """Mark the numbers of a vector that have no bounds, or distant ones; none of anything else."""
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) > 1:
        return np.zeros((), bool)
    return ~((np.abs(space.low) <= DISTANT) & (np.abs(space.high) <= DISTANT))


def float_leaves(spec: Spec) -> tuple[int, ...]:
    """Find the leaves of the observation that can be normalised: floats, and not images (uint8), symbols and masks."""
    leaves = jax.tree_util.tree_leaves_with_path(spaces.zeros(spec.observation, ()))
    apart = ("action_mask", "previous_reward")  # a mask may be of floats too; the reward has a scale of its own
    is_apart = lambda path: any(getattr(key, "key", None) in apart for key in path[:2])
    return tuple(i for i, (path, leaf) in enumerate(leaves) if np.issubdtype(leaf.dtype, np.floating) and not is_apart(path))


def scales_rewards(asked: bool | None, reward_clip: RewardClip) -> bool:
    """Decide whether rewards are divided by the deviation of the return. None: unless a clip gives them their unit.

    No space declares how large rewards are, and what stands beside them in a loss (costs, clips of gradients and values) is
    made for returns of about one.
    """
    return reward_clip == "none" if asked is None else asked


def clip_reward(reward: Array, how: RewardClip) -> Array:
    """Clip rewards. unit: to [-1, 1]; soft-asymmetric: 5 tanh(r / 5), losses weigh 0.3 of that (IMPALA on DMLab)."""
    if how == "unit":
        return jnp.clip(reward, -1.0, 1.0)
    if how == "soft-asymmetric":
        squeezed = jnp.tanh(reward / 5.0)
        return 5.0 * jnp.where(reward < 0, 0.3 * squeezed, squeezed)
    return reward
