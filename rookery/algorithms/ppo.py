"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), with the details that matter.

Of the 37 details collected by Huang et al. (2022), those that concern the algorithm are here: GAE with bootstrap,
shuffled minibatches, per-minibatch advantage normalisation, clipped surrogate and value loss, entropy, global norm,
learning-rate decay, Adam's epsilon, orthogonal initialisation, observation and reward normalisation and clipping,
diagonal Gaussians whose executed action alone is clipped, masks, multi-discrete, and recurrent minibatches made of
whole sequences replayed from the stored memory. The Atari ones live in `envs/atari.py`.

Differs: truncated episodes bootstrap from their true last observation; resetting rows are masked everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rookery import ops
from rookery.algorithms import actor_critic, hyper, inspection, optimizers, own_loss
from rookery.algorithms.actor_critic import ActorCritic
from rookery.algorithms.minibatches import minibatches_for, shuffles
from rookery.algorithms.normalisers import RewardClip
from rookery.algorithms.own_loss import OwnLoss
from rookery.networks import NetworkConfig
from rookery.networks.convolution import inside_loop
from rookery.networks.torso import Torso
from rookery.ranges import Count, NotNegative, Positive, Rate, Share
from rookery.types import Agent, Array, Batch, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class PPO:
    """Proximal policy optimisation."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "entropy_cost", "value_cost", "clip", "gae_lambda", "max_gradient_norm", "discount",
    )  # may change while a run goes on (see hyper.py); value_clip may not: without one the program is another  # fmt: skip
    rollout_length: Count = 256
    discount: Share = 0.99
    gae_lambda: Share = 0.95
    epochs: Count = 10
    minibatches: Count | None = None
    """Per epoch; None: of 64 rows each, but at most 32, and of whole sequences with a core."""
    clip: Positive = 0.2
    value_clip: Positive | None = None
    """How far a value may move in an update; None: freely."""
    learning_rate: Rate = 3e-4
    anneal: bool = True
    """Decay the learning rate linearly to zero over the planned run."""
    entropy_cost: NotNegative = 0.01
    value_cost: NotNegative = 0.5
    max_gradient_norm: Positive = 0.5
    reward_clip: RewardClip = "none"
    """unit: to [-1, 1]; soft-asymmetric: 5 tanh(r/5)."""
    normalise_observations: bool | None = None
    """By running moments; None: numbers without bounds within ±100."""
    normalise_rewards: bool | None = None
    """By the deviation of returns; None: unless clipped."""
    squash: bool = False
    """Squash continuous actions into their bounds by tanh, instead of clipping them."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: OwnLoss = None
    """A function of your own, from Python alone: (params, minibatch, *, model, config) -> loss, report; see own_loss.py."""

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        model = actor_critic.build(
            spec, self.network, torso=torso, squash=self.squash, remembers=("behaviour_logp",),
            normalise_observations=self.normalise_observations, normalise_rewards=self.normalise_rewards,
            reward_clip=self.reward_clip,
        )  # fmt: skip
        optimizer = optimizers.adam(epsilon=1e-5)
        planned = num_updates if self.anneal else None
        own_loss.chosen(self.loss, loss)  # refuses what is no function

        def init(key: Array) -> TrainState:
            params = model.init(key) | {"hyper": hyper.leaves(self)}
            return TrainState(params, (), {"network": optimizer.init(params["network"])}, jnp.zeros((), jnp.int32))

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            return update(state, batch.rollout, key, model=model, optimizer=optimizer, config=self, planned=planned)

        needs = Needs(
            self.rollout_length, self.discount, max_lag=0,
            return_discount=model.normalisers.return_discount(self.discount),
        )  # fmt: skip
        return Agent(
            init=init, memory=model.memory, act=model.act, explore=model.explore, learn=learn, needs=needs,
            inspect=inspection.of_policy(model, optimizer), trained=("network",),
        )  # fmt: skip

    def limits(self) -> Limits:
        return Limits(1.0 - self.clip, 1.0 + self.clip, self.value_clip)


class Limits(NamedTuple):
    """How far an update may go."""

    low: float | Array  # of the ratio
    high: float | Array
    value: float | Array | None  # from the one before; None: freely


