"""Writes `rookery/run/typed.pyi`: the options of every system as types, so that editors complete and mypy checks them."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rookery.run.api
import rookery.run.trainer
from rookery import systems
from rookery.run.config import RunOptions

STUB = Path(rookery.run.api.__file__).with_name("typed.pyi")
HEAD = '''\
"""Options as types. Made of the options themselves: `python tests/run/test_option_files.py` writes it.

A system that is named in the call takes its own options alone. One that is a variable takes those that every system has; with
`topology=`, or with an algorithm of your own, nothing is known of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, overload

{imports}

class _Buildable(Protocol):
    @property
    def build(self) -> Callable[..., Any]: ...
'''
IMPORTS = ("from rookery.run.trainer import Result", "from rookery.run.trainer import Trainer as _Trainer")


def text() -> str:
    entries = systems.SYSTEMS.values()
    kinds = list(dict.fromkeys([RunOptions, *(k for s in entries for k in (s.algorithm_class(), s.topology_class()))]))
    inner = list(dict.fromkeys(k for kind in kinds for k in _types(kind).values() if dataclasses.is_dataclass(k)))
    modules: dict[str, list[str]] = {}
    for kind in inner:
        modules.setdefault(kind.__module__, []).append(kind.__name__)
    imports = sorted([*IMPORTS, *(f"from {module} import {', '.join(sorted(names))}" for module, names in modules.items())])
    lines = [HEAD.format(imports="\n".join(imports))]
    for kind in [*inner, *kinds]:
        lines += [*_typed_dict(f"{kind.__name__}Fields", "TypedDict, total=False", _written(kind))]
    shared = set.intersection(*({*_types(s.algorithm_class()), *_types(s.topology_class())} for s in entries))
    algorithm, topology = next((s.algorithm_class(), s.topology_class()) for s in entries)
    common = {n: t for kind in (algorithm, topology) for n, t in _written(kind).items() if n in shared}
    every = [_written(k) for s in entries for k in (s.algorithm_class(), s.topology_class())]
    common = {n: t for n, t in common.items() if all(their.get(n, t) == t for their in every)}
    lines += _typed_dict("SharedFields", "RunOptionsFields, total=False", common)
    pairs: dict[str, list[str]] = {}
    for s in entries:
        pairs.setdefault(f"{s.algorithm_class().__name__}{s.topology_class().__name__}", []).append(s.name)
    for name, (first, *_) in pairs.items():
        s = systems.SYSTEMS[first]
        parents = [f"{k.__name__}Fields" for k in (RunOptions, s.algorithm_class(), s.topology_class())]
        lines += [f"class {name}Fields({', '.join(parents)}, total=False): ...", ""]
    lines += _overloads("def train", rookery.run.api.train, pairs, "Result")
    lines += ["class Trainer(_Trainer):"]
    lines += _overloads("    def __init__", rookery.run.trainer.Trainer.__init__, pairs, "None")
    return "\n".join(lines).rstrip() + "\n"


def _overloads(head: str, function: Callable[..., Any], pairs: dict[str, list[str]], result: str) -> Iterator[str]:
    """Write an overload for each combination of algorithm and topology, with what `function` itself takes beside options."""
    indent = head[: len(head) - len(head.lstrip())]
    both = (rookery.run.trainer.Trainer.__init__, function)  # `train` hands on what it does not take
    found = {name: p for each in both for name, p in inspect.signature(each).parameters.items()}
    own = [
        f"{name}: Any{'' if p.default is p.empty else ' = ...'}"
        for name, p in found.items()
        if p.kind is p.KEYWORD_ONLY and name not in ("topology", "began")
    ]
    begin = "self,\n        " if indent else ""
    for name, members in pairs.items():
        yield f"{indent}@overload"
        words = ", ".join(f'"{member}"' for member in members)
        given = " = ..." if "ppo" in members else ""
        which = f"{begin}system: Literal[{words}]{given}"
        yield from _call(head, [which, "*", *own, f"**options: Unpack[{name}Fields]"], result)
    yield f"{indent}@overload"
    yield from _call(head, [f"{begin}system: str", "*", *own, "**options: Unpack[SharedFields]"], result)
    yield f"{indent}@overload"
    yield from _call(head, [f"{begin}system: object", "*", *own, "topology: object", "**options: Any"], result)
    yield f"{indent}@overload"
    yield from _call(head, [f"{begin}system: _Buildable", "*", *own, "topology: object = ...", "**options: Any"], result)
    yield ""


def _call(head: str, parts: list[str], result: str) -> Iterator[str]:
    inner = " " * (len(head) - len(head.lstrip()) + 4)
    yield f"{head}("
    yield from (f"{inner}{part}," for part in parts)
    yield f"{inner[4:]}) -> {result}: ..."


def _typed_dict(name: str, parents: str, fields: dict[str, str]) -> list[str]:
    return [f"class {name}({parents}):", *(f"    {field}: {kind}" for field, kind in fields.items()), ""]


def _written(kind: Any) -> dict[str, str]:
    """Name -> type of each field, as a stub says it."""
    return {name: _kind(t) for name, t in _types(kind).items()}


def _types(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _kind(kind: Any) -> str:
    args = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return f"{kind.__name__}Fields | {kind.__name__}"
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " | ".join("None" if arg is type(None) else _kind(arg) for arg in args)
    if typing.get_origin(kind) is typing.Literal:
        return f"Literal[{', '.join(f'{arg!r}' for arg in args)}]".replace("'", '"')
    if typing.get_origin(kind) in (tuple, list):
        return f"Sequence[{_kind(args[0])}]"
    return kind.__name__ if kind in (int, float, bool, str) else "Any"
