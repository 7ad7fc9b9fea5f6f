"""The command line's options on top of a config, read by tyro: flat names, suggestions, exit status 2 on a mistake.

Options of the run, the algorithm and the topology stand beside each other (`--learning-rate`, `--num-envs`); those of the
network and the replay keep a prefix (`--network.core`). The help shows them in these groups, with the values for this
environment.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rookery import foreign_names, references, systems
from rookery.ranges import Range, Seed
from rookery.run import described, help_page
from rookery.run.config import Config, ConfigError, groups, refuse
from rookery.run.flags import Flags
from rookery.run.general_options import described_in_general, general_options
from rookery.run.words import value_of

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


@NUMBERS.primitive_rule
def _none(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Accept `none`, as the help says it, beside Python's None."""
    if info.type is not type(None):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="none", instance_from_str=lambda words: _one_of(NO_VALUE, words[0]),
        is_instance=lambda value: value is None, str_from_instance=lambda _: ["none"],
    )  # fmt: skip


@NUMBERS.primitive_rule
def _yes_or_no(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Accept yes and no for a switch that is left to the run where nobody says (none)."""
    if info.type not in (bool | None, typing.Optional[bool]):  # noqa: UP045 — to tyro these are two types
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="yes|no|none", instance_from_str=lambda words: _one_of(YES_NO | NO_VALUE, words[0]),
        is_instance=lambda value: value is None or isinstance(value, bool), str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


NO_VALUE: dict[str, bool | None] = {"none": None}
YES_NO: dict[str, bool | None] = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def _one_of(known: dict[str, bool | None], word: str) -> bool | None:
    if word.lower() not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
    return known[word.lower()]


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
    return flat | inner | {"env", "topology", "algorithm", "network", "env_options"}


def refuse_foreign(args: Sequence[str], base: Config, flags: Any) -> None:
    """Answer all flags that are another library's names with ours. Raises ConfigError."""
    known = names(base, flags)
    typed = [word[2:].partition("=")[0].replace("-", "_") for word in args if word.startswith("--")]
    told = (foreign_names.option(name, known, flags=True, owner=base.system) for name in typed)
    refuse([answer for answer in dict.fromkeys(told) if answer])


def parse(prog: str, args: Sequence[str], base: Config, flags: Any = Flags) -> tuple[Config, dict[str, Any]]:
    """Parse `args` on top of `base`: the config, and what is no part of one (`flags`: a dataclass of it)."""
    refuse_foreign(args, base, flags)
    titled = {"run": base.run, _class_name(base.algorithm): base.algorithm, _class_name(base.topology): base.topology}
    topology = _topology_flag(base)
    if {"-h", "--help"} & set(args):
        print(_page(prog, base, topology, titled, flags))
        raise SystemExit(0)
    fields: list[Any] = [*general_options(base.env_name, topology, base.env_options)]
    fields.append(("flags", Annotated[flags, tyro.conf.OmitArgPrefixes], flags()))
    for title, part in titled.items():
        shown = _shown(part)
        fields.append((title, Annotated[type(shown), tyro.conf.OmitArgPrefixes], shown))
    nested = {  # a dataclass inside one is a group with a prefix
        f.name: (title, getattr(part, f.name))
        for title, part in titled.items()
        for f in dataclasses.fields(part)
        if dataclasses.is_dataclass(getattr(part, f.name))
    }
    for name, (_, inner) in nested.items():
        fields.append((name, type(shown := _shown(inner)), shown))
    options = dataclasses.make_dataclass(
        "Options", [(n, t, dataclasses.field(default=d)) for n, t, d in fields], frozen=True, kw_only=True
    )
    chosen: Any = tyro.cli(options, args=args, prog=prog, description=_description(base), registry=NUMBERS)
    # `base` was built with the environment, the network, the algorithm and (by `train`) the topology that the words name
    named = references.absolute(chosen.topology) if references.is_reference(chosen.topology) else chosen.topology
    if named not in (topology, systems.flag_of(_class_name(base.topology))):
        raise ConfigError(f"--topology {chosen.topology}: a run keeps its own, which is {_class_name(base.topology)}")
    theirs: dict[str, dict[str, Any]] = {title: {} for title in titled}
    for name, (title, inner) in nested.items():
        theirs[title][name] = type(inner)(**_values(getattr(chosen, name)))
    parts = [type(part)(**_values(getattr(chosen, title)) | theirs[title]) for title, part in titled.items()]
    changed = dict(zip(("run", "algorithm", "topology"), parts))
    env_options = base.env_options | dict(map(_env_option, chosen.env_options))
    asked = dataclasses.replace(base, env_options=env_options, **changed)
    return asked.settled(), _values(chosen.flags)  # once, for all that follows: it may have to make an environment


def _page(prog: str, base: Config, topology: str, titled: dict[str, Any], flags: Any) -> str:
    """Write the help from the parts themselves: those of the user's are in no table."""
    general = described_in_general(base.env_name, topology, base.env_options, flags)
    parts = [(title, described.of(type(part)), described.plain(part)) for title, part in titled.items()]
    return help_page.of_groups(prog, _description(base), general, parts)


def _shown(part: Any) -> Any:
    """Rebuild `part` without nested groups, whose options are beside its own, under a prefix."""
    shown = []
    for name, kind in typing.get_type_hints(type(part)).items():
        if name in (fields := {f.name for f in dataclasses.fields(part)}):
            plain = not dataclasses.is_dataclass(kind) and kind is not Any  # Any: what no command line can say, as a function
            kind = kind if plain else Annotated[kind, tyro.conf.Suppress]
            shown.append((name, kind, dataclasses.field(default=getattr(part, name))))
    assert len(shown) == len(fields)
    made = dataclasses.make_dataclass(_class_name(part), shown, bases=(type(part),), frozen=True, kw_only=True)
    return made(**_values(part))


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}


def _topology_flag(base: Config) -> str:
    return base.own_names.get("topology") or systems.flag_of(_class_name(base.topology))


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
    """Play the policy of a run, or of a checkpoint, on seeded environments of its own, and report its returns."""

    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: Episodes = 20
    """One in each of so many environments."""
    seed: Seed = 1
    """Of the environments."""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions as at the end of the training, instead of taking the best ones."""
    render: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the episodes, as `rookery watch` does, one after another in one environment: other episodes than without."""
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
