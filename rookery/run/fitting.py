"""Periods and batches that fit the run: what an algorithm repeats, anneals or gathers is held against how long it will train.

A period of a paper belongs to that paper's hundreds of millions of steps. In a run that makes fewer updates than the period,
the target network would never be copied, and exploration never end. Likewise a batch that suits millions of steps leaves a
run of a hundred thousand with too few updates to learn in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

COPIES = 50  # of the target network, at least, however short the run
ANNEALED = 10  # epsilon is annealed over the first tenth of a run where nobody said over how much
HALF = 2  # and over no more than half of it
RANDOM, RANDOM_STEPS = 20, 10_000  # random actions for the first twentieth of a run, at most for so many steps
UPDATES = 3_000  # of a run, at least, as far as rollouts can be made shorter for it


def settled(algorithm: Any, *, total_steps: int, steps_per_row: float, separate: bool) -> Any:
    """Choose the rollout length that an algorithm leaves to the run (None). steps_per_row: environment steps of a row.

    Where policy and value share a network (not `separate`) it is the longest: small batches are too noisy for one that takes
    a single step on each (on a board of 8 x 8 the policy collapses), and gradients of a recurrent one reach no further.
    """
    shortest, longest = algorithm.rollout_lengths
    rows = round(total_steps / (UPDATES * steps_per_row)) if separate else longest
    return dataclasses.replace(algorithm, rollout_length=min(longest, max(shortest, rows)))


def chooses_length(algorithm: Any) -> bool:
    """Tell whether an algorithm leaves the length of its rollouts to the run, where nobody says."""
    return hasattr(algorithm, "rollout_lengths")


def has_core(options: Mapping[str, Any]) -> bool:
    """Tell whether options ask for a recurrent core, which learns nothing from before its rollout.

    A2C by asynchronous gradients or in a ring, with the published 5 rows: 0.4 on cue-recall, and 1.0 with 32."""
    network = options.get("network")
    core = network.get("core", "none") if isinstance(network, Mapping) else getattr(network, "core", "none")
    return core != "none"


def fitted(algorithm: Any, *, total_steps: int, num_updates: int) -> Any:
    """Shorten the target period and the epsilon schedule of an algorithm, where the run is too short for them."""
    changes: dict[str, Any] = {}
    if (period := getattr(algorithm, "target_period", None)) is not None:
        steps = num_updates * getattr(algorithm, "gradient_steps", 1)
        changes["target_period"] = max(1, min(period, steps // COPIES))
    if hasattr(algorithm, "epsilon_steps"):
        asked = algorithm.epsilon_steps
        changes["epsilon_steps"] = total_steps // ANNEALED if asked is None else min(asked, total_steps // HALF)
    if getattr(algorithm, "random_steps", 0) is None:
        changes["random_steps"] = max(1, min(RANDOM_STEPS, total_steps // RANDOM))
    return dataclasses.replace(algorithm, **changes) if changes else algorithm


def has_own_loss(algorithm: Any) -> bool:
    """Tell whether an algorithm was given a loss of the user's own (see algorithms/own_loss.py)."""
    names = {field.name for field in dataclasses.fields(algorithm)} if dataclasses.is_dataclass(algorithm) else set()
    return "loss" in names and callable(algorithm.loss)
