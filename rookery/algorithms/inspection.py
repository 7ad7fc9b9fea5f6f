"""How learning stands, in numbers that show failure before the return does: what `Agent.inspect` gives.

None of it is part of an update. A number that cannot be known is left out, and one that means nothing, because all states of
the batch are the same, is NaN. docs/design.md has the table: what each is, and when it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from rookery import ops
from rookery.algorithms.actor_critic import ActorCritic, first_rows
from rookery.networks import units
from rookery.networks.q_network import QNetwork
from rookery.types import Array, Batch, PyTree, Report, TrainState

SATURATED = 0.99  # of a unit whose outputs are bounded by 1
DECAY = 0.999  # of Adam's second moment: optax's default, which `optimizers.adam` keeps

Inspect = Callable[[TrainState, Batch], Report]


def of_policy(model: ActorCritic, optimizer: optax.GradientTransformation, *, target_period: int | None = None) -> Inspect:
    """Build the inspection of an actor-critic. target_period: in updates, where it has a target network."""

    def inspect(state: TrainState, batch: Batch) -> Report:
        rollout = batch.rollout
        with units.listening() as layers:
            outputs, _ = model.forward(state.params, rollout.observation, rollout.memory, first_rows(rollout.valid))
        spread = policy_spread(model.action, _rows(outputs))
        return _report(state, batch, spread, layers, optimizer, target_period)

    return inspect


def of_values(
    network: QNetwork,
    optimizer: optax.GradientTransformation,
    *,
    target_period: int,
    gradient_steps: int = 1,
    cut: Callable[[PyTree, Batch], Array] | None = None,
) -> Inspect:
    """Build the inspection of a network of action values.

    target_period: in gradient steps, of which an update takes `gradient_steps`; cut: (slow, batch) -> the share of the
    targets' mass that a support cuts off.
    """

    def inspect(state: TrainState, batch: Batch) -> Report:
        rollout = batch.rollout
        with units.listening() as layers:
            values, _ = network.unroll(
                state.params["network"], rollout.observation, rollout.memory, first_rows(rollout.valid), None
            )
        spread = greedy_spread(_rows(values.q))
        report = _report(state, batch, spread, layers, optimizer, target_period, gradient_steps)
        return report | ({"health/support_ends": cut(state.slow, batch)} if cut else {})

    return inspect


def of_actor(spread: Callable[[PyTree, PyTree], Array], optimizer: optax.GradientTransformation) -> Inspect:
    """Build the inspection of an actor with critics of actions. spread: (params, observation [N, ...]) -> how much the policy
    differs between states."""

    def inspect(state: TrainState, batch: Batch) -> Report:
        with units.listening() as layers:
            differs = spread(state.params, jax.tree.map(_rows, batch.rollout.observation))
        return _report(state, batch, differs, layers, optimizer, None)

    return inspect


def _report(
    state: TrainState, batch: Batch, spread: Array, layers: Sequence[Array], optimizer: optax.GradientTransformation,
    target_period: int | None, gradient_steps: int = 1,
) -> Report:  # fmt: skip
    several = varies(jax.tree.map(_rows, batch.rollout.observation))
    report = {"health/policy_spread": jnp.where(several, spread, jnp.nan)}
    if layers:
        report["health/dead_units"] = jnp.where(several, dead_units(layers), jnp.nan)
    if (share := below_epsilon(optimizer, state.optimizer)) is not None:
        report["health/below_epsilon"] = share
    if target_period is not None:
        report["health/target_copies"] = state.updates * gradient_steps // target_period
    return report


def _rows(x: Array) -> Array:
    """Flatten [T, B, ...] to [T * B, ...]."""
    return x.reshape(-1, *x.shape[2:])


def varies(tree: PyTree) -> Array:
    """Tell whether any two rows of arrays [N, ...] differ. -> [] bool"""
    return jnp.stack([(leaf != leaf[:1]).any() for leaf in jax.tree.leaves(tree)]).any()


# ------------------------------------------------------------------------------------------------- the policy


def policy_spread(space: spaces.Space, outputs: Array) -> Array:
    """Measure how much the policy differs between states. outputs [N, num_outputs] of `ops.for_space(space)` -> []

    Of choices: the mutual information of state and action, in nats: 0 where every state has the same distribution, log A
    where the state decides and all actions are as frequent. Of numbers: the standard deviation over states of the mean, in
    units of the policy's own. Components of a space count alike.
    """
    parts = _components(space, outputs)
    return jnp.stack(parts).mean()


def _components(space: spaces.Space, outputs: Array) -> list[Array]:
    """Measure the spread of each component, in the order of the outputs."""
    match space:
        case spaces.Discrete():
            return [_mutual_information(outputs)]
        case spaces.MultiDiscrete():
            ends = [int(n) for n in space.nvec.reshape(-1).cumsum()]
            return [_mutual_information(outputs[:, start:end]) for start, end in zip([0, *ends], ends)]
        case spaces.MultiBinary():
            return [_mutual_information(jnp.stack([jnp.zeros_like(bit), bit], -1)) for bit in outputs.T]
        case spaces.Box():
            mean, log_std = jnp.split(outputs, 2, -1)
            return list(mean.std(0) / jnp.exp(log_std).mean(0))
    within = [part for _, part in sorted(space.items())] if isinstance(space, spaces.Dict) else list(space)  # type: ignore
    found, start = [], 0
    for part in within:
        size = ops.for_space(part).num_outputs
        found += _components(part, outputs[:, start : start + size])
        start += size
    return found


def _mutual_information(logits: Array) -> Array:
    """Compute the entropy of the mean distribution over rows − their mean entropy. [N, A] -> []"""
    p = jax.nn.softmax(logits)
    entropy = lambda q: -jnp.sum(jnp.where(q > 0, q * jnp.log(jnp.maximum(q, 1e-30)), 0.0), -1)
    return jnp.maximum(entropy(p.mean(0)) - entropy(p).mean(), 0.0)


def greedy_spread(q: Array) -> Array:
    """Compute the share of states whose best action is not the most frequent one. q [N, A] -> []"""
    best = jax.nn.one_hot(jnp.argmax(q, -1), q.shape[-1])
    return 1.0 - best.mean(0).max()


# ------------------------------------------------------------------------------------------------- the network


def dead_units(layers: Sequence[Array]) -> Array:
    """Compute the share of dead units in the worst layer. layers: each [N, ..., units]; a channel is one unit -> []

    Dead is a unit with the same output for every row (of relu: never above 0), and, where a layer's outputs are bounded by
    1 (of tanh), one that is always beyond ±0.99.
    """
    return jnp.stack([_dead(layer.reshape(-1, layer.shape[-1])).mean() for layer in layers]).max()


def _dead(x: Array) -> Array:
    """Mark the dead units. [N, units] -> [units] bool"""
    size = jnp.abs(x)
    bounded = size.max() <= 1.0
    return (x.max(0) == x.min(0)) | (bounded & (size.min(0) > SATURATED))


# ----------------------------------------------------------------------------------------------- the optimizer


def below_epsilon(optimizer: optax.GradientTransformation, state: PyTree) -> Array | None:
    """Compute the share of parameters whose second moment is less than what the optimizer adds to it. -> []

    There the optimizer is plain SGD with a step of learning_rate / epsilon. Adam compares the root of the corrected moment,
    our RMSProp the moment itself. Parameters that never had a gradient (an input that is always 0) do not count.
    None: the optimizer has no second moments, or does not say its epsilon.
    """
    kinds = (optax.ScaleByAdamState, optax.ScaleByRmsState)
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, kinds))
    found = next((part for part in parts if isinstance(part, kinds)), None)
    epsilon = getattr(optimizer, "epsilon", None)
    if found is None or epsilon is None:
        return None
    moment = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(found.nu)])
    compared = moment
    if isinstance(found, optax.ScaleByAdamState):
        compared = jnp.sqrt(moment / jnp.maximum(1.0 - DECAY**found.count, 1e-30))
    moved = moment > 0
    return (moved & (compared < epsilon)).sum() / jnp.maximum(moved.sum(), 1)


# ------------------------------------------------------------------------------------------------- the support


def beyond_support(returns: Array, probabilities: Array, atoms: Array, valid: Array) -> Array:
    """Compute the share of the targets' mass that a projection moves to the ends of the support, mean over the valid rows.

    returns, probabilities [..., J], atoms [K], valid [...] -> []
    """
    outside = (returns < atoms[0]) | (returns > atoms[-1])
    return ops.masked_mean(jnp.sum(probabilities * outside, -1), valid)
