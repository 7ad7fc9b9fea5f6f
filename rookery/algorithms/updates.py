"""From a loss to an Agent: the gradient step that A2C, PG, V-trace and APPO share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rookery import ops
from rookery.algorithms import inspection, optimizers
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.critic import Critic, fit, more_steps
from rookery.types import Agent, Array, Batch, Gradients, Learned, Needs, PyTree, Report, Rollout, TrainState

Loss = Callable[[PyTree, PyTree, Rollout], tuple[Array, Report]]  # (params, slow, rollout) -> masked mean, report


def first_order(
    model: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    loss: Loss,
    needs: Needs,
    max_gradient_norm: float,
    critic: Critic | None = None,
    planned: int | None = None,
    summed: bool = False,
    num_chunks: Callable[[Batch], int] = lambda batch: 1,
    slow: Callable[[PyTree], PyTree] = lambda params: (),
    refresh: Callable[[TrainState], PyTree] = lambda state: state.slow,
    target_period: int | None = None,
) -> Agent:
    """An Agent that takes one clipped gradient step of `loss` per batch.

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
        params = model.init(key)
        return TrainState(params, slow(params), optimizer.init(params["network"]), jnp.zeros((), jnp.int32))

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        def of_network(network: PyTree, rollout: Rollout) -> tuple[Array, Report]:
            return loss(params | {"network": network}, slow, rollout)

        tree, report = ops.accumulate(of_network, params["network"], batch.rollout, num_chunks(batch))
        rows = batch.rollout.valid.size if summed else 1
        tree, norms = ops.clip_by_global_norm(tree, max_gradient_norm / rows)
        tree = jax.tree.map(lambda leaf: leaf * rows, tree) if summed else tree
        report = report | {"gradient_norm": norms.total * rows, "gradient_clipped": norms.clipped}
        return Gradients({"network": tree, "seen": model.normalisers.statistics(batch.rollout)}, report)

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        network = state.params["network"]
        change, optimizer_state = optimizer.update(gradients.tree["network"], state.optimizer, network)
        rate = optimizers.remaining(state.updates, planned)
        network = jax.tree.map(lambda leaf, by: leaf + rate * by, network, change)
        params = model.normalisers.observed(state.params | {"network": network}, gradients.tree["seen"])
        state = TrainState(params, state.slow, optimizer_state, state.updates + 1)
        return state._replace(slow=refresh(state))

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        grads = gradients(state.params, state.slow, batch, key)
        after = apply(state, grads)
        if critic is not None and value_steps:
            target = jax.lax.stop_gradient(critic.targets(state.params, batch.rollout))
            rows = batch.rollout.valid.size if summed else 1
            after = fit(
                after, target, batch.rollout, params=state.params, model=model, optimizer=optimizer, scale=rows,
                max_norm=max_gradient_norm / rows, rate=optimizers.remaining(state.updates, planned), steps=value_steps,
            )  # fmt: skip
        return Learned(after, grads.report, None)

    return Agent(
        init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn, needs=needs,
        gradients=gradients, apply=apply, inspect=inspection.of_policy(model, optimizer, target_period=target_period),
    )  # fmt: skip
