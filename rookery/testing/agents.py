"""Agents whose parameters say what they have learned from, for a ScriptedPool.

`counting_agent` adds up rewards and observations, `summing_agent` ships the number of transitions as its gradient, and
`ledger_agent` counts every single step that it was given: what a topology lost or gave twice stands in the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.testing.scripted_pool import LONGEST_EPISODE, NUM_ACTIONS
from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Rollout, TrainState


def counting_agent(
    rollout_length: int = 3,
    *,
    discount: float = 0.5,
    previous: bool = False,
    return_discount: float | None = None,
    learn: Callable[[TrainState, Batch, Array], Learned] | None = None,
    act: Callable[[PyTree], PyTree] = lambda observation: observation,
    process: Any = None,
) -> Agent:
    """Build an agent whose memory counts the steps since it was reset; what it saw, remembered and drew is in the extras.

    An action is a function of what is shown and of params["offset"], which every update raises by one. `params["sum"]`
    adds up what was learned from, so that a changed batch shows. act: applied to the observation first.
    """

    def shown(observation: PyTree) -> Array:
        return observation["observation"] if previous else observation

    def init(key: Array) -> TrainState:
        params = {"offset": jnp.zeros((), jnp.int32), "sum": jnp.zeros((), jnp.float32)}
        return TrainState(params, {"target": jnp.zeros((5,))}, {"moment": jnp.ones((2, 3))}, jnp.zeros((), jnp.int32))

    def memory(B: int) -> PyTree:
        return {"count": jnp.zeros((B,), jnp.int32), "wide": jnp.full((B, 2), 7.0)}

    def decide(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        raw = act(shown(observation))
        after = {"count": memory["count"] + 1, "wide": memory["wide"] + 1.0}
        drawn = jax.random.uniform(key, (len(raw),))
        extras = {"count": memory["count"], "seen": {"b": raw, "a": raw[:, 1]}, "drawn": drawn, "explore": explore["x"]}
        return Decision(_action(params, raw), after, extras)

    def sum_up(state: TrainState, batch: Batch, key: Array) -> Learned:
        rollout = batch.rollout
        total = (rollout.reward * rollout.discount * rollout.valid).sum() + shown(rollout.observation).sum()
        params = {"offset": state.params["offset"] + 1, "sum": state.params["sum"] + total}
        state = TrainState(params, state.slow, state.optimizer, state.updates + 1)
        return Learned(state, {"loss": total}, None)

    def explore(*given: Any) -> PyTree:
        env_index, _, env_steps = given[-3:]
        return {"x": np.asarray(env_index + 1000.0 * env_steps, np.float32)}

    needs = Needs(rollout_length, discount, previous=previous, return_discount=return_discount)
    return Agent(init, memory, decide, explore, learn or sum_up, needs, process=process)


def counting_params(offset: int = 0) -> PyTree:
    """Return parameters of a counting agent after `offset` updates."""
    return {"offset": np.int32(offset), "sum": np.float32(0)}


def summing_agent() -> Agent:
    """Build an agent whose gradient is the number of transitions in the rollout: the parameters add up what was applied."""
    agent = counting_agent(3)

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        rows = batch.rollout.valid.sum()
        return Gradients({"offset": jnp.ones((), jnp.int32), "sum": rows}, {"loss": rows})

    return agent._replace(learn=_learner(gradients), gradients=gradients, apply=_add)


def ledger_agent(rollout_length: int = 3, *, envs: int = 256, episodes: int = 256) -> Agent:
    """Build an agent whose parameters count how often each step of a ScriptedPool was learned from.

    params["counts"] is [envs, episodes, longest episode]; steps beyond that are in params["rows"] alone, which counts all.
    It learns from whole batches and by gradients alike: `learn` is `apply` of `gradients`, and a gradient is what is added.
    """

    def init(key: Array) -> TrainState:
        counts = jnp.zeros((envs, episodes, LONGEST_EPISODE), jnp.int32)
        zero = jnp.zeros((), jnp.int32)
        return TrainState({"counts": counts, "offset": zero, "rows": zero}, (), (), zero)

    def decide(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        return Decision(_action(params, observation), memory, {})

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        rollout: Rollout = batch.rollout
        valid = rollout.valid.astype(jnp.int32)
        env, episode, step = jnp.moveaxis(rollout.observation[:-1].astype(jnp.int32), -1, 0)
        counts = jnp.zeros_like(params["counts"]).at[env, episode, step].add(valid)
        rows = valid.sum()
        tree = {"counts": counts, "offset": jnp.ones((), jnp.int32), "rows": rows}
        return Gradients(tree, {"loss": rows.astype(jnp.float32)})

    explore = lambda *given: np.zeros(len(given[-3]), np.float32)
    needs = Needs(rollout_length, discount=0.5)
    return Agent(init, lambda B: (), decide, explore, _learner(gradients), needs, gradients=gradients, apply=_add)


def _action(params: PyTree, observation: Array) -> Array:
    return (observation[:, 0] + observation[:, 2] + params["offset"]).astype(jnp.int32) % NUM_ACTIONS


def _learner(gradients: Callable[..., Gradients]) -> Callable[[TrainState, Batch, Array], Learned]:
    """Make `learn` of `gradients`, which are added to the parameters."""

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        found = gradients(state.params, state.slow, batch, key)
        return Learned(_add(state, found), found.report, None)

    return learn


def _add(state: TrainState, gradients: Gradients) -> TrainState:
    return state._replace(params=jax.tree.map(jnp.add, state.params, gradients.tree), updates=state.updates + 1)
