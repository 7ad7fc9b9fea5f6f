"""Compatibility of agents and topologies: which agents a topology can drive, and the counts that follow from both.

Functions of a topology; a topology takes those that hold for it as methods of its own.
"""

from __future__ import annotations

from typing import Any

from rookery.runtime.roster import span
from rookery.types import Agent, Spec


def fixed_rollouts(topology: Any, agent: Agent, spec: Spec) -> str | None:
    """Refuse an agent that learns from whole episodes: rollouts have a fixed length."""
    if not agent.needs.whole_episodes:
        return None
    return "it learns from the returns of whole episodes, and rollouts are cut at a fixed length: use Evolution"


def rows_of(algorithm: Any) -> int:
    """Return the rollout length of an algorithm; one without learns from whole episodes and is refused with its agent."""
    return getattr(algorithm, "rollout_length", 1)


def steps_per_batch(topology: Any, algorithm: Any) -> float:
    """Count the environment steps per update: those that an algorithm with a replay asks for, else the rows of a batch."""
    steps = getattr(algorithm, "steps_per_update", None)
    if steps is not None:
        return steps
    most = span(topology.collectors)[1]
    return topology.num_envs // most * getattr(topology, "rollouts_per_batch", most) * rows_of(algorithm)


def shipped_gradients(agent: Agent, spec: Spec) -> str | None:
    """Refuse an agent without gradients that one worker could send and another apply."""
    if agent.needs.whole_episodes:
        return "it learns from the returns of whole episodes and has no gradients: use Evolution"
    if agent.gradients is None or agent.apply is None:
        return (
            "it has no gradients that one worker could send and another apply, because an update is several steps on one "
            "batch: use Sync; or A2C instead of PPO, or --gradient-steps 1 where that is why"
        )
    return None
