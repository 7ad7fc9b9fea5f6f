"""Random experience that has the form of the real one: observations of a space, rollouts as a collector writes them, batches
as a table or a queue gives them. Nothing in it can be learned; it is for checks of functions that take experience."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gs

from rookery import ops, spaces
from rookery.data.replay import batch_specs
from rookery.types import Agent, Batch, PyTree, Rollout, Spec
from rookery.workers.acting.evolution_worker import Generation, kept
from rookery.workers.acting.shapes import rollout_specs


def random_observation(space: gymnasium.Space, num_envs: int, rng: np.random.Generator) -> PyTree:
    """Draw a canonical observation [B, ...] of a space; a leaf `action_mask` allows everything."""

    def leaf(sub: gymnasium.Space) -> np.ndarray:
        (spec,) = [spaces.array_specs(sub)]
        shape = (num_envs, *spec.shape)
        if isinstance(sub, gs.Box):
            low, high = np.maximum(sub.low, -3.0), np.minimum(sub.high, 255.0 if spec.dtype == np.uint8 else 3.0)
            return rng.uniform(low, np.maximum(low, high), shape).astype(spec.dtype)
        limit = sub.n if isinstance(sub, gs.Discrete) else getattr(sub, "nvec", 2)
        return rng.integers(0, limit, shape).astype(spec.dtype)

    drawn = spaces.map_space(leaf, space)
    if isinstance(drawn, dict) and "action_mask" in drawn:
        drawn["action_mask"] = np.ones_like(drawn["action_mask"])
    return drawn


def explored(agent: Agent, params: PyTree, env_index: np.ndarray, num_envs: int, env_steps: int) -> PyTree:
    """Call `agent.explore`: (params, env_index, num_envs, env_steps), or without parameters where it takes none."""
    call: Any = agent.explore
    given: tuple[Any, ...] = (params, env_index, num_envs, env_steps)
    try:
        inspect.signature(call).bind(*given)
    except TypeError:
        given = given[1:]
    return call(*given)


def random_rollout(agent: Agent, spec: Spec, params: PyTree, *, num_envs: int = 4, seed: int = 0) -> Rollout:
    """Let an agent act on random observations, as a collector does: next-step autoreset, memories that are reset."""
    B, needs, rng = num_envs, agent.needs, np.random.default_rng(seed)
    act, explore = jax.jit(agent.act), explored(agent, params, np.arange(B), B, 0)
    fresh = memory = jax.tree.map(np.asarray, agent.memory(B))
    action, reward, over = spaces.zeros(spec.action, (B,)), np.zeros(B, np.float32), np.zeros(B, bool)
    rows = []
    for t in range(needs.rollout_length + 1):
        seen = random_observation(spec.observation, B, rng)
        if needs.previous:
            seen = {"observation": seen, "previous_action": action, "previous_reward": reward}
        if t == needs.rollout_length:
            break
        decision = act(params, seen, memory, jax.random.fold_in(ops.random.key(seed), t), explore)
        first = over  # of the next observation
        ended = ~first & (rng.random(B) < 0.2)
        over = (over | ended) if needs.whole_episodes else ended
        reward = np.where(first, 0, rng.normal(size=B)).astype(np.float32)
        discount = 1 - (ended & (rng.random(B) < 0.5)).astype(np.float32)
        extras = dict(decision.extras)
        if needs.return_discount is not None:
            extras["discounted_return"] = reward
        rows.append((seen, decision.action, reward, discount, 1 - first.astype(np.float32), extras))
        memory = _where(first, fresh, decision.memory)
        action = _where(first, spaces.zeros(spec.action, (B,)), decision.action)
    observation = jax.tree.map(lambda *x: np.stack(x), *(row[0] for row in rows), seen)
    _, action, reward, discount, valid, extras = jax.tree.map(lambda *x: np.stack(x), *rows)
    ids = np.arange(B, dtype=np.int64)
    return Rollout(observation, action, reward, discount, valid, extras, fresh, 0 * valid.astype(np.int32), ids, 0 * ids)


def _where(first: np.ndarray, begin: PyTree, goes_on: PyTree) -> PyTree:
    choose = lambda a, b: np.where(first.reshape(-1, *(1,) * (np.ndim(a) - 1)), a, np.asarray(b))
    return jax.tree.map(choose, begin, goes_on)


def random_batch(agent: Agent, spec: Spec, params: PyTree, *, num_envs: int = 4, seed: int = 0) -> Batch:
    """Make what `learn` is given: a rollout, what a table cuts out of it, or the returns of a generation."""
    rng, needs = np.random.default_rng(seed), agent.needs
    if needs.whole_episodes:
        return random_generation(agent, params, 2 * num_envs, rng)
    rollout = random_rollout(agent, spec, params, num_envs=num_envs, seed=seed)
    if agent.process is not None:
        rollout = jax.tree.map(np.asarray, agent.process(params, rollout)[0])
    if needs.table is not None:
        rollout = _cut(rollout, batch_specs(needs, rollout_specs(agent, spec, num_envs), 1))
    B = rollout.reward.shape[1]
    rollout = rollout._replace(discount=rollout.discount * np.float32(needs.discount))
    return Batch(rollout, np.ones(B, np.float32), np.arange(B, dtype=np.int64))


def random_generation(agent: Agent, params: PyTree, population: int, rng: np.random.Generator) -> Batch:
    """Make the returns of a population as an evolution's learner is given them."""
    total, length = rng.normal(size=population).astype(np.float32), rng.integers(1, 9, population).astype(np.int32)
    played = Generation(0, total, length, {})
    extras = jax.tree.map(np.asarray, kept(agent, params, played, agent.memory(population)))
    return played._replace(extras=extras).batch()


def _cut(rollout: Rollout, shapes: Rollout) -> Rollout:
    """Repeat rows and columns of a rollout, or leave some out, until it has these shapes."""
    (T, B), (length, width) = rollout.reward.shape, shapes.reward.shape
    columns = np.arange(width) % B
    rows = lambda tree, total, available: jax.tree.map(lambda x: x[np.arange(total) % available][:, columns], tree)
    fields = {name: rows(getattr(rollout, name), length, T) for name in ("action", "reward", "discount", "valid", "version")}
    memory = jax.tree.map(lambda x: x[columns], rollout.memory) if jax.tree.leaves(shapes.memory) else shapes.memory
    extras = {name: rows(rollout.extras[name], length, T) for name in shapes.extras}
    return rollout._replace(
        observation=rows(rollout.observation, length + 1, T + 1), extras=extras, memory=memory,
        stream=rollout.stream[columns], step=rollout.step[columns], **fields,
    )  # fmt: skip


def on_device(batch: Batch) -> Batch:
    """Leave out what stays on the host: `stream`, `step` and `key` are () inside `learn`."""
    return jax.tree.map(jnp.asarray, Batch(batch.rollout._replace(stream=(), step=()), batch.weight, ()))
