"""What `--help` says of the options of a dataclass: what each takes, what it is, and its value.

Options of Rookery's own algorithms and topologies are read from `options.json`, which is made of the classes themselves
(`python tests/run/test_option_files.py` writes it, and that test holds it up to date): their modules import jax, which takes
longer than anybody wants to wait for a help text. `of` reads any other dataclass, a user's own for instance.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.ranges import range_of
from rookery.run.glossary import docstrings, meaning

TABLE = Path(__file__).with_name("options.json")


@dataclass(frozen=True, kw_only=True)
class Described:
    """An option, for people."""

    name: str  # as a field is called
    takes: str = ""  # "NUM≥0", "auto|mlp"; "" of a switch
    says: str = ""
    default: Any = None  # as plain values: of a group a dict
    optional: bool = False  # may be "none"
    switch: bool = False
    positional: bool = False
    group: str | None = None  # the class whose options these are, under a prefix
    hint: str | None = None  # what stands in place of "(default: ...)"


@dataclass(frozen=True, kw_only=True)
class DescribedPart:
    """The options of one dataclass."""

    says: str
    options: tuple[Described, ...]
    groups: Mapping[str, DescribedPart] = field(default_factory=dict)  # by the class's name


@functools.cache
def table() -> dict[str, DescribedPart]:
    """Read what is known of Rookery's own parts, by the class's name."""
    read = json.loads(TABLE.read_text(encoding="utf-8"))
    plain = {name: tuple(Described(**option) for option in part["options"]) for name, part in read.items()}
    bare = {name: DescribedPart(says=read[name]["says"], options=options) for name, options in plain.items()}
    inner = {name: {o.group: bare[o.group] for o in options if o.group} for name, options in plain.items()}
    return {name: dataclasses.replace(part, groups=inner[name]) for name, part in bare.items()}


def of(kind: Any) -> DescribedPart:
    """Describe a dataclass by its fields, their types and their docstrings."""
    hints, said = typing.get_type_hints(kind, include_extras=True), docstrings(kind)
    options, groups = [], {}
    for f in dataclasses.fields(kind):
        noted = hints[f.name]
        bare = _bare(noted)
        if bare is Any:  # what no command line can say, as a function
            continue
        if f.default is not dataclasses.MISSING:
            default = f.default
        else:
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else None
        if dataclasses.is_dataclass(bare):
            group = getattr(bare, "__name__", str(bare))
            groups[group] = of(bare)
            options.append(Described(name=f.name, group=group, default=plain(default)))
            continue
        options.append(annotated(f.name, noted, plain(default), said.get(f.name) or meaning(kind, f.name) or ""))
    return DescribedPart(says=(kind.__doc__ or "").strip().partition("\n\n")[0], options=tuple(options), groups=groups)


def annotated(name: str, noted: Any, default: Any, says: str = "") -> Described:
    """Describe one option by its type; notes of tyro's (a metavar, a text of its own) come before what the type says."""
    notes = getattr(noted, "__metadata__", ())
    arg = next((note for note in notes if hasattr(note, "help_behavior_hint")), None)
    bare = _bare(noted)
    kinds = typing.get_args(bare) if _is_union(bare) else (bare,)
    return Described(
        name=name,
        takes=(getattr(arg, "metavar", None) or takes(noted)) if bare is not bool else "",
        says=" ".join((getattr(arg, "help", None) or says).split()),
        default=default,
        optional=type(None) in kinds,
        switch=bare is bool,
        positional=any("ositional" in repr(note) for note in notes),
        hint=getattr(arg, "help_behavior_hint", None),
    )


def takes(kind: Any) -> str:
    """Say what is typed after an option of this type, its range included: NUM≥0, auto|mlp, INT ..."""
    bare, allowed = _bare(kind), range_of(kind)
    args = typing.get_args(bare)
    if _is_union(bare):
        words = [takes(arg) or "yes|no" for arg in args if arg is not type(None)]
        return "|".join(dict.fromkeys(words)) + (allowed.short if allowed and range_of(args[0]) is None else "")
    if typing.get_origin(bare) is typing.Literal:
        return "|".join(map(str, args))
    if typing.get_origin(bare) in (tuple, list):
        return f"{takes(args[0])} ..." if args[-1] is Ellipsis or len(args) == 1 else " ".join(map(takes, args))
    word = {int: "INT", float: "NUM", bool: "", str: "TEXT"}.get(bare, getattr(bare, "__name__", str(bare)).upper())
    return word + (allowed.short if allowed and word else "")


def plain(value: Any) -> Any:
    """Convert a default to what JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def to_json(parts: Mapping[str, DescribedPart]) -> str:
    """Write the table: of each option what is not as in every other."""
    usual = {f.name: f.default for f in dataclasses.fields(Described)}
    text = functools.partial(json.dumps, ensure_ascii=False)
    rows = []
    for name, part in sorted(parts.items()):
        options = [{k: v for k, v in dataclasses.asdict(o).items() if v != usual[k]} for o in part.options]
        lines = ",\n".join(f"    {text(option)}" for option in options)
        rows.append(f'  {text(name)}: {{"says": {text(part.says)}, "options": [\n{lines}\n  ]}}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _bare(kind: Any) -> Any:
    return kind.__origin__ if hasattr(kind, "__metadata__") else kind


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union)
