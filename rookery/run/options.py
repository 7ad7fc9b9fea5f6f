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

from rookery import foreign_names, systems
from rookery.ranges import Range, Seed, range_of
from rookery.run.config import Config, ConfigError, groups, refuse, text, value_of
from rookery.run.flags import Flags, listed
from rookery.run.glossary import meaning

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


def names(config: Config, flags: Any = Flags) -> set[str]:
    """List the options of a config by name, nested ones as `network.core`, and the flags beside it."""
    parts = {"algorithm": config.algorithm, "topology": config.topology, "run": config.run}
    flat = {f.name for part in (*parts.values(), flags) for f in dataclasses.fields(part)}
    inner = {f"{group}.{f.name}" for group, part in groups(parts).items() for f in dataclasses.fields(part)}
    return flat | inner | {"env", "topology", "env_options"}


def refuse_foreign(args: Sequence[str], base: Config, flags: Any) -> None:
    """Answer all flags that are another library's names with ours. Raises ConfigError."""
    known = names(base, flags)
    typed = [word[2:].partition("=")[0].replace("-", "_") for word in args if word.startswith("--")]
    told = (foreign_names.option(name, known, flags=True, owner=base.system) for name in typed)
    refuse([answer for answer in dict.fromkeys(told) if answer])


def parse(prog: str, args: Sequence[str], base: Config, flags: Any = Flags) -> tuple[Config, dict[str, Any]]:
    """Parse `args` on top of `base`: the config, and what is no part of one (`flags`: a dataclass of it)."""
    refuse_foreign(args, base, flags)
    explained = bool({"-h", "--help"} & set(args))
    titled = {"run": base.run, _class_name(base.algorithm): base.algorithm, _class_name(base.topology): base.topology}
    fields: list[Any] = [
        ("env", Annotated[str, tyro.conf.arg(metavar="ID", help="See `rookery list envs`.")], base.env_name),
        ("topology", Annotated[str, tyro.conf.arg(
            metavar="NAME", help="How the work is cut; `rookery list matrix` shows what goes together.")],
            systems.flag_of(_class_name(base.topology))),
        ("env_options", Annotated[tuple[str, ...], tyro.conf.arg(
            metavar="[NAME=VALUE ...]", help="Handed to the environment.", help_behavior_hint=_env_hint(base))], ()),
        *listed(flags),
    ]  # fmt: skip
    for title, part in titled.items():
        shown = _shown(part, explained)
        fields.append((title, Annotated[type(shown), tyro.conf.OmitArgPrefixes], shown))
    nested = {  # a dataclass inside one is a group with a prefix
        f.name: (title, getattr(part, f.name))
        for title, part in titled.items()
        for f in dataclasses.fields(part)
        if dataclasses.is_dataclass(getattr(part, f.name))
    }
    for name, (_, inner) in nested.items():
        fields.append((name, type(shown := _shown(inner, explained)), shown))
    options = dataclasses.make_dataclass(
        "Options", [(n, t, dataclasses.field(default=d)) for n, t, d in fields], frozen=True, kw_only=True
    )
    chosen: Any = tyro.cli(options, args=args, prog=prog, description=_description(base), registry=NUMBERS)
    if chosen.topology != systems.flag_of(_class_name(base.topology)):  # `train` has built `base` with the one it was given
        raise ConfigError(f"--topology {chosen.topology}: a run keeps its own, which is {_class_name(base.topology)}")
    theirs: dict[str, dict[str, Any]] = {title: {} for title in titled}
    for name, (title, inner) in nested.items():
        theirs[title][name] = type(inner)(**_values(getattr(chosen, name)))
    parts = [type(part)(**_values(getattr(chosen, title)) | theirs[title]) for title, part in titled.items()]
    changed = dict(zip(("run", "algorithm", "topology"), parts))
    env_options = base.env_options | dict(map(_env_option, chosen.env_options))
    asked = dataclasses.replace(base, env=chosen.env, env_options=env_options, **changed)
    beside = {name: getattr(chosen, name) for name, *_ in listed(flags)}
    return asked.settled(), beside  # once, for all that follows: it may have to make an environment


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
    json: bool = False
    """One JSON line instead of the text."""
