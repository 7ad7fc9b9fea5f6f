"""CURL: a contrastive loss on what an agent's encoder sees of images (Laskin, Srinivas, Abbeel 2020,
https://arxiv.org/abs/2004.04136).

    q = encoder(view 1 of o),  k = momentum encoder(view 2 of o), which no gradient reaches
    logits = q W k' over the batch,  labels = its diagonal:  InfoNCE = mean (log sum exp logits − logits of the label)
    momentum encoder ← (1 − m) momentum encoder + m encoder

Wraps an agent from images, SAC or DQN, which is built for what a window shows and knows of nothing: it acts on the central
window, and all its losses see random ones. An update is its own, then a contrastive step on the same batch with an Adam of its
own, as in the authors' code. That step is an `Auxiliary`: a worker beside the learner may make its gradients (two_learners.py).
The momentum encoder of SAC is that of its target critics (`encoder_polyak`); a DQN's target is a copy, so it has one beside it.

Differs from the paper: features are those of the encoder for the image's size, normalised, in place of 50 behind a layer of
their own; W starts small, so that all rows are as likely at first; one contrastive step for each update, however many gradient
steps that makes, on its whole batch; the query has a window of its own instead of the critic's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery import ops
from rookery.algorithms import hyper, optimizers
from rookery.algorithms.off_policy import polyak
from rookery.networks import ViewsConfig, encoders
from rookery.networks.network import observation_encoder
from rookery.networks.shared import standardised
from rookery.networks.torso import Encoding, Torso
from rookery.networks.views import Views, views_of
from rookery.types import (
    Agent,
    Array,
    Auxiliary,
    Batch,
    Decision,
    Gradients,
    Learned,
    PyTree,
    Report,
    Rollout,
    Spec,
    TrainState,
)

NAME = "contrastive"


class EncoderPlace(NamedTuple):
    """Where an agent keeps its encoder."""

    part: str  # of the parameters: params[part]["encoder"]
    follows: bool  # its target network moves by a share each step: slow[part]["encoder"] is the momentum encoder


def info_nce(query: Array, key: Array, bilinear: Array) -> Array:
    """Compute the cross-entropy [B] of which key belongs to each query. query, key [B, Z], bilinear [Z, Z]"""
    logits = query @ bilinear @ key.T
    logits -= jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    return jax.nn.logsumexp(logits, -1) - jnp.diagonal(logits)


def asked(config: Any) -> bool:
    """Tell whether a config asks for views; refuse contrastive steps without."""
    if config.contrastive_every and config.views.kind == "whole":
        raise ValueError("--contrastive-every tells two views of an image apart from others': use --views.kind shift, or crop")
    return config.views.kind != "whole"


def build(config: Any, spec: Spec, place: EncoderPlace, *, num_updates: int | None, torso: Torso | None) -> Agent:
    """Build the agent of a config for windows of its images and, where any are asked for, its contrastive steps."""
    views = views_of(spec, config.views, config.network.encoder)
    plain = dataclasses.replace(config, views=ViewsConfig(), contrastive_every=0)
    agent = viewed(plain.build(views.spec, num_updates=num_updates, torso=torso), views)
    if not config.contrastive_every:
        return agent
    return contrasted(agent, config, views, place, observation_encoder(views.spec, config.network, torso))


def viewed(agent: Agent, views: Views) -> Agent:
    """Show an agent windows of images: the central one to act and to be looked at, random ones to learn from."""

    def shown(batch: Batch, key: Array) -> tuple[Batch, Array]:
        own_key, learn_key = jax.random.split(key)
        rollout = batch.rollout
        return batch._replace(rollout=rollout._replace(observation=views.random(own_key, rollout.observation))), learn_key

    def central(rollout: Rollout) -> Rollout:
        return rollout._replace(observation=views.centre(rollout.observation))

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        return agent.act(params, views.centre(observation), memory, key, explore)

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        return agent.learn(state, *shown(batch, key))

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        assert agent.gradients is not None
        return agent.gradients(params, slow, *shown(batch, key))

    def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
        assert agent.process is not None
        made, priorities = agent.process(params, central(rollout))
        return made._replace(observation=rollout.observation), priorities

    def inspect(state: TrainState, batch: Batch) -> Report:
        assert agent.inspect is not None
        return agent.inspect(state, batch._replace(rollout=central(batch.rollout)))

    return agent._replace(
        act=act, learn=learn, gradients=agent.gradients and gradients, process=agent.process and process,
        inspect=agent.inspect and inspect,
    )  # fmt: skip


def contrasted(agent: Agent, config: Any, views: Views, place: EncoderPlace, encode: Encoding) -> Agent:
    """Give an agent contrastive steps. config: `contrastive_every`, `contrastive_rate`, `encoder_polyak` of it."""
    optimizer = optimizers.adam(epsilon=config.adam_epsilon)

    def features(encoder: PyTree, seen: PyTree) -> Array:
        return standardised(encode.apply(encoder, seen))

    def own(params: PyTree) -> PyTree:
        """Return what the contrastive loss trains."""
        return {"encoder": params[place.part]["encoder"], "bilinear": params[NAME]["bilinear"]}

    def init(key: Array) -> TrainState:
        state = agent.init(key)
        encoder = state.params[place.part]["encoder"]
        size = jax.eval_shape(features, encoder, encoders.zeros(views.spec.observation)).shape[-1]
        params = state.params | {NAME: {"bilinear": 0.1 * jnp.eye(size) / size}}
        slow = state.slow if place.follows else {"agent": state.slow, "momentum": jax.tree.map(jnp.copy, encoder)}
        return state._replace(params=params, slow=slow, optimizer=state.optimizer | {NAME: optimizer.init(own(params))})

    def theirs(state: TrainState) -> TrainState:
        """Return the state as the agent knows it."""
        moments = {name: moments for name, moments in state.optimizer.items() if name != NAME} if state.optimizer else ()
        return state._replace(slow=state.slow if place.follows else state.slow["agent"], optimizer=moments)

    def inspect(state: TrainState, batch: Batch) -> Report:
        assert agent.inspect is not None
        return agent.inspect(theirs(state), batch)

    def alone(state: TrainState, batch: Batch, key: Array) -> Learned:
        """Make the agent's own update; the momentum encoder follows it."""
        learned = agent.learn(theirs(state), batch, key)
        after = learned.state._replace(optimizer=learned.state.optimizer | {NAME: state.optimizer[NAME]})
        if not place.follows:
            share, newest = hyper.read(config, after.params).encoder_polyak, after.params[place.part]["encoder"]
            after = after._replace(slow={"agent": after.slow, "momentum": polyak(state.slow["momentum"], newest, share)})
        return learned._replace(state=after)

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        keys = dict(zip(("query", "key"), jax.random.split(key)))
        seen = jax.tree.map(lambda x: x[:-1].reshape(-1, *x.shape[2:]), batch.rollout.observation)  # [T * B, ...]
        counts = ops.row_weights(batch.rollout).reshape(-1)
        momentum = slow[place.part]["encoder"] if place.follows else slow["momentum"]
        positive = jax.lax.stop_gradient(features(momentum, views.random(keys["key"], seen)))

        def loss(own: PyTree) -> Array:
            query = features(own["encoder"], views.random(keys["query"], seen))
            return ops.masked_mean(info_nce(query, positive, own["bilinear"]), counts)

        total, tree = jax.value_and_grad(loss)(own(params))
        return Gradients(tree, {f"loss/{NAME}": total})

    def apply(state: TrainState, tree: PyTree) -> TrainState:
        params, before = state.params, own(state.params)
        rate = hyper.read(config, params).contrastive_rate
        change, moments = optimizer.update(tree, state.optimizer[NAME], before, learning_rate=rate)
        moved = optax.apply_updates(before, change)
        whole = params[place.part] | {"encoder": moved["encoder"]}
        params = params | {place.part: whole, NAME: {"bilinear": moved["bilinear"]}}
        return state._replace(params=params, optimizer=state.optimizer | {NAME: moments})

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        keys = dict(zip(("alone", "contrast"), jax.random.split(key)))
        learned = alone(state, batch, keys["alone"])

        def step(after: TrainState) -> tuple[TrainState, Array]:
            found = gradients(after.params, after.slow, batch, keys["contrast"])
            return apply(after, found.tree), found.report[f"loss/{NAME}"]

        after, every = learned.state, config.contrastive_every
        if every == 1:
            after, loss = step(after)
        else:
            still = lambda after: (after, jnp.float32(0.0))
            after, loss = jax.lax.cond(after.updates % every == 0, step, still, after)
        return Learned(after, learned.report | {f"loss/{NAME}": loss}, learned.priorities)

    return agent._replace(
        init=init, learn=learn, gradients=None, apply=None, inspect=agent.inspect and inspect,
        trained=(*(agent.trained or ()), NAME), auxiliary=Auxiliary(alone, gradients, apply),
    )  # fmt: skip
