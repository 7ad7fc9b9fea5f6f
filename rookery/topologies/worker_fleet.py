"""A fleet of workers that collect and learn by themselves: each has environments, streams and a snapshot of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rookery.data import arrays
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle, W
from rookery.runtime.roster import Life, Roster, Terms
from rookery.topologies.job import LIFE, Job
from rookery.types import Agent, PyTree


def spawn_fleet(
    job: Job, worker: Callable[..., W], role: str, *, count: int, envs_each: int, groups: int, snapshot: PyTree | None,
    **options: Any,
) -> Fleet[W]:  # fmt: skip
    """Spawn `count` workers, one call in flight each. A life that is in the snapshot resumes; a replacement begins anew.

    snapshot: with the workers' own under `workers` and their `lives`; options: for the worker's constructor.
    """
    saved: Sequence[PyTree | None] = snapshot["workers"] if snapshot else [None] * count
    if len(saved) != count:
        raise ValueError(f"the checkpoint was made with {len(saved)} of each {role}, not {count}: use that number")
    if job.devices > 1:
        raise ValueError(f"--devices {job.devices}: each {role} computes on one device; use --devices 1, or Sync")
    lives = list(map(int, snapshot["lives"])) if snapshot else [0] * count
    make_pool = functools.partial(job.make_pool, envs_each, groups)

    def start(life: Life) -> Handle[W]:
        return job.runtime.spawn(
            worker, job.agent, make_pool, index=life.place, num_workers=count, seed=job.seed,
            incarnation=life.number * LIFE, env_restarts=job.env_restarts,
            snapshot=saved[life.place] if life.number == lives[life.place] else None,
            name=f"{role}-{life.place}", role=role, **options,
        )  # fmt: skip

    patience = job.runtime.patience
    terms = Terms(least=count, most=count, in_flight=1, call_deadline=patience, start_deadline=patience)
    fleet = Fleet(job.runtime, role, Roster(terms, lives), start)
    fleet.tend()
    return fleet


def fleet_counts(fleet: Fleet) -> dict[str, int]:
    """Count the workers, and what was lost since the start."""
    roster = fleet.roster
    return {
        f"{fleet.role}s": roster.count("working", "leaving"),
        f"{fleet.role}s_lost": roster.lost_workers,
        "calls_lost": roster.lost_calls,
    }


def slow_bytes(agent: Agent) -> int:
    """Size up what is broadcast beside the parameters: a target network."""
    return arrays.nbytes(jax.tree.leaves(jax.eval_shape(agent.init, jax.random.key(0)).slow))
