"""The newest records as Markdown: the figures of README.md and of the pages in docs are made here, never typed.

rookery bench report
rookery bench report --write docs/benchmarks.md     between <!-- bench:NAME --> and <!-- /bench:NAME -->, for each NAME
rookery bench report --write README.md              the same; its mark is `peers`: five rows out of several benches
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro

from rookery_bench import record
from rookery_bench.record import Record

HEADS = {
    "cartpole": "CartPole", "pong": "Pong", "roofline": "Roofline", "envs": "Environments", "torn": "Killed workers",
    "memory": "Memory", "learning": "Learning", "anakin": "Anakin",
}  # fmt: skip


class Beside(NamedTuple):
    """A row of the table `peers`: one column of one record, of our arm and of theirs."""

    task: str
    measured: str
    bench: str
    subject: str
    column: str
    ours: str
    theirs: str


SCORE, RATE = "seconds to a return of 475", "steps/s"
PPO = ("cartpole", "CartPole-v1, PPO", "s_to_target", "rookery, first run")
IMPALA = ("pong", "ALE Pong, asynchronous actor-learner", "steps/s", "rookery impala")
DQN = ("dqn", "CartPole-v1, DQN, one gradient step of 64 for 2 steps", "steps/s", "rookery")
PEERS = (  # how long it takes to reach a score first
    Beside("CartPole, PPO", SCORE, *PPO, "stable-baselines3"),
    Beside("CartPole, PPO", SCORE, *PPO, "rejax"),
    Beside("Pong, asynchronous", RATE, *IMPALA, "rllib"),
    Beside("Pong, asynchronous", RATE, *IMPALA, "sample-factory"),
    Beside("CartPole, DQN", RATE, *DQN, "stable-baselines3"),
)


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
    """Write the Markdown of one bench: one table for all learning tasks, else one per subject."""
    mine = [r for r in records if r.bench == bench]
    return "\n\n".join(record.markdown(r) for r in ([record.merge(mine)] if bench == "learning" else mine))


def peers(records: list[Record]) -> str | None:
    """Write the table beside other libraries; None where a record, or the arm of one, is missing: no row is left out."""
    newest = {(r.bench, r.subject): r for r in records}
    lines = ["| task | measured | Rookery | beside | runs |", "| --- | --- | --- | --- | --- |"]
    used = []
    for row in PEERS:
        found = newest.get((row.bench, row.subject))
        arms = {} if found is None else {arm["arm"]: arm.get(row.column) for arm in found.rows}
        if found is None or arms.get(row.ours) is None or arms.get(row.theirs) is None:
            return None
        version = found.conditions["versions"].get(row.theirs, "")
        theirs = f"{record.cell(arms[row.theirs])} {row.theirs} {version}".rstrip()
        cells = (row.task, row.measured, record.cell(arms[row.ours]), theirs, str(len(found.settings["seeds"])))
        lines.append(f"| {' | '.join(cells)} |")
        used.append(found.conditions)
    dates = sorted({c["date"][:10] for c in used})
    loads = sorted(c["load_before"][0] for c in used)
    machines = dict.fromkeys(f"{c['cores']} cores of {c['processor']}" for c in used)
    lines += ["", f"Medians; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {', '.join(machines)},"]
    lines += [f"load average before a bench {loads[0]:.1f} to {loads[-1]:.1f}."]
    return "\n".join(lines)


def marks(records: list[Record]) -> dict[str, str]:
    """Write all that can be put into a page, by the name of its mark: the tables of each bench, and `peers`."""
    made = {name: tables(name, records) for name in _names(records)}
    beside = peers(records)
    return made if beside is None else made | {"peers": beside}


def fill(page: str, records: list[Record]) -> str:
    """Replace the tables between their marks in a page; marks without a record keep what they hold."""
    for name, text in marks(records).items():
        begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        made = f"{begin}\n{text}\n{end}".replace("\\", r"\\")  # nothing in it is a pattern
        page = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", made, page, flags=re.DOTALL)
    return page


def _names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(r.bench for r in records))
