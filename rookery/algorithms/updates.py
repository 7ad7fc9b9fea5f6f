"""From a loss to an Agent: the one gradient step that A2C, PG, V-trace and APPO share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rookery import ops, spaces
from rookery.algorithms import inspection
from rookery.algorithms.actor_critic import ActorCritic
from rookery.types import Agent, Array, Batch, Gradients, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState

Loss = Callable[[PyTree, PyTree, Rollout], tuple[Array, Report]]  # (params, slow, rollout) -> masked mean, report


def first_order(
    model: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    loss: Loss,
    needs: Needs,
    max_gradient_norm: float,
    num_chunks: Callable[[Batch], int] = lambda batch: 1,
    slow: Callable[[PyTree], PyTree] = lambda params: (),
    refresh: Callable[[TrainState], PyTree] = lambda state: state.slow,
    target_period: int | None = None,
) -> Agent:
    """An Agent that takes one clipped gradient step of `loss` per batch.

    slow: what starts out beside the parameters (a target network); refresh: (state after the step) -> its next value;
    target_period: updates between its changes, for whoever counts them.
    """

    def init(key: Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, slow(params), optimizer.init(params["network"]), jnp.zeros((), jnp.int32))

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        def of_network(network: PyTree, rollout: Rollout) -> tuple[Array, Report]:
            return loss(params | {"network": network}, slow, rollout)

        tree, report = ops.accumulate(of_network, params["network"], batch.rollout, num_chunks(batch))
        tree, norms = ops.clip_by_global_norm(tree, max_gradient_norm)
        return Gradients(tree, report | {"gradient_norm": norms.total, "gradient_clipped": norms.clipped})

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        step, optimizer_state = optimizer.update(gradients.tree, state.optimizer, state.params["network"])
        params = state.params | {"network": optax.apply_updates(state.params["network"], step)}
        state = TrainState(params, state.slow, optimizer_state, state.updates + 1)
        return state._replace(slow=refresh(state))

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        grads = gradients(state.params, state.slow, batch, key)
        state = apply(state, grads)
        state = state._replace(params=model.observe_batch(state.params, batch.rollout))
        return Learned(state, grads.report, None)

    return Agent(
        init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn, needs=needs,
        gradients=gradients, apply=apply, inspect=inspection.of_policy(model, optimizer, target_period=target_period),
    )  # fmt: skip


def chunks_for(spec: Spec, batch: Batch, frames: int = 168, most: int = 4) -> int:
    """How many column chunks the gradient is accumulated over: on CPU, images go through the network about 168 frames
    at a time, so that activations stay in the cache; vectors, and accelerators, take the whole batch at once."""
    rows, columns = batch.rollout.valid.shape
    leaves = jax.tree.leaves(spaces.zeros(spec.observation, ()))
    if not any(leaf.ndim >= 2 and leaf.size >= 36 * 36 for leaf in leaves) or jax.default_backend() != "cpu":
        return 1
    divisors = [n for n in range(1, most + 1) if columns % n == 0]
    return next((n for n in divisors if (rows + 1) * columns / n <= frames), divisors[-1])
