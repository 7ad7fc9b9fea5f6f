"""The command line's options on top of a config, read by tyro: flat names, suggestions, exit status 2 on a mistake.

Options of the run, the algorithm and the topology stand beside each other (`--learning-rate`, `--num-envs`); those of the
network and the replay keep a prefix (`--network.core`). The help shows them in these groups, with the values for this
environment.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rookery import systems
from rookery.run.config import Config, ConfigError, text


def parse(prog: str, args: Sequence[str], base: Config) -> tuple[Config, dict[str, bool]]:
    """`base` with the options in `args`, and the flags that are no part of a config: json."""
    groups = {"run": base.run, _class_name(base.algorithm): base.algorithm, _class_name(base.topology): base.topology}
    fields: list[Any] = [
        ("env", Annotated[str, tyro.conf.arg(metavar="ID", help="`rookery list envs` shows some.")], base.env_name),
        ("topology", Annotated[str, tyro.conf.arg(
            metavar="NAME", help="How the work is cut; `rookery list systems` shows what goes together.")],
            systems.flag_of(_class_name(base.topology))),
        ("env_options", Annotated[tuple[str, ...], tyro.conf.arg(
            metavar="[NAME=VALUE ...]", help="Handed to the environment.", help_behavior_hint=_env_hint(base))], ()),
        ("json", Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(
            help="One JSON line at the end instead of the display.", help_behavior_hint="")], False),
    ]  # fmt: skip
    for title, part in groups.items():
        shown = _shown(part)
        fields.append((title, Annotated[type(shown), tyro.conf.OmitArgPrefixes], shown))
    nested = {  # a dataclass inside one is a group with a prefix
        f.name: (title, getattr(part, f.name))
        for title, part in groups.items()
        for f in dataclasses.fields(part)
        if dataclasses.is_dataclass(getattr(part, f.name))
    }
    for name, (_, inner) in nested.items():
        fields.append((name, type(shown := _shown(inner)), shown))
    options = dataclasses.make_dataclass(
        "Options", [(n, t, dataclasses.field(default=d)) for n, t, d in fields], frozen=True, kw_only=True
    )
    chosen: Any = tyro.cli(options, args=args, prog=prog, description=_description(base))
    if chosen.topology != systems.flag_of(_class_name(base.topology)):  # `train` has built `base` with the one it was given
        raise ConfigError(f"--topology {chosen.topology}: a run keeps its own, which is {_class_name(base.topology)}")
    theirs: dict[str, dict[str, Any]] = {title: {} for title in groups}
    for name, (title, inner) in nested.items():
        theirs[title][name] = type(inner)(**_values(getattr(chosen, name)))
    parts = [type(part)(**_values(getattr(chosen, title)) | theirs[title]) for title, part in groups.items()]
    changed = dict(zip(("run", "algorithm", "topology"), parts))
    env_options = base.env_options | dict(map(_env_option, chosen.env_options))
    return dataclasses.replace(base, env=chosen.env, env_options=env_options, **changed), {"json": chosen.json}


def _shown(part: Any) -> Any:
    """`part` as the help shows it: without the network, and None only where it is a choice."""
    shown = []
    for f, kind in ((f, typing.get_type_hints(type(part))[f.name]) for f in dataclasses.fields(part)):
        if dataclasses.is_dataclass(kind):
            kind = Annotated[kind, tyro.conf.Suppress]
        elif isinstance(kind, types.UnionType) and type(None) in kind.__args__:
            names = [arg.__name__.upper() for arg in kind.__args__ if arg is not type(None)]
            value = getattr(part, f.name)
            hint = "" if value is None else f"(default: {value}; or None)"
            kind = Annotated[kind, tyro.conf.arg(metavar="|".join(names), help_behavior_hint=hint)]
        shown.append((f.name, kind, dataclasses.field(default=getattr(part, f.name))))
    doc = {"__doc__": type(part).__doc__}
    made = dataclasses.make_dataclass(
        _class_name(part), shown, bases=(type(part),), namespace=doc, frozen=True, kw_only=True
    )
    return made(**_values(part))


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}


def _env_hint(base: Config) -> str:
    """What is handed to it already, by a preset or by the run that is resumed."""
    said = " ".join(f"{name}={text(value)}" for name, value in base.env_options.items())
    return f"(default: {said})" if said else ""


def _env_option(item: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON if it is some."""
    name, equals, text = item.partition("=")
    if not equals or not name:
        raise ConfigError(f"--env-options takes NAME=VALUE, not {item!r}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return name.replace("-", "_"), value


def _description(base: Config) -> str:
    entry = systems.SYSTEMS.get(base.system)
    return f"{base.system} on {base.env_name}" + (f": {entry.summary} ({entry.paper})." if entry else ".")


def _class_name(part: Any) -> str:
    return type(part).__name__
