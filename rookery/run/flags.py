"""What is typed beside the options of a config, and is no part of one: it says how the command works, not what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rookery.ranges import Range

Switch = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Of every command."""

    json: Switch = False
    """One JSON line at the end instead of the display."""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags:
    """Of `rookery resume`, which reads `trust` before the rest: what it allows is in the config that the options change."""

    trust: Switch = False
    """Import what the run's config names, though you have not signed it."""
    json: Switch = False
    """One JSON line at the end instead of the display."""


@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """Of commands that start from a system: the options may stand in a file."""

    config: str | None = None
    """File of options, TOML or JSON, or a run whose options are taken; what is typed wins."""
    json: Switch = False
    """One JSON line at the end instead of the display."""


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Of `rookery train`."""

    config: str | None = None
    """File of options, TOML or JSON, or a run whose options are taken; what is typed wins."""
    resume: Literal["auto"] | None = None
    """auto: go on where the run of this very command stands; start it where there is none."""
    seeds: str | None = None
    """Train several: 5 (seeds 0 to 4) or 0,3,7. Each is a run in the directory of the group, --run."""
    jobs: Annotated[int, Range(1, 256)] | None = None
    """Seeds that are trained side by side; None: as many as there are cores for."""
    json: Switch = False
    """One JSON line at the end instead of the display."""
