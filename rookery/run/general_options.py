"""Options of every system that are no field of its parts: which environment, how the work is cut, code of the user's own.

Apart from `options`, so that the help, which needs no config, is printed without importing what makes one.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from rookery.run import described
from rookery.run.words import text

OWN = "One of your own: FILE.py:NAME or MODULE:NAME."


def general_options(env: str, topology: str, env_options: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the options of every system that are no field of its parts: name, type and default. env_options: those that a
    preset, or the run that is resumed, gives already."""
    given = " ".join(f"{name}={text(value)}" for name, value in env_options.items())
    hint = f"(default: {given})" if given else ""
    return [
        ("env", Annotated[str, tyro.conf.arg(metavar="ID", help="`rookery list envs` shows some; or FILE.py:NAME.")], env),
        ("topology", Annotated[str, tyro.conf.arg(
            metavar="NAME", help="How the work is cut; `rookery list matrix` shows what goes together.")], topology),
        ("own_algorithm", Annotated[str | None, tyro.conf.arg(
            name="algorithm", metavar="NAME", help=OWN, help_behavior_hint="")], None),
        ("own_network", Annotated[str | None, tyro.conf.arg(
            name="network", metavar="NAME", help=OWN, help_behavior_hint="")], None),
        ("env_options", Annotated[tuple[str, ...], tyro.conf.arg(
            metavar="NAME=VALUE ...", help="Handed to the environment.", help_behavior_hint=hint)], ()),
    ]  # fmt: skip


def described_in_general(env: str, topology: str, env_options: dict[str, Any], flags: Any) -> list[described.Described]:
    """Describe the options that belong to no part of a system. flags: a dataclass of those that belong to the command."""
    general = [
        described.annotated(name.removeprefix("own_"), kind, default)
        for name, kind, default in general_options(env, topology, env_options)
    ]
    return general + [dataclasses.replace(o, hint="") if o.switch else o for o in described.of(flags).options]