class Clipped(Protocol):
    """The hyper-parameters of several passes with a clipped objective: PPO's and APPO's."""

    @property
    def epochs(self) -> int: ...
    @property
    def minibatches(self) -> int | None: ...
    @property
    def value_cost(self) -> float: ...
    @property
    def entropy_cost(self) -> float: ...
    @property
    def max_gradient_norm(self) -> float: ...
    def limits(self) -> Limits: ...


class Sequences(NamedTuple):
    """What an epoch is cut from, along its columns: whole sequences for recurrent networks, else single steps."""

    observation: PyTree  # [T, N, ...]
    action: PyTree  # [T, N, ...]
    old_logp: Array  # [T, N] below the ratio: of the policy that acted, or of APPO's target
    value: Array  # [T, N] before the first epoch
    target: Array  # [T, N] of the value
    advantage: Array  # [T, N]
    first: Array  # [T, N]
    weight: Array  # [T, N] how much a row counts: 0 where it is no transition
    memory: PyTree  # [N, ...]


class Judged(NamedTuple):
    """What the current parameters make of a minibatch, row by row."""

    log_ratio: Array  # [T, N] to the old policy
    entropy: Array  # [T, N]
    value: Array  # [T, N]


def update(
    state: TrainState,
    rollout: Rollout,
    key: Array,
    *,
    model: ActorCritic,
    optimizer: optimizers.Optimizer,
    config: PPO,
    planned: int | None = None,
) -> Learned:
    """Run all epochs over one batch of rollouts, as one program. planned: updates until the learning rate is zero."""
    data = ops.spread.everywhere(prepare(state.params, rollout, model=model, config=config))  # a minibatch is drawn from all
    rate = optimizers.remaining(state.updates, planned)
    params, opt_state, report = passes(state, data, key, model=model, optimizer=optimizer, config=config, rate=rate)
    params = model.normalisers.observed(params, model.normalisers.statistics(rollout))
    return Learned(TrainState(params, (), opt_state, state.updates + 1), report, None)


def passes(
    state: TrainState,
    data: Sequences,
    key: Array,
    *,
    model: ActorCritic,
    optimizer: optimizers.Optimizer,
    config: Any,
    rate: Array | float,
) -> tuple[PyTree, PyTree, Report]:
    """Take a step for each minibatch of each epoch; return (parameters, state of the optimizer, report).

    config: a dataclass with what `Clipped` has; rate: what is left of the learning rate.

    Beside its products, a small network's minibatch costs as much as it has XLA ops. So what does not depend on the parameters
    is done for all minibatches at once before the loop, what is only reported after it, and the gradient is clipped and
    applied as one vector.
    """
    config = hyper.read(config, state.params)
    params, columns = state.params, data.weight.shape[1]
    minibatches = minibatches_for(config.minibatches, pieces=columns, rows=data.weight.size)
    size = columns // minibatches
    if size * minibatches != columns:
        raise ValueError(f"{columns} columns cannot be cut into {minibatches} equal minibatches: change --minibatches")
    own = getattr(config, "loss", None)
    of_piece = own_loss.chosen(own, loss)
    order = shuffles(key, config.epochs, columns).reshape(-1, size)
    large = data._replace(**{name: () for name in Sequences._fields if name not in ("observation", "memory")})
    small = jax.vmap(lambda index: normalised(draw(data._replace(observation=(), memory=()), index)))(order)

    def minibatch(carry: tuple, at: tuple[Array, Sequences]) -> tuple[tuple, tuple[Judged, Array]]:
        network, opt_state = carry
        index, piece = at
        drawn = draw(large, index)
        piece = piece._replace(observation=drawn.observation, memory=drawn.memory)
        with inside_loop():
            grads, judged = jax.grad(
                lambda net: of_piece(params | {"network": net}, piece, model=model, config=config), has_aux=True
            )(network)
        vector, as_tree = ravel_pytree(grads)
        vector, norms = ops.clip_by_global_norm(vector, config.max_gradient_norm)
        step, opt_state = optimizer.update(vector, opt_state, learning_rate=config.learning_rate * rate)
        return (optax.apply_updates(network, as_tree(step)), opt_state), (judged, norms.total)

    first = params["network"], state.optimizer["network"]
    (network, opt_state), (judged, norms) = jax.lax.scan(minibatch, first, (order, small))
    report = dict(judged) if own is not None else jax.vmap(lambda *one: describe(*one, config=config))(judged, small)
    report = report | {"gradient_norm": norms}
    report["gradient_clipped"] = (norms > config.max_gradient_norm).astype(jnp.float32)
    report = {name: value.mean() for name, value in report.items()}
    _, target_std = ops.masked_moments(data.target, data.weight)
    _, error_std = ops.masked_moments(data.target - data.value, data.weight)
    report["explained_variance"] = 1.0 - jnp.square(error_std / (target_std + 1e-8))
    return params | {"network": network}, {"network": opt_state}, report


