"""The command line's options on top of a config, read by tyro: flat names, suggestions, exit status 2 on a mistake.

Options of the run, the algorithm and the topology stand beside each other (`--learning-rate`, `--num-envs`); those of the
network and the replay keep a prefix (`--network.core`). The help shows them in these groups, with the values for this
environment.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rookery import references, systems
from rookery.ranges import Range, Seed, range_of
from rookery.run.config import Config, ConfigError, text, value_of
from rookery.run.glossary import meaning

TRUST = "Import what the run's config names, though you have not signed it."
OWN = "One of your own: FILE.py:NAME or MODULE:NAME."
NUMBERS = tyro.constructors.ConstructorRegistry()


@NUMBERS.primitive_rule
def _whole_numbers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Accept whole numbers written as `1e5`."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool), str_from_instance=lambda n: [str(n)],
    )  # fmt: skip


def whole_number(word: str) -> int:
    """Parse a whole number, also one written as 1e5; ValueError where it is none."""
    try:
        return int(word)
    except ValueError:
        value = float(word)  # raises the same for what is no number at all
        if not (value.is_integer() and abs(value) < EXACT):
            raise ValueError(f"{word!r} is no whole number") from None
        return int(value)


EXACT = 2**53  # whole numbers below it are floats without rounding


def parse(prog: str, args: Sequence[str], base: Config, *, resumes: bool = False) -> tuple[Config, dict[str, bool]]:
    """Parse `args` on top of `base`: the config, and the flags that are no part of one. resumes: a run, with --trust."""
    explained = bool({"-h", "--help"} & set(args))
    groups = {"run": base.run, _class_name(base.algorithm): base.algorithm, _class_name(base.topology): base.topology}
    fields: list[Any] = [
        ("env", Annotated[str, tyro.conf.arg(
            metavar="ID", help="`rookery list envs` shows some; or FILE.py:NAME.")], base.env_name),
        ("topology", Annotated[str, tyro.conf.arg(
            metavar="NAME", help="How the work is cut; `rookery list matrix` shows what goes together.")],
            _topology_flag(base)),
        ("own_algorithm", Annotated[str | None, tyro.conf.arg(
            name="algorithm", metavar="NAME", help=OWN, help_behavior_hint="")], None),
        ("own_network", Annotated[str | None, tyro.conf.arg(
            name="network", metavar="NAME", help=OWN, help_behavior_hint="")], None),
        ("env_options", Annotated[tuple[str, ...], tyro.conf.arg(
            metavar="[NAME=VALUE ...]", help="Handed to the environment.", help_behavior_hint=_env_hint(base))], ()),
        ("json", Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(
            help="One JSON line at the end instead of the display.", help_behavior_hint="")], False),
    ]  # fmt: skip
    if resumes:  # the command has read it before: what it allows is in `base`
        fields.append(("trust", Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(
            help=TRUST, help_behavior_hint="")], False))  # fmt: skip
    for title, part in groups.items():
        shown = _shown(part, explained)
        fields.append((title, Annotated[type(shown), tyro.conf.OmitArgPrefixes], shown))
    nested = {  # a dataclass inside one is a group with a prefix
        f.name: (title, getattr(part, f.name))
        for title, part in groups.items()
        for f in dataclasses.fields(part)
        if dataclasses.is_dataclass(getattr(part, f.name))
    }
    for name, (_, inner) in nested.items():
        fields.append((name, type(shown := _shown(inner, explained)), shown))
    options = dataclasses.make_dataclass(
        "Options", [(n, t, dataclasses.field(default=d)) for n, t, d in fields], frozen=True, kw_only=True
    )
    chosen: Any = tyro.cli(options, args=args, prog=prog, description=_description(base), registry=NUMBERS)
    # `base` was built with the environment, the network, the algorithm and (by `train`) the topology that the words name
    named = references.absolute(chosen.topology) if references.is_reference(chosen.topology) else chosen.topology
    if named not in (_topology_flag(base), systems.flag_of(_class_name(base.topology))):
        raise ConfigError(f"--topology {chosen.topology}: a run keeps its own, which is {_class_name(base.topology)}")
    theirs: dict[str, dict[str, Any]] = {title: {} for title in groups}
    for name, (title, inner) in nested.items():
        theirs[title][name] = type(inner)(**_values(getattr(chosen, name)))
    parts = [type(part)(**_values(getattr(chosen, title)) | theirs[title]) for title, part in groups.items()]
    changed = dict(zip(("run", "algorithm", "topology"), parts))
    env_options = base.env_options | dict(map(_env_option, chosen.env_options))
    asked = dataclasses.replace(base, env_options=env_options, **changed)
    return asked.settled(), {"json": chosen.json}  # once, for all that follows: it may have to make an environment


def _shown(part: Any, explained: bool) -> Any:
    """Rebuild `part` as the help shows it: without nested groups, with ranges in the metavars, and no "default: None".
    explained: what a field does not say itself is looked up in the glossary."""
    shown = []
    plain, noted = (typing.get_type_hints(type(part), include_extras=extras) for extras in (False, True))
    for f in dataclasses.fields(part):
        kind, allowed = plain[f.name], range_of(noted[f.name])
        if dataclasses.is_dataclass(kind):
            kind = Annotated[kind, tyro.conf.Suppress]
        elif typing.get_origin(kind) in (types.UnionType, typing.Union) and type(None) in (args := typing.get_args(kind)):
            names = [_word(arg) for arg in args if arg is not type(None)]
            value = getattr(part, f.name)
            hint = "" if value is None else f"(default: {value}; or None)"
            shorter = allowed.short if allowed else ""
            kind = Annotated[kind, tyro.conf.arg(metavar="|".join(names) + shorter, help_behavior_hint=hint)]
        elif allowed is not None and kind in (int, float):
            kind = Annotated[kind, tyro.conf.arg(metavar=_word(kind) + allowed.short)]
        if explained and (said := meaning(type(part), f.name)) is not None:
            kind = Annotated[kind, tyro.conf.arg(help=said)]
        shown.append((f.name, kind, dataclasses.field(default=getattr(part, f.name))))
    doc = {"__doc__": type(part).__doc__}
    made = dataclasses.make_dataclass(
        _class_name(part), shown, bases=(type(part),), namespace=doc, frozen=True, kw_only=True
    )
    return made(**_values(part))


def _word(kind: Any) -> str:
    """Return the metavar of a type in the help; a range follows it, so it is short."""
    return "NUM" if kind is float else getattr(kind, "__name__", str(kind)).upper()


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}


def _topology_flag(base: Config) -> str:
    return base.own_names.get("topology") or systems.flag_of(_class_name(base.topology))


def _env_hint(base: Config) -> str:
    """Show the environment options that a preset, or the run that is resumed, gives already."""
    said = " ".join(f"{name}={text(value)}" for name, value in base.env_options.items())
    return f"(default: {said})" if said else ""


def _env_option(item: str) -> tuple[str, Any]:
    """Split `name=value`."""
    name, equals, word = item.partition("=")
    if not equals or not name:
        raise ConfigError(f"--env-options takes NAME=VALUE, not {item!r}")
    return name.replace("-", "_"), value_of(word)


def _description(base: Config) -> str:
    entry = systems.SYSTEMS.get(base.system)
    return f"{base.system} on {base.env_name}" + (f": {entry.summary} ({entry.paper})." if entry else ".")


def _class_name(part: Any) -> str:
    return type(part).__name__


# ------------------------------------------------------------------------------------------------- eval and record


Episodes = Annotated[int, Range(1, 10_000)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Play the greedy policy of a run, or of a checkpoint, on seeded environments of its own."""

    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: Episodes = 20
    """One in each of so many environments."""
    seed: Seed = 1
    """Of the environments."""
    runs: str = "runs"
    """The directory that holds the runs."""
    trust: bool = False
    """Import the code that the run's config names, though you have not signed it."""
    json: bool = False
    """One JSON line instead of the text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Play the greedy policy of a run, or of a checkpoint, and write the episodes for `--demonstrations FILE`."""

    out: str
    """The directory that is written."""
    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: Episodes = 10
    """One in each of so many environments."""
    best: Episodes | None = None
    """Keep only so many of them, those with the highest returns."""
    seed: Seed = 1
    """Of the environments."""
    runs: str = "runs"
    """The directory that holds the runs."""
    trust: bool = False
    """Import the code that the run's config names, though you have not signed it."""
    json: bool = False
    """One JSON line instead of the text."""
