"""The newest records as Markdown: the figures of the README and of benchmarks/README.md are made here, never typed.

rookery bench report
rookery bench report --bench pong --write README.md     between <!-- bench:pong --> and <!-- /bench:pong -->
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from rookery_bench import record
from rookery_bench.record import Record

HEADS = {
    "cartpole": "CartPole", "pong": "Pong", "roofline": "Roofline", "envs": "Environments", "torn": "Killed workers",
    "memory": "Memory", "learning": "Learning", "anakin": "Anakin",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """The newest record of each bench and subject, as Markdown."""

    records: str = "benchmarks"
    """Directory of the records (*.jsonl, *.json), or one file of them."""
    bench: tuple[str, ...] = ()
    """Only these benches."""
    write: str | None = None
    """Put each table into this file, between <!-- bench:NAME --> and <!-- /bench:NAME -->, instead of printing it."""
    json: bool = False
    """Print the records themselves as one JSON line."""


def main(args: list[str]) -> int:
    options = tyro.cli(Options, args=args, prog="rookery bench report")
    place = Path(options.records)
    files = sorted([*place.glob("*.jsonl"), *place.glob("*.json")]) if place.is_dir() else [place]
    if not place.exists() or not files:
        print(f"rookery: no records in {place}: run a bench with --out {place}/NAME.jsonl first", file=sys.stderr)
        return 2
    records = [r for r in record.newest(record.read(files)) if not options.bench or r.bench in options.bench]
    if options.json:
        print(json.dumps({"records": [r.to_dict() for r in records]}))
    elif options.write:
        path = Path(options.write)
        path.write_text(fill(path.read_text(), records))
    else:
        print("\n\n".join(f"## {HEADS.get(name, name)}\n\n{tables(name, records)}" for name in _names(records)))
    return 0


def tables(bench: str, records: list[Record]) -> str:
    """The Markdown of one bench: one table for all learning tasks, else one per subject."""
    mine = [r for r in records if r.bench == bench]
    return "\n\n".join(record.markdown(r) for r in ([record.merge(mine)] if bench == "learning" else mine))


def fill(page: str, records: list[Record]) -> str:
    """The page with the tables between their marks made anew; marks without a record keep what they hold."""
    for name in _names(records):
        begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        made = f"{begin}\n{tables(name, records)}\n{end}".replace("\\", r"\\")  # nothing in it is a pattern
        page = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", made, page, flags=re.DOTALL)
    return page


def _names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(r.bench for r in records))
