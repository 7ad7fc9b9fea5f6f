"""Tables for `rookery list`. Nothing but the matrix imports jax."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from rookery import systems as all_systems

Rows = list[dict[str, Any]]
HEADS = {"age_seconds": "age"}
SPARE = {  # what a table does without where it is too wide, in this order
    "runs": ("env", "system", "age_seconds"), "systems": ("runtime", "paper"), "envs": ("extra", "source"),
}  # fmt: skip
SHORTEST = 12  # a text of fewer characters is not worth cutting


def systems() -> Rows:
    return [
        {
            "system": s.name,
            "algorithm": s.algorithm.split(":")[1],
            "topology": s.topology.split(":")[1],
            "runtime": " ".join(all_systems.RUNTIMES),
            "summary": s.summary,
            "paper": s.paper,
        }
        for s in all_systems.SYSTEMS.values()
    ]


def matrix() -> Rows:
    """Tabulate algorithm by topology: the systems of that combination, "yes" where it has no name, "-" where it is refused."""
    named: dict[tuple[str, str], list[str]] = {}
    for s in all_systems.SYSTEMS.values():
        named.setdefault((s.algorithm.split(":")[1], s.topology.split(":")[1]), []).append(s.name)
    algorithms = {name: entry for entry in all_systems.SYSTEMS.values() for name in [entry.algorithm.split(":")[1]]}
    cell = lambda a, t: " ".join(named.get((a, t), ["yes" if allowed(algorithms[a], t) else "-"]))
    return [{"algorithm": a} | {topology: cell(a, topology) for topology in all_systems.TOPOLOGIES} for a in algorithms]


def allowed(entry: all_systems.System, topology: str) -> bool:
    """Return whether a topology can drive the algorithm of a system, on some environment, as `rookery train` would find."""
    from rookery.networks import ViewsConfig
    from rookery.run.assemble import assemble
    from rookery.run.config import ConfigError, resolve

    made, by = entry.algorithm_class(), all_systems.load_topology(topology)
    names = {field.name for field in dataclasses.fields(made)}
    variants = [{}, *({name: value} for name, value in (("fresh", True), ("gradient_steps", 1)) if name in names)]
    tried: list[tuple[Any, dict[str, Any]]] = [
        (made(**options), {"env": env}) for options, env in itertools.product(variants, ("jax:catch", "jax:Pendulum-v1"))
    ]
    if "views" in names:  # with contrastive steps, from an image
        contrastive = made(views=ViewsConfig(kind="shift"), contrastive_every=1)
        tried.append((contrastive, {"env": "jax:catch", "env_options": {"rows": 8, "columns": 8}}))
    for algorithm, options in tried:
        try:
            assemble(resolve(algorithm, topology=by(), **options))
            return True
        except ConfigError:
            continue
    return False


def envs() -> Rows:
    from rookery.envs import catalogue

    return [dict(env._asdict()) for env in catalogue()]


def runs(root: str = "runs") -> Rows:
    from rookery.run.directory import Run

    return [
        {
            "run": row.name,
            "system": row.system,
            "env": row.env,
            "env_steps": row.env_steps,
            "return_mean": row.return_mean,
            "status": row.status,
            "age_seconds": round(row.age_seconds),
            "path": str(row.path),
        }
        for row in Run.list(root)
    ]


def table(rows: Rows, width: int | None = None, spare: Sequence[str] = ()) -> str:
    """Align rows in columns, numbers to the right. What is wider than `width` loses the columns of `spare`, one by one; then
    its widest column is cut, where a text is no name. The first column is never cut: where there is no room beside it, the
    others go below."""
    everything = [name for name in rows[0] if name != "path"]
    names, most = list(everything), width or 10**6
    for name in spare:
        if name in names[1:] and _width(_cells(rows, names)) > most:
            names.remove(name)
    cells = _cells(rows, names)
    widths, over = _widths(cells), _width(cells) - most
    texts = [i for i, name in enumerate(names) if i and any(isinstance(row[name], str) for row in rows)]
    widest = max(texts, key=widths.__getitem__, default=0)
    if over > 0 and len(names) > 1 and widths[widest] < SHORTEST:
        rest = [name for name in everything[1:] if name not in spare[:1]]
        beside = table([{name: row[name] for name in rest} for row in rows]).splitlines()
        if max(map(len, beside)) > most - 2:
            beside = ["", *(_pairs(row, rest, most) for row in rows)]
        return "\n".join(f"{line[0]}\n  {told}".rstrip() for line, told in zip(cells, beside))
    if over > 0:
        widths[widest] = max(widths[widest] - over, 8)
        for line in cells:
            line[widest] = _cut(line[widest], widths[widest])
    numeric = [all(isinstance(row[name], (int, float)) or row[name] is None for row in rows) for name in names]
    lines = (
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric)).rstrip() for line in cells
    )
    return "\n".join(lines)


def _pairs(row: dict[str, Any], names: Sequence[str], width: int) -> str:
    """Write a row in words, for a terminal that has no room for columns."""
    words = "  ".join(f"{HEADS.get(name, name)} {_cell(name, row[name])}" for name in names)
    return "\n  ".join(textwrap.wrap(words, width - 2, break_long_words=False, break_on_hyphens=False))


def _cells(rows: Rows, names: Sequence[str]) -> list[list[str]]:
    return [[HEADS.get(name, name) for name in names]] + [[_cell(name, row[name]) for name in names] for row in rows]


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells)]


def _width(cells: list[list[str]]) -> int:
    return sum(widths := _widths(cells)) + 2 * (len(widths) - 1)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None where the output is none: a file or a pipe takes lines of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "age_seconds":
        return _age(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
