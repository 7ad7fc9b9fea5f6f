"""What is typed beside the options of a config, and is no part of one: it says how the command works, not what is trained."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Annotated

import tyro

arg = tyro.conf.arg
Json = Annotated[
    tyro.conf.FlagCreatePairsOff[bool], arg(help="One JSON line at the end instead of the display.", help_behavior_hint="")
]
File = Annotated[
    str | None, arg(metavar="FILE", help="Options in TOML or JSON, or those of a run.", help_behavior_hint="")
]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Of every command."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ResumeFlags:
    """Of `rookery resume`, which reads `trust` before the rest: what it allows is in the config that the options change."""

    trust: Annotated[
        tyro.conf.FlagCreatePairsOff[bool],
        arg(help="Import what the run's config names, though you have not signed it.", help_behavior_hint=""),
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """Of commands that start from a system: the options may stand in a file."""

    config: File = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Of `rookery train`."""

    config: File = None
    resume: Annotated[
        typing.Literal["auto"] | None, arg(metavar="auto", help="Go on with this very run, or start it.", help_behavior_hint="")
    ] = None
    seeds: Annotated[
        str | None, arg(metavar="N|A,B,...", help="Train seeds 0 to N-1, or those, as a group.", help_behavior_hint="")
    ] = None
    jobs: Annotated[
        int | None, arg(metavar="N", help="So many seeds side by side; else as the cores carry.", help_behavior_hint="")
    ] = None
    json: Json = False
