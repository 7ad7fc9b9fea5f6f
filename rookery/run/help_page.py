"""The page that `--help` prints: a line or more for every option, in two columns, whatever the width.

    --learning-rate NUM≥0     Step size of the optimizer. (default: 0.003)
    --[no-]anneal             Decay the learning rate linearly to zero over the planned run. (default: on)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rookery import systems
from rookery.run import described
from rookery.run.described import Described, DescribedPart
from rookery.run.flags import Flags
from rookery.run.general_options import described_in_general
from rookery.run.two_columns import UNBROKEN, Section, page


def of_system(prog: str, name: str, env: str, topology: str | None = None, flags: Any = Flags) -> str | None:
    """Write the page of a system, with the values for that environment; None where it is not known without its classes."""
    entry = systems.system(name)
    algorithm, own = entry.algorithm.split(":")[1], entry.topology.split(":")[1]
    known = {systems.flag_of(class_name): class_name for class_name in systems.TOPOLOGIES}
    chosen = own if topology is None else known.get(topology, "")
    if not {algorithm, chosen, "RunOptions"} <= set(described.table()):
        return None
    values, env_options = systems.defaults(name, env), systems.env_options(name, env)
    about = f"{name} on {env}: {entry.summary} ({entry.paper})."
    return _of_parts(prog, about, ("RunOptions", algorithm, chosen), [values] * 3, (env, env_options), flags)


def of_run(prog: str, saved: Mapping[str, Any], flags: Any) -> str | None:
    """Write the page of a run that goes on, with its own values; None where its parts are not known."""
    try:
        system, env, options = saved["system"], saved["env"], saved["env_options"]
        parts = [dict(saved[part]) for part in ("run", "algorithm", "topology")]
        names = ("RunOptions", parts[1].pop("class"), parts[2].pop("class"))
        if saved.get("custom") or not set(names) <= set(described.table()):
            return None
        return _of_parts(prog, f"{system} on {env}, as it was trained.", names, parts, (env, options), flags)
    except (KeyError, TypeError, AttributeError):
        return None  # refused, with the reason, where the config is read


def of_kind(prog: str, kind: Any) -> str:
    """Write the page of a dataclass of options."""
    part = described.of(kind)
    words = [option.name.upper() for option in part.options if option.positional]
    return page([" ".join([prog, *words, "[options]"])], part.says, [("options", "", [*_lines(part, plain=True), HELP])])


def of_groups(prog: str, about: str, general: Sequence[Described], parts: Sequence[tuple[str, DescribedPart, Any]]) -> str:
    """Write a page of several groups. parts: title, options, and the values as plain ones or None for the defaults."""
    sections: list[Section] = [("options", "", [*map(_line, general), HELP])]
    nested: list[Section] = []
    for title, part, values in parts:
        sections.append((f"{title} options", part.says, [*_lines(part, values)]))
        for option in part.options:
            if option.group is not None:
                own = {**(option.default or {}), **((values or {}).get(option.name) or {})}
                inner = part.groups[option.group]
                nested.append((f"{option.name} options", inner.says, [*_lines(inner, own, prefix=f"{option.name}.")]))
    return page([f"{prog} [options]"], about, sections + nested)


def _of_parts(
    prog: str, about: str, names: Sequence[str], values: Sequence[Mapping[str, Any]], env: tuple[str, dict[str, Any]],
    flags: Any,
) -> str:  # fmt: skip
    table, (id, env_options) = described.table(), env
    general = described_in_general(id, systems.flag_of(names[2]), env_options, flags)
    titles = ("run", *names[1:])
    return of_groups(prog, about, general, [(t, table[n], v) for t, n, v in zip(titles, names, values)])


HELP = ("-h, --help", "Show this page.")


def _lines(
    part: DescribedPart, values: Mapping[str, Any] | None = None, prefix: str = "", plain: bool = False
) -> Iterator[tuple[str, str]]:
    """List the options of a part. plain: a switch that is off is not asked to stay so."""
    for option in part.options:
        if option.group is None:
            option = dataclasses.replace(option, hint="") if plain and option.switch and not option.default else option
            yield _line(option, (values or {}).get(option.name, option.default), prefix)


def _line(option: Described, value: Any = ..., prefix: str = "") -> tuple[str, str]:
    """Return the two columns of an option."""
    value, name = option.default if value is ... else value, option.name.replace("_", "-")
    pair = option.switch and option.hint is None
    flag = f"--{prefix.replace('_', '-')}{'[no-]' if pair else ''}{name}"
    label = option.name.upper() if option.positional else f"{flag} {option.takes}".rstrip()
    says = re.sub(r"\bNone\b", "none", option.says)
    hint = option.hint
    if hint is None:
        more = "; or none" if option.optional else ""
        hint = "" if value is None or value in ("", (), []) else f"(default: {word(value, option.switch)}{more})"
    return label, f"{says} {hint.replace(' ', UNBROKEN)}".strip()


def word(value: Any, switch: bool = False) -> str:
    """Write a value as it is typed on the command line; a switch is on or off."""
    if isinstance(value, bool):
        return ("on" if value else "off") if switch else ("yes" if value else "no")
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return " ".join(map(word, value)) if isinstance(value, (list, tuple)) else str(value)
