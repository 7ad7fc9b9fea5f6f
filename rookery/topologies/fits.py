"""What fits what: which agents a topology can drive, and the figures that follow from both.

Functions of a topology; a topology takes those that hold for it as methods of its own.
"""

from __future__ import annotations

from typing import Any

from rookery.runtime.roster import span
from rookery.types import Agent, Spec


def collector_roles(topology: Any) -> dict[str, tuple[int, int]]:
    """Of a topology whose collectors live apart."""
    return {"collector": span(topology.collectors)}


def fixed_rollouts(topology: Any, agent: Agent, spec: Spec) -> str | None:
    """What a topology of fixed rollouts cannot drive."""
    if not agent.needs.whole_episodes:
        return None
    return "it learns from the returns of whole episodes, and rollouts are cut at a fixed length: use Evolution"


def steps_per_batch(topology: Any, algorithm: Any) -> float:
    """Steps per update: those that an algorithm with a replay asks for, else the rows of a batch."""
    steps = getattr(algorithm, "steps_per_update", None)
    if steps is not None:
        return steps
    most = span(topology.collectors)[1]
    return topology.num_envs // most * getattr(topology, "rollouts_per_batch", most) * algorithm.rollout_length
