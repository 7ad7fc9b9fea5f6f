"""R2D2: recurrent Q-learning from replayed sequences (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX).

R2D3 (Paine et al. 2019, https://arxiv.org/abs/1909.01387) is R2D2 with a `demo_ratio`: that share of the sequences is drawn
from a second table, of demonstrations, which has priorities of its own and never loses an item. The loss is the same.

A sequence is stored with the memory that its first row was decided with. The learner unrolls it first over `burn_in` rows,
without gradients, so that the memory becomes that of its own parameters, and learns from the rows after them: n-step double
Q-learning on values that are squeezed instead of clipped rewards. A sequence's priority is eta · max + (1 − eta) · mean of its
errors.

Differs from the paper: sequences may cross episodes (the memory is reset inside them, and rows that lead from one to the next
count for nothing), so none is padded; the burn-in comes before the `sequence_length` rows that are learned from; importance
weights are used, as in the released settings; collectors compute first priorities from the
values that they acted on, in windows that end with their rollout, whose last row has none; a demonstration has no stored
memory, it starts with that of a new episode and the burn-in brings it up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery import ops, spaces
from rookery.algorithms import hyper, inspection, optimizers
from rookery.algorithms.actor_critic import first_rows
from rookery.data import columns
from rookery.data.config import ReplayConfig, TableSpec
from rookery.networks import NetworkConfig, encoders
from rookery.networks.q_network import QNetwork, q_network
from rookery.networks.torso import Torso
from rookery.ranges import Count, Long, Natural, Positive, Range, Rate, Share
from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState

PRIORITY_FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class R2D2:
    """Recurrent Q-learning from prioritized sequences with stored memory and burn-in."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "epsilon", "max_gradient_norm", "discount")
    #   may change while a run goes on (see hyper.py); eta may not: the table's priorities are made with it, too
    rollout_length: Count = 10
    """Steps between the starts of sequences; they overlap by the rest."""
    burn_in: Natural = 10
    """Rows that only bring the memory up to date."""
    sequence_length: Count = 20
    """Rows after them that are learned from; with the burn-in, a multiple of the rollout length."""
    discount: Share = 0.99
    n_step: Annotated[int, Range(1, 255)] = 5
    dueling: bool = True
    batch_size: Count = 32
    """Sequences per update."""
    target_period: Long = 200
    """Updates between copies to the target network; fewer in a run that would make less than 50 of them."""
    learning_rate: Rate = 5e-4
    adam_epsilon: Positive = 1e-5
    """Of the gradient of a loss that is summed over the rows of a sequence, as published (1e-3 on Atari)."""
    max_gradient_norm: Positive = 40.0
    """Of that gradient, too."""
    epsilon: Share = 0.4
    """Of the first environment; the others have powers of it, as in Ape-X."""
    eta: Share = 0.9
    """Priority of a sequence: this share of its largest error, the rest of its mean error."""
    demo_ratio: Annotated[float, Range(0, below=1)] = 0.0
    """Share of the sequences that are demonstrations (R2D3)."""
    demonstrations: str | None = None
    """Where they are; `rookery record` makes them."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(core="lstm", activation="relu"))
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(
            selector="prioritized", exponent=0.9, beta=0.6, min_size=200, samples_per_insert=8.0, capacity=200_000
        )
    )
    """min_size and samples_per_insert count sequences, capacity counts steps."""

    @property
    def steps_per_update(self) -> float:
        return self.batch_size * (1.0 - self.demo_ratio) * self.rollout_length / self.replay.samples_per_insert

    @property
    def warm_up_steps(self) -> int:
        return self.replay.min_size * self.rollout_length

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        if self.network.core == "none":
            raise ValueError("R2D2 is a DQN with a memory: use --network.core lstm or gru, or the system apex-dqn")
        network = q_network(spaces.with_previous(spec), self.network, dueling=self.dueling, torso=torso)
        optimizer = optimizers.adam(epsilon=self.adam_epsilon)
        prioritized = self.replay.selector == "prioritized"

        def init(key: Array) -> TrainState:
            params = {"network": network.init(key), "hyper": hyper.leaves(self)}
            slow = jax.tree.map(jnp.copy, params["network"])
            return TrainState(params, slow, {"network": optimizer.init(params["network"])}, jnp.zeros((), jnp.int32))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            values, memory = network.step(params["network"], observation, memory, None)
            legal = encoders.split_mask(observation)
            action = ops.epsilon_greedy(key, values.q, epsilon=explore["epsilon"], legal=legal)
            return Decision(action, memory, {"q": ops.of_action(values.q, action), "value": values.q.max(-1)})

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            powers = 1.0 + 7.0 * np.asarray(env_index) / max(1, num_envs - 1)
            return {"epsilon": (hyper.on_host(self, params).epsilon ** powers).astype(np.float32)}

        def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
            tree, (report, priorities) = jax.grad(loss, has_aux=True)(
                params["network"], slow, batch, network=network, config=self
            )
            tree, norms = ops.clip_by_global_norm(tree, hyper.read(self, params).max_gradient_norm)
            told = {"gradient_norm": norms.total, "gradient_clipped": norms.clipped}
            return Gradients({"network": tree}, report | told, priorities if prioritized else None)

        def apply(state: TrainState, gradients: Gradients) -> TrainState:
            before, rate = state.params["network"], hyper.read(self, state.params).learning_rate
            tree, moments = gradients.tree["network"], state.optimizer["network"]
            change, moments = optimizer.update(tree, moments, before, learning_rate=rate)
            newest, updates = optax.apply_updates(before, change), state.updates + 1
            now = updates % self.target_period == 0
            slow = jax.tree.map(lambda new, old: jnp.where(now, new, old), newest, state.slow)
            return TrainState(state.params | {"network": newest}, slow, {"network": moments}, updates)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            found = gradients(state.params, state.slow, batch, key)
            return Learned(apply(state, found), found.report, found.priorities)

        def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
            return rollout, first_priorities(rollout, hyper.on_host(self, params))

        table = TableSpec(
            self.replay, self.batch_size, sequence_length=self.burn_in + self.sequence_length, burn_in=self.burn_in,
            eta=self.eta, demo_ratio=self.demo_ratio, frames=columns.frames_of(spec),
        )  # fmt: skip
        needs = Needs(self.rollout_length, self.discount, replay=True, previous=True, table=table)
        return Agent(
            init=init, memory=network.memory, act=act, explore=explore, learn=learn, needs=needs,
            gradients=gradients, apply=apply, process=process,
            inspect=inspection.of_values(network, optimizer, target_period=self.target_period), trained=("network",),
        )  # fmt: skip


def loss(newest: PyTree, slow: PyTree, batch: Batch, *, network: QNetwork, config: R2D2) -> tuple[Array, tuple[Report, Array]]:
    """Compute the weighted sum over the rows after the burn-in, as a mean over sequences; the report, and new priorities [B].
    Gradients flow to `newest` alone."""
    rollout, n = batch.rollout, config.burn_in
    first = first_rows(rollout.valid)  # [T + 1, B]
    begin, rest = (jax.tree.map(lambda x, s=s: x[s], rollout.observation) for s in (slice(0, n), slice(n, None)))

    def values_of(params: PyTree) -> Array:
        """Compute q [L + 1, B, A] after the burn-in."""
        memory = rollout.memory
        if n:
            memory = jax.lax.stop_gradient(network.unroll(params, begin, memory, first[:n], None)[1])
        return network.unroll(params, rest, memory, first[n:], None)[0].q

    reward, discount, valid, action = (x[n:] for x in (rollout.reward, rollout.discount, rollout.valid, rollout.action))
    weight = ops.row_weights(rollout)[n:]
    q, q_slow = values_of(newest), values_of(slow)
    value_next = ops.unsqueeze_value(ops.of_action(q_slow[1:], jnp.argmax(q[1:], -1)))
    returns = ops.n_step_return(value_next=value_next, reward=reward, discount=discount, valid=valid, n=config.n_step)
    chosen = ops.of_action(q[:-1], action)
    error = valid * (jax.lax.stop_gradient(ops.squeeze_value(returns)) - chosen)  # [L, B]
    each = 0.5 * jnp.square(error)
    priorities = columns.sequence_priority(error, (weight > 0).astype(error.dtype), config.eta) + PRIORITY_FLOOR
    report = {"loss/q": ops.masked_mean(each, weight), "q": ops.masked_mean(chosen, weight), "priority": priorities.mean()}
    total = len(each) * ops.masked_mean(each * batch.weight[None], weight)
    return total, (report, jax.lax.stop_gradient(priorities))


def first_priorities(rollout: Rollout, config: R2D2) -> np.ndarray:
    """Compute errors [T, B] by the values that were acted on; the last row's value is the last that is known."""
    length = len(rollout.reward) - 1
    total, discount, span = columns.n_step(
        reward=rollout.reward[:-1], discount=rollout.discount[:-1], valid=rollout.valid[:-1], gamma=config.discount,
        n=config.n_step, count=length,
    )  # fmt: skip
    after = np.take_along_axis(rollout.extras["value"], np.arange(length)[:, None] + span, 0)
    target = ops.squeeze_value(jnp.asarray(total) + jnp.asarray(discount) * ops.unsqueeze_value(jnp.asarray(after)))
    error = np.abs(np.asarray(target) - rollout.extras["q"][:-1]) * (ops.row_weights(rollout)[:-1] > 0)
    return np.concatenate([error, np.zeros_like(error[:1])]).astype(np.float32)
