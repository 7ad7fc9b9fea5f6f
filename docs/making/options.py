"""Options as rows of Markdown: name, default, what it takes, what it means; all read from where they are declared."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from typing import Any, NamedTuple

from rookery.ranges import range_of
from rookery.run.glossary import MEANINGS


class Option(NamedTuple):
    name: str  # as in Python: learning_rate, network.core
    default: str
    takes: str
    meaning: str

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(part: Any, prefix: str = "") -> list[Option]:
    """List the options of a dataclass's instance, without those of groups inside it."""
    kinds, said = typing.get_type_hints(type(part), include_extras=True), explained(type(part))
    plain = typing.get_type_hints(type(part))
    found = []
    for field in dataclasses.fields(part):
        if not dataclasses.is_dataclass(plain[field.name]):
            meaning = said.get(field.name) or MEANINGS.get(field.name, "")
            value = getattr(part, field.name)
            found.append(Option(f"{prefix}{field.name}", shown(value), takes(kinds[field.name]), meaning))
    return found


def groups_of(part: Any) -> dict[str, Any]:
    """Find the groups inside a dataclass's instance: name -> the inner instance."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if dataclasses.is_dataclass(getattr(part, f.name))}


def table(options: list[Option]) -> str:
    rows = ["| option | default | takes | meaning |", "|---|---|---|---|"]
    rows += [f"| `{o.flag}` | {o.default} | {o.takes} | {cell(o.meaning)} |" for o in options]
    return "\n".join(rows)


def shown(value: Any) -> str:
    """Write a default as it is typed."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return f"`{' '.join(map(str, value))}`" if value else "(nothing)"
    if isinstance(value, int):
        return f"{value:,}"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def takes(kind: Any) -> str:
    """Say what an option takes: its choices, or the range of its numbers."""
    plain = kind.__origin__ if hasattr(kind, "__metadata__") else kind
    if typing.get_origin(plain) in (types.UnionType, typing.Union):
        parts = [takes(arg) for arg in typing.get_args(plain) if arg is not type(None)]
        return " or ".join(dict.fromkeys(filter(None, parts))) + (", or none" if type(None) in typing.get_args(plain) else "")
    if typing.get_origin(plain) is typing.Literal:
        return " ".join(f"`{choice}`" for choice in typing.get_args(plain))
    if plain is bool:
        return "yes, no"
    allowed = range_of(kind)
    what = {int: "a whole number", float: "a number", str: "a word"}.get(plain, "")
    if typing.get_origin(plain) in (tuple, list):
        what = "numbers" if allowed is not None else "words"
    return f"{what} {allowed.short.strip()}".strip() if allowed is not None else what


def explained(config: type) -> dict[str, str]:
    """Read what the docstrings under the fields of a dataclass say, inherited ones too."""
    found: dict[str, str] = {}
    for parent in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:]):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(value, ast.Constant):
                found[field.target.id] = " ".join(str(value.value).split())
    return found


def cell(text: str) -> str:
    """Write prose for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
