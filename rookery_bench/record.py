"""What a bench found: one JSON object, the same for every bench, and its text and Markdown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import rookery

PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "ale-py", "mujoco")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A figure and the bar that it should clear."""

    what: str
    value: float | None
    bar: float
    at_least: bool  # else: at most
    met: bool

    @staticmethod
    def of(what: str, value: float | None, *, at_least: float | None = None, at_most: float | None = None) -> Verdict:
        """Compare a figure with its bar; one that could not be had does not clear it."""
        bar = at_least if at_least is not None else at_most
        assert bar is not None, "a verdict needs a bar"
        met = value is not None and (value >= bar if at_least is not None else value <= bar)
        return Verdict(what=what, value=value, bar=bar, at_least=at_least is not None, met=met)

    def sentence(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{self.what}: {cell(self.value)} (bar {sign} {cell(self.bar)}: {'met' if self.met else 'not met'})"


@dataclass(frozen=True, kw_only=True)
class Record:
    bench: str
    subject: str  # what was measured; the newest record of a bench and subject is the one that counts
    command: str  # that repeats it
    conditions: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]  # the table
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # how the figures were computed
    runs: list[dict[str, Any]] = field(default_factory=list)  # every single measurement
    failures: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Record:
        return Record(**values | {"verdicts": [Verdict(**verdict) for verdict in values["verdicts"]]})


def conditions() -> dict[str, Any]:
    """Record the time, the versions and the load of the machine, before anything is measured."""
    versions = {"rookery": rookery.__version__}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": cores,
        "processor": _processor(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def _commit() -> str | None:
    """Return the commit of the source tree, with a + where it was changed since; None for an installed package."""
    here = Path(rookery.__file__).parent
    git = lambda *words: subprocess.run(
        ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        if not git("ls-files", "__init__.py"):
            return None  # some other tree that the package was installed into
        changed = git("status", "--porcelain", "--", ".", "../rookery_bench")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


# -------------------------------------------------------------------------------------------------------- files


def append(path: str | Path, records: Sequence[Record]) -> None:
    """Append one line per record; the file is never rewritten."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.writelines(json.dumps(record.to_dict()) + "\n" for record in records)


def read(paths: Sequence[Path]) -> list[Record]:
    """Read the records of some files, in their order."""
    records = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip():
                try:
                    records.append(Record.from_dict(json.loads(line)))
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(f"{path}, line {number} is no record of a bench: {error}") from error
    return records


def newest(records: Sequence[Record]) -> list[Record]:
    """Choose the last record of each bench and subject, where the first of its kind stood."""
    latest = {(record.bench, record.subject): record for record in sorted(records, key=lambda r: r.conditions["date"])}
    order = dict.fromkeys((record.bench, record.subject) for record in records)
    return [latest[key] for key in order]


def merge(records: Sequence[Record]) -> Record:
    """Merge records of one bench, to be shown as one table; with a date in each row where the dates differ."""
    first = records[0]
    if len(records) == 1:
        return first
    days = [record.conditions["date"][:10] for record in records]
    dated = len(set(days)) > 1
    return replace(
        first,
        subject=first.bench,
        rows=[row | ({"date": day} if dated else {}) for day, record in zip(days, records) for row in record.rows],
        verdicts=[verdict for record in records for verdict in record.verdicts],
        notes=list(dict.fromkeys(note for record in records for note in record.notes)),
        runs=[run for record in records for run in record.runs],
        failures=[failure for record in records for failure in record.failures],
    )


# --------------------------------------------------------------------------------------------------------- text


def cell(value: Any) -> str:
    """Format a value with three or four significant digits; a pair is a range."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " to ".join(cell(part) for part in value)
    if isinstance(value, float):
        places = next((places for least, places in ((100, 0), (10, 1), (1, 2)) if abs(value) >= least), None)
        return f"{value:.3g}" if places is None else f"{value:,.{places}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def text(record: Record) -> str:
    """Write the table, what it means and how it was made, for a terminal."""
    lines = [f"{record.bench}: {record.subject}", _circumstances(record), ""]
    lines += [_table(record.rows), ""]
    lines += [verdict.sentence() for verdict in record.verdicts]
    lines += [f"failed: {failure}" for failure in record.failures]
    lines += [""] * bool(record.verdicts or record.failures) + [f"- {note}" for note in record.notes]
    return "\n".join(lines).rstrip()


def markdown(record: Record) -> str:
    """Write the same for a page; time to a score stands before steps per second."""
    head = list(record.rows[0]) if record.rows else []
    head = head[:1] + sorted(head[1:], key=lambda name: not name.startswith("s_to_"))
    lines = [f"### {record.subject}", ""]
    lines += [_markdown_line(name.replace("_", " ") for name in head), _markdown_line("---" for _ in head)]
    lines += [_markdown_line(cell(row.get(name)).replace("|", "\\|") for name in head) for row in record.rows] + [""]
    lines += [f"- {verdict.sentence()}" for verdict in record.verdicts]
    lines += [f"- failed: {failure}" for failure in record.failures]
    lines += [f"- {note}" for note in record.notes]
    lines += ["", f"`{record.command}`: {_circumstances(record)}"]
    return "\n".join(lines)


def _markdown_line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _circumstances(record: Record) -> str:
    c = record.conditions
    versions = ", ".join(f"{name} {version}" for name, version in c["versions"].items())
    commit = f", commit {c['commit']}" if c.get("commit") else ""
    machine = f"{c['cores']} cores of {c['processor']}, load average before {c['load_before'][0]:.2f}"
    seeds = record.settings.get("seeds")
    which = f"; seeds {', '.join(map(str, seeds))}" if seeds else ""
    return f"{c['date'][:10]}, {machine}; {versions}{commit}{which}"


def _table(rows: list[dict[str, Any]]) -> str:
    """Align columns; numbers to the right."""
    if not rows:
        return "(nothing measured)"
    head = list(rows[0])
    cells = [[name.replace("_", " ") for name in head]] + [[cell(row.get(name)) for name in head] for row in rows]
    right = [all(isinstance(row.get(name), (int, float, type(None))) for row in rows) for name in head]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    align = lambda line: "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right)).rstrip()
    return "\n".join(align(line) for line in cells)
