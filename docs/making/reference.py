"""The reference: options of every system, and every public name with its signature and what it says of itself."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

from options import groups_of, options_of, table
from pages import plain

from rookery.run.config import RunOptions
from rookery.systems import PRESETS, SYSTEMS, System

DOCS = Path(__file__).resolve().parents[1]
MADE = "<!-- made by `python docs/generate.py`: what you write here is lost -->\n"
ROW = re.compile(r"^\| `([\w.]+)` \| (.+) \|$", re.M)


def pages() -> dict[str, str]:
    """Make all pages of the reference: path below docs/ -> text."""
    made = {f"reference/options/{name}.md": system_options(system) for name, system in SYSTEMS.items()}
    made["reference/options/run.md"] = run_options()
    made["reference/options/README.md"] = options_index()
    sections = api_sections()
    made |= {f"reference/api/{module}.md": api_page(module, text, rows) for module, (text, rows) in sections.items()}
    made["reference/api/README.md"] = api_index(sections)
    return {path: f"{text.rstrip()}\n\n{MADE}" for path, text in made.items()}


# --------------------------------------------------------------------------------------------------------- options


def system_options(system: System) -> str:
    config = plain(system)
    lines = [
        f"# Options of {system.name}", "",
        f"{system.summary[0].upper()}{system.summary[1:]}: see [its page](../../systems/{system.name}.md). Defaults are"
        " those for an environment that no preset names;"
        f" `rookery train {system.name} --env ID --help` prints the values for yours. In Python the names have `_` instead of"
        " `-`, and groups are dictionaries: `network={\"core\": \"lstm\"}`. Options of every run: [run](run.md).", "",
    ]  # fmt: skip
    for part in (config.algorithm, config.topology):
        lines += [f"## {type(part).__name__}", "", _first_line(part), "", table(options_of(part)), ""]
        for name, inner in groups_of(part).items():
            lines += [f"## {name}", "", table(options_of(inner, f"{name}.")), ""]
    return "\n".join([*lines, *_presets(system)])


def _first_line(part: Any) -> str:
    return (inspect.getdoc(type(part)) or "").split("\n")[0]


def _presets(system: System) -> list[str]:
    rows = [
        f"| `{preset.env}` | {' '.join(_words(preset.options) + _words(preset.env_options))} |"
        for preset in PRESETS
        if system.name in preset.systems and (preset.options or preset.env_options)
    ]
    if not rows:
        return []
    about = "What is set for environments, and families of them, beneath what you say; later rows on top of earlier ones."
    return ["## Presets", "", about, "", "| environment | options |", "|---|---|", *rows]


def _words(options: Any, prefix: str = "") -> list[str]:
    words = []
    for name, value in options.items():
        if isinstance(value, dict):
            words += _words(value, f"{prefix}{name}.")
        else:
            words.append(f"`{prefix}{name}={value}`".replace("|", "\\|"))
    return words


def run_options() -> str:
    run = RunOptions()
    lines = ["# Options of a run", "", "They are the same for every system: when it ends, what it writes and where.", ""]
    lines += [table(options_of(run)), ""]
    for name, inner in groups_of(run).items():
        lines += [f"## {name}", "", _first_line(inner), "", table(options_of(inner, f"{name}.")), ""]
    return "\n".join(lines)


def options_index() -> str:
    rows = [f"- [`{name}`]({name}.md): {system.summary}" for name, system in SYSTEMS.items()]
    about = (
        "All options of each system, with defaults, ranges and meanings, read from the source. Those of every run (budgets, "
        "seeds, evaluation, checkpoints) are on one page: [run](run.md)."
    )
    return "\n".join(["# Options", "", about, "", *rows])


# -------------------------------------------------------------------------------------------------------------- API


def api_sections() -> dict[str, tuple[str, dict[str, str]]]:
    """Read the sections of public_api.md: module -> (text above its table, name -> what the page says of it)."""
    found = {}
    for section in re.split(r"^## ", (DOCS / "public_api.md").read_text(), flags=re.M)[1:]:
        title, body = section.split("\n", 1)
        if rows := dict(ROW.findall(body)):
            found[title] = (body.split("| name |")[0].strip(), rows)
    return found


def api_index(sections: dict[str, tuple[str, dict[str, str]]]) -> str:
    ticked = {module: " ".join(f"`{name}`" for name in names) for module, (_, names) in sections.items()}
    rows = [f"| [`{module}`]({module}.md) | {names} |" for module, names in ticked.items()]
    about = (
        "Every public name with its signature and what its docstring says. What is promised of them: "
        "[public names](../../public_api.md)."
    )
    return "\n".join(["# Python", "", about, "", "| module | names |", "|---|---|", *rows])


def api_page(module: str, text: str, rows: dict[str, str]) -> str:
    lines = [f"# {module}", "", _relinked(text), ""]
    for name, says in rows.items():
        lines += [f"## {name}", "", _relinked(says[0].upper() + says[1:]) + ".", "", *_described(module, name), ""]
    return "\n".join(lines)


def _relinked(text: str) -> str:
    """Lead links of public_api.md from two folders below it."""
    return re.sub(r"\]\((?!http)([^)#]+)", r"](../../\1", text)


def _described(module: str, name: str) -> list[str]:
    inner, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(f"{module}.{inner}" if inner else module), last)
    if inspect.ismodule(thing):
        return _prose(thing)
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return [f"```py\n{last} = {_short(thing)}\n```"]
    source = inspect.getsource(thing)
    if inspect.isclass(thing) and _declares(thing) and len(source.splitlines()) <= 45:
        return [f"```py\n{textwrap.dedent(source).rstrip()}\n```"]
    signature = [f"```py\n{_signature(last, thing)}\n```", ""]
    return [*signature, *_prose(thing), *_methods(thing)]


def _declares(kind: type) -> bool:
    """Return whether the source of a class says it best: protocols and tuples, whose comments explain each part."""
    return getattr(kind, "_is_protocol", False) or hasattr(kind, "_fields")


def _short(thing: Any) -> str:
    text = str(thing).replace("typing.", "") if typing.get_origin(thing) is not None else repr(thing)
    return re.sub(r" at 0x[0-9a-f]+", "", text)[:300]


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    whole = f"{name}{_plain(signature)}"
    if len(whole) <= 100:
        return whole
    parts = [_plain(p) for p in signature.parameters.values()]
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = signature.return_annotation
    said = gives if isinstance(gives, str) else inspect.formatannotation(gives)
    shown = "" if gives is inspect.Signature.empty else f" -> {said}"
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){shown}"])


def _plain(part: Any) -> str:
    """Write a parameter, or all, without addresses and with the quotes of annotations that are strings taken off."""
    text = re.sub(r" at 0x[0-9a-f]+", "", str(part)).replace("<factory>", "...")
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _methods(thing: Any) -> list[str]:
    if not inspect.isclass(thing) or issubclass(thing, tuple):
        return []
    lines = []
    for name, member in vars(thing).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        function = member.fget if isinstance(member, property) else member
        if said := inspect.getdoc(function):
            call = f"{name}" if isinstance(member, property) else f"{name}(…)"
            lines.append(f"- `{call}`: {escaped(said.split(chr(10) * 2)[0])}")
    return ["", *lines] if lines else []


def _prose(thing: Any) -> list[str]:
    """Write a docstring as Markdown: paragraphs, and what is indented, or an assignment, as code."""
    said = inspect.getdoc(thing) if not inspect.ismodule(thing) else inspect.cleandoc(thing.__doc__ or "")
    lines: list[str] = []
    for paragraph in (said or "").split("\n\n"):
        code = paragraph.startswith("    ") or re.match(r"[\w, ]+ = \w+[.(]", paragraph)
        lines += [f"```text\n{inspect.cleandoc(paragraph)}\n```" if code else escaped(paragraph), ""]
    return lines


def escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[\]|])", r"\\\1", part) for part in parts)
