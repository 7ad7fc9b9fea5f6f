"""A replay that lives on the device: a ring of whole rows, written by rollouts and sampled uniformly, as pure functions.

Row r holds what every environment saw, did and was given at its r-th step, so a transition is found by (row, environment)
and an n-step one by the rows behind it, folded when it is drawn. The newest n rows wait for what follows them. Rows that
lead from one episode to the next are drawn like any other and come out with `valid` 0: they count for nothing, and the
batch is smaller by as many.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.data import columns
from rookery.data.config import TableSpec
from rookery.types import Array, Batch, PyTree, Rollout


class Ring(NamedTuple):
    """R rows of B environments."""

    observation: PyTree  # [R, B, ...]
    action: PyTree  # [R, B, ...]
    reward: Array  # [R, B]
    discount: Array  # [R, B]
    valid: Array  # [R, B]
    version: Array  # [R] parameters that acted


def num_rows(table: TableSpec, *, num_envs: int, rollout_length: int) -> int:
    """Size the ring: rows of whole rollouts, as many as the capacity holds."""
    rows = table.config.capacity // (num_envs * rollout_length) * rollout_length
    if rows < rollout_length + table.n_step + 1:
        least = num_envs * rollout_length * (2 + table.n_step // rollout_length)
        raise ValueError(
            f"a replay of {table.config.capacity:,} steps is too small for rollouts of {num_envs * rollout_length:,}: "
            f"use --replay.capacity {least} or more"
        )
    return rows


def empty(rollout: Rollout, rows: int) -> Ring:
    """Make an empty ring. rollout: arrays or shapes of a rollout that will be written."""
    columns = Ring(rollout.observation, rollout.action, rollout.reward, rollout.discount, rollout.valid, rollout.version)
    ring: Ring = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), columns)
    return ring._replace(version=ring.version[:, 0])


def write(ring: Ring, rollout: Rollout, written: Array) -> Ring:
    """Write a rollout over the oldest rows. written: rows since the ring was empty."""
    rows = Ring(
        jax.tree.map(lambda x: x[:-1], rollout.observation), rollout.action, rollout.reward, rollout.discount, rollout.valid,
        rollout.version[:, 0],
    )  # fmt: skip
    start = written % len(ring.version)
    return jax.tree.map(lambda to, new: jax.lax.dynamic_update_slice_in_dim(to, new, start, 0), ring, rows)


def sample(ring: Ring, written: Array, key: Array, *, table: TableSpec, gamma: Array | float) -> Batch:
    """Sample a batch of n-step transitions, each a rollout of one row; rewards are clipped before they are summed."""
    rows, B = ring.reward.shape
    keys = dict(zip(("row", "env"), jax.random.split(key)))
    kept = jnp.minimum(written, rows)
    shape = (table.batch_size,)
    start = (written - kept + jax.random.randint(keys["row"], shape, 0, kept - table.n_step)) % rows
    env = jax.random.randint(keys["env"], shape, 0, B)
    window = (start + jnp.arange(table.n_step)[:, None]) % rows, env  # [n, B]
    reward, discount, valid = (x[window] for x in (ring.reward, ring.discount, ring.valid))
    reward = reward if table.reward_clip is None else jnp.clip(reward, -table.reward_clip, table.reward_clip)
    total, product, span = columns.n_step(reward=reward, discount=discount, valid=valid, gamma=gamma, n=table.n_step)  # [1, B]
    ends = jnp.concatenate([start[None], (start + span) % rows])  # [2, B]
    observation = jax.tree.map(lambda x: x[ends, env[None]], ring.observation)
    action = jax.tree.map(lambda x: x[start, env][None], ring.action)
    version = ring.version[start][None]
    rollout = Rollout(observation, action, total, product, (span > 0).astype(jnp.float32), {}, (), version, (), ())
    return Batch(rollout, jnp.ones(shape), ())
