"""More gradient steps of the value alone, on a batch that the policy takes one step of.

A critic that lags behind its policy misleads it: on LunarLander, learners that take one step of both hover for ever, and land
with several of the value (docs/defaults.md has the figures; Cobbe et al. 2021, https://arxiv.org/abs/2009.04416, separate the
two for the same reason).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rookery import ops
from rookery.algorithms import optimizers
from rookery.algorithms.actor_critic import ActorCritic, first_rows
from rookery.networks.convolution import inside_loop
from rookery.types import Array, PyTree, Rollout, TrainState

VALUE_STEPS = 16  # on a batch, where the value has a network of its own and nobody said how many


class Critic(NamedTuple):
    targets: Callable[[PyTree, Rollout], Array]  # (params before the first step, rollout) -> [T, B]
    steps: int | None  # on a batch, the one with the policy included; None: 16 where it has a network of its own, else 1


def more_steps(critic: Critic | None, model: ActorCritic) -> int:
    """Count the steps of the value beside the common one."""
    if critic is None:
        return 0
    return (critic.steps or (VALUE_STEPS if model.separate else 1)) - 1


def fit(
    state: TrainState,
    target: Array,
    rollout: Rollout,
    *,
    params: PyTree,
    model: ActorCritic,
    optimizer: optimizers.Optimizer,
    max_norm: Array | float,
    scale: int,
    learning_rate: Array | float,
    steps: int,
) -> TrainState:
    """Fit the value to `target` by so many steps. What has no gradient, the policy's own parameters, keeps its moments: else
    they would fade, and the policy's next step be longer.

    params: with the normalisers that `target` was made by; scale: of the gradient, after it is clipped; learning_rate: what
    is left of it."""
    first, weight = first_rows(rollout.valid), ops.row_weights(rollout)

    def error(network: PyTree) -> Array:
        value = model.forward(params | {"network": network}, rollout.observation, rollout.memory, first)[1][:-1]
        return ops.masked_mean(0.5 * jnp.square(target - value), weight)

    def step(carry: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], None]:
        network, moments = carry
        with inside_loop():
            vector, as_tree = ravel_pytree(jax.grad(error)(network))
        vector = ops.clip_by_global_norm(vector, max_norm)[0] * scale
        change, new = optimizer.update(vector, moments, learning_rate=learning_rate)
        live = vector != 0
        keep = lambda new, old: jnp.where(live, new, old) if new.shape == vector.shape else new
        change = as_tree(jnp.where(live, change, 0.0))
        return (optax.apply_updates(network, change), jax.tree.map(keep, new, moments)), None

    (network, moments), _ = jax.lax.scan(step, (state.params["network"], state.optimizer["network"]), length=steps)
    return state._replace(params=state.params | {"network": network}, optimizer={"network": moments})
