"""From a loss to an Agent: the gradient step that A2C, PG, V-trace and APPO share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import hyper, inspection, optimizers
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.critic import Critic, fit, more_steps
from rookery.types import Agent, Array, Batch, Gradients, Learned, Needs, PyTree, Report, Rollout, TrainState

Loss = Callable[[PyTree, PyTree, Rollout], tuple[Array, Report]]  # (params, slow, rollout) -> masked mean, report


def first_order(
    model: ActorCritic,
    optimizer: optimizers.Optimizer,
    *,
    config: Any,
    loss: Loss,
    needs: Needs,
    critic: Critic | None = None,
    planned: int | None = None,
    summed: bool = False,
    num_chunks: Callable[[Batch], int] = lambda batch: 1,
    slow: Callable[[PyTree], PyTree] = lambda params: (),
    refresh: Callable[[TrainState], PyTree] = lambda state: state.slow,
    target_period: int | None = None,
) -> Agent:
    """Build an Agent that takes one clipped gradient step of `loss` per batch.

    config: the hyper-parameters, `learning_rate` and `max_gradient_norm` among its leaves.
    critic: the value takes more steps on a batch than the policy; whoever ships gradients takes the common one only.
    planned: updates over which the learning rate falls linearly to zero; None: it stays.
    summed: the gradient is that of the sum over the T·B rows, not of their mean, so that a clip and an epsilon that were
    published for a sum stand as they were, whatever the batch.
    slow: what starts out beside the parameters (a target network); refresh: (state after the step) -> its next value;
    target_period: updates between its changes, for whoever counts them.

    A gradient is {"network": shaped like the network, "seen": statistics of its batch for the normalisers}: topologies that
    ship gradients carry both, and `apply` needs nothing else.
    """

    value_steps = more_steps(critic, model)

    def init(key: Array) -> TrainState:
        params = model.init(key) | {"hyper": hyper.leaves(config)}
        moments = {"network": optimizer.init(params["network"])}
        return TrainState(params, slow(params), moments, jnp.zeros((), jnp.int32))

    def largest(params: PyTree, rows: int) -> Array | float:
        """Return the norm that is allowed, of the gradient of a mean over `rows`."""
        norm: Array | float = hyper.read(config, params).max_gradient_norm
        return norm if rows == 1 else norm / rows

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        def of_network(network: PyTree, rollout: Rollout) -> tuple[Array, Report]:
            return loss(params | {"network": network}, slow, rollout)

        tree, report = ops.accumulate(of_network, params["network"], batch.rollout, num_chunks(batch))
        rows = batch.rollout.valid.size if summed else 1
        tree, norms = ops.clip_by_global_norm(tree, largest(params, rows))
        tree = jax.tree.map(lambda leaf: leaf * rows, tree) if summed else tree
        report = report | {"gradient_norm": norms.total * rows, "gradient_clipped": norms.clipped}
        return Gradients({"network": tree, "seen": model.normalisers.statistics(batch.rollout)}, report)

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        network = state.params["network"]
        change, moments = optimizer.update(
            gradients.tree["network"], state.optimizer["network"], network,
            learning_rate=hyper.read(config, state.params).learning_rate,
        )  # fmt: skip
        rate = optimizers.remaining(state.updates, planned)  # after the learning rate here, before it in a loop: bits
        network = jax.tree.map(lambda leaf, by: leaf + rate * by, network, change)
        params = model.normalisers.observed(state.params | {"network": network}, gradients.tree["seen"])
        state = TrainState(params, state.slow, {"network": moments}, state.updates + 1)
        return state._replace(slow=refresh(state))

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        grads = gradients(state.params, state.slow, batch, key)
        after = apply(state, grads)
        if critic is not None and value_steps:
            target = jax.lax.stop_gradient(critic.targets(state.params, batch.rollout))
            rows = batch.rollout.valid.size if summed else 1
            after = fit(
                after, target, batch.rollout, params=state.params, model=model, optimizer=optimizer, scale=rows,
                max_norm=largest(state.params, rows), steps=value_steps,
                learning_rate=hyper.read(config, state.params).learning_rate * optimizers.remaining(state.updates, planned),
            )  # fmt: skip
        return Learned(after, grads.report, None)

    return Agent(
        init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn, needs=needs,
        gradients=gradients, apply=apply, inspect=inspection.of_policy(model, optimizer, target_period=target_period),
        trained=("network",),
    )  # fmt: skip
