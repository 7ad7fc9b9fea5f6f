"""Collecting as a pure function: environments written in JAX and the policy that acts in them, unrolled by one scan.

What a Collector over a JaxPool writes row by row from the host, with the same keys and the same meaning of every row; a
program that holds this never leaves the device between a decision and its outcome.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs.jax.slots import Programs, SlotAnswer, Slots
from rookery.types import Agent, Array, PyTree, Rollout
from rookery.workers.acting.step import compiled_step, fresh_where_first, return_discount, with_previous


class ScanState(NamedTuple):
    """What the scan carries from one rollout to the next: environments, recurrent state, returns. All of it is saved."""

    slots: Slots
    now: SlotAnswer  # what they show
    memory: PyTree  # [B, ...] of the agent, not yet reset where an episode starts
    action: PyTree  # [B, ...] the last one, for agents that see it; else ()
    returned: Array  # [B] discounted return so far, for agents that ask for it; else ()
    total: Array  # [B] float32 reward of the running episode
    length: Array  # [B] int32 its steps


class Ended(NamedTuple):
    """The episodes of a rollout: where `over`, `total` and `length` are those of an episode that ended with that row."""

    over: Array  # [T, B] bool
    total: Array  # [T, B] float32
    length: Array  # [T, B] int32


def begin(agent: Agent, environments: Programs, action: PyTree, seeds: Array) -> ScanState:
    """Reset the environments with these seeds [B], each at its first observation. action: zeros [B, ...], which stand for the
    one before the first; () where the agent does not look at it."""
    slots, now = environments.start(seeds)
    B, needs = seeds.shape[0], agent.needs
    return ScanState(
        slots=slots,
        now=now,
        memory=agent.memory(B),
        action=jax.tree.map(jnp.asarray, action),
        returned=jnp.zeros((B,)) if needs.return_discount is not None else (),
        total=jnp.zeros((B,)),
        length=jnp.zeros((B,), jnp.int32),
    )


def unroll(
    agent: Agent, environments: Programs, streams: ScanState, *, params: PyTree, version: Array, explore: PyTree, key: Array,
    counter: Array,
) -> tuple[ScanState, Rollout, Ended]:  # fmt: skip
    """Collect a rollout of `needs.rollout_length` rows. key: of the agent's decisions; counter: decisions before it."""
    T, B, needs = agent.needs.rollout_length, streams.total.shape[0], agent.needs
    decide, gamma = compiled_step(agent), return_discount(params, needs)

    def observe(streams: ScanState) -> PyTree:
        now = streams.now
        return with_previous(now.observation, streams.action, now.reward, now.first) if needs.previous else now.observation

    def row(streams: ScanState, t: Array) -> tuple[ScanState, tuple]:
        now, observation = streams.now, observe(streams)
        _, decision = decide(params, observation, streams.memory, now.first, explore, key, counter + t)
        slots, after = environments.advance(streams.slots, decision.action)
        valid = 1.0 - after.first.astype(jnp.float32)
        returned, extras = streams.returned, decision.extras
        if gamma is not None:
            returned = returned * gamma * valid + after.reward
            extras = extras | {"discounted_return": returned}
        total = jnp.where(after.first, 0.0, streams.total + after.reward)
        length = jnp.where(after.first, 0, streams.length + 1)
        action = decision.action if needs.previous else ()
        after_all = ScanState(slots, after, decision.memory, action, returned, total, length)
        discount = 1.0 - after.terminated.astype(jnp.float32)
        ended = Ended(after.terminated | after.truncated, total, length)
        return after_all, (observation, decision.action, after.reward, discount, valid, extras, decision.weight, ended)

    memory = fresh_where_first(agent, streams.memory, streams.now.first)
    last, rows = jax.lax.scan(row, streams, jnp.arange(T, dtype=jnp.uint32))
    observation, action, reward, discount, valid, extras, weight, ended = rows
    observation = jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), observation, observe(last))
    versions = jnp.broadcast_to(version, (T, B))
    return last, Rollout(observation, action, reward, discount, valid, extras, memory, versions, (), (), weight), ended
