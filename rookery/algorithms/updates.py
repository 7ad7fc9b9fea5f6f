"""From a loss to an Agent: the gradient steps that A2C, PG, V-trace and APPO share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rookery import ops
from rookery.algorithms import inspection
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.minibatches import columns_of, shuffles
from rookery.networks.convolution import inside_loop
from rookery.types import Agent, Array, Batch, Gradients, Learned, Needs, PyTree, Report, Rollout, TrainState

Loss = Callable[[PyTree, PyTree, Rollout], tuple[Array, Report]]  # (params, slow, rollout) -> masked mean, report


def first_order(
    model: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    loss: Loss,
    needs: Needs,
    max_gradient_norm: float,
    summed: bool = False,
    epochs: int = 1,
    minibatches: int = 1,
    num_chunks: Callable[[Batch], int] = lambda batch: 1,
    slow: Callable[[PyTree], PyTree] = lambda params: (),
    refresh: Callable[[TrainState], PyTree] = lambda state: state.slow,
    target_period: int | None = None,
) -> Agent:
    """An Agent that takes one clipped gradient step of `loss` per batch.

    summed: the gradient is that of the sum over the T·B rows, not of their mean, so that a clip and an epsilon that were
    published for a sum stand as they were, whatever the batch.
    epochs, minibatches: `learn` passes so often over a batch, in groups of whole columns, with a step for each; whoever ships
    gradients passes once.
    slow: what starts out beside the parameters (a target network); refresh: (state after the step) -> its next value;
    target_period: updates between its changes, for whoever counts them.

    A gradient is {"network": shaped like the network, "seen": statistics of its batch for the normalisers}: topologies that
    ship gradients carry both, and `apply` needs nothing else.
    """

    def init(key: Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, slow(params), optimizer.init(params["network"]), jnp.zeros((), jnp.int32))

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        tree, report = descent(params, slow, batch)
        return Gradients({"network": tree, "seen": model.normalisers.statistics(batch.rollout)}, report)

    def descent(params: PyTree, slow: PyTree, batch: Batch) -> tuple[PyTree, Report]:
        """The clipped gradient of the network's parameters."""

        def of_network(network: PyTree, rollout: Rollout) -> tuple[Array, Report]:
            return loss(params | {"network": network}, slow, rollout)

        tree, report = ops.accumulate(of_network, params["network"], batch.rollout, num_chunks(batch))
        rows = batch.rollout.valid.size if summed else 1
        tree, norms = ops.clip_by_global_norm(tree, max_gradient_norm / rows)
        tree = jax.tree.map(lambda leaf: leaf * rows, tree) if summed else tree
        return tree, report | {"gradient_norm": norms.total * rows, "gradient_clipped": norms.clipped}

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        return ended(step(state, gradients.tree["network"]), gradients.tree["seen"])

    def step(state: TrainState, tree: PyTree) -> TrainState:
        network = state.params["network"]
        change, optimizer_state = optimizer.update(tree, state.optimizer, network)
        return state._replace(
            params=state.params | {"network": optax.apply_updates(network, change)}, optimizer=optimizer_state
        )

    def ended(state: TrainState, seen: PyTree) -> TrainState:
        """After the last step on a batch."""
        state = state._replace(params=model.normalisers.observed(state.params, seen), updates=state.updates + 1)
        return state._replace(slow=refresh(state))

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        if epochs * minibatches == 1:
            grads = gradients(state.params, state.slow, batch, key)
            return Learned(apply(state, grads), grads.report, None)

        def minibatch(state: TrainState, index: Array) -> tuple[TrainState, Report]:
            with inside_loop():
                tree, report = descent(state.params, state.slow, columns_of(whole, index))
            return step(state, tree), report

        whole = ops.spread.everywhere(batch)  # a minibatch is drawn from all of it
        order = shuffles(key, epochs, batch.rollout.valid.shape[1]).reshape(epochs * minibatches, -1)
        state, reports = jax.lax.scan(minibatch, state, order)
        report = {name: values.mean() for name, values in reports.items()}
        return Learned(ended(state, model.normalisers.statistics(batch.rollout)), report, None)

    return Agent(
        init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn, needs=needs,
        gradients=gradients, apply=apply, inspect=inspection.of_policy(model, optimizer, target_period=target_period),
    )  # fmt: skip