def prepare(params: PyTree, rollout: Rollout, *, model: ActorCritic, config: PPO) -> Sequences:
    """Compute values, advantages and the layout of the epochs; no gradient flows out of here."""
    first = actor_critic.first_rows(rollout.valid)
    _, value = model.forward(params, rollout.observation, rollout.memory, first)
    advantage = ops.gae(
        value=value[:-1], value_next=value[1:], reward=model.normalisers.reward(params, rollout.reward),
        discount=rollout.discount, valid=rollout.valid, lam=hyper.read(config, params).gae_lambda,
    )  # fmt: skip
    data = Sequences(
        observation=jax.tree.map(lambda x: x[:-1], rollout.observation),
        action=rollout.action,
        old_logp=rollout.extras["behaviour_logp"],
        value=value[:-1],
        target=value[:-1] + advantage,
        advantage=advantage,
        first=first[:-1],
        weight=ops.row_weights(rollout),
        memory=rollout.memory,
    )
    return data if model.recurrent else steps_of(data)


def steps_of(data: Sequences) -> Sequences:
    """Make every step a sequence of its own, of length one: [1, T * B, ...]."""
    return jax.tree.map(lambda x: x.reshape((1, -1) + x.shape[2:]), data._replace(memory=()))


def draw(data: Sequences, index: Array) -> Sequences:
    """Take the columns of a minibatch."""
    take = lambda tree, axis: jax.tree.map(lambda x: jnp.take(x, index, axis=axis), tree)
    return Sequences(*(take(part, 0 if name == "memory" else 1) for name, part in data._asdict().items()))


def normalised(piece: Sequences) -> Sequences:
    """Normalise the advantages of a minibatch, as the loss wants it."""
    return piece._replace(advantage=ops.masked_normalise(piece.advantage, piece.weight))


def loss(params: PyTree, piece: Sequences, *, model: ActorCritic, config: Clipped) -> tuple[Array, Judged]:
    """Compute the loss of a minibatch; piece: `normalised`."""
    policy, value = model.forward(params, piece.observation, piece.memory, piece.first)
    logp = model.distribution.logp(policy, piece.action)
    judged = Judged(logp - piece.old_logp, model.distribution.entropy(policy), value)
    total: Array = sum(terms(judged, piece, config=config).values())
    return ops.masked_mean(total, piece.weight), judged  # the one reduction


def terms(judged: Judged, piece: Sequences, *, config: Clipped) -> dict[str, Array]:
    """Compute the terms of the loss, each [T, N]."""
    ratio, limits = jnp.exp(judged.log_ratio), config.limits()
    surrogate = jnp.minimum(ratio * piece.advantage, jnp.clip(ratio, limits.low, limits.high) * piece.advantage)
    error = jnp.square(judged.value - piece.target)
    if limits.value is not None:
        near = piece.value + jnp.clip(judged.value - piece.value, -limits.value, limits.value)
        error = jnp.maximum(error, jnp.square(near - piece.target))
    return {
        "policy": -surrogate,
        "value": config.value_cost * 0.5 * error,
        "entropy": -config.entropy_cost * judged.entropy,
    }


def describe(judged: Judged, piece: Sequences, *, config: Clipped) -> Report:
    """Compute what is reported of a minibatch."""
    ratio, limits = jnp.exp(judged.log_ratio), config.limits()
    rows = {f"loss/{name}": term for name, term in terms(judged, piece, config=config).items()} | {
        "entropy": judged.entropy,
        "approx_kl": ratio - 1.0 - judged.log_ratio,
        "clip_fraction": ((ratio < limits.low) | (ratio > limits.high)).astype(jnp.float32),
    }
    return {name: ops.masked_mean(row, piece.weight) for name, row in rows.items()}

