"""Do two ways to cut the same algorithm learn alike? Greedy returns after equally many steps, over seeds, with intervals.

rookery bench returns --systems impala seed      # local and central inference of the same V-trace

Intervals are Student's t, from scipy: pip install 'rookery[plot]'.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rookery.analysis.statistics import require_scipy
from rookery_bench import process
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import interval, rotated, spread

Run = dict[str, Any]  # one measurement, as it is kept in the record
KEPT = ("eval_return_mean", "return_mean", "env_steps", "updates", "env_steps_per_s", "policy_lag_mean")
NOTE = "low, high: 95 % interval of the mean over seeds (Student's t), of 50 greedy episodes after the last step."


@dataclass(frozen=True, kw_only=True)
class Options:
    """Two systems at equal steps: the mean of greedy returns over seeds, and whether their intervals overlap."""

    systems: tuple[str, str] = ("impala", "seed")
    """The two systems."""
    env: str = "CartPole-v1"
    """Its id; `rookery list envs` shows some."""
    seeds: int = 5
    """Seeds of each system."""
    total_steps: int = 300_000
    """Environment steps of each run."""
    train_options: str = ""
    """More options for `rookery train`, for both."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/returns.jsonl."""


def parse(args: list[str]) -> Options:
    options = tyro.cli(Options, args=args, prog="rookery bench returns")
    require_scipy("rookery bench returns")  # now, and not after an hour of training
    return options


def measure(options: Options) -> list[Record]:
    now, more = conditions(), shlex.split(options.train_options)
    arms = {name: ["train", name, "--env", options.env, *more] for name in options.systems}
    runs = in_turns(arms, seeds=options.seeds, total_steps=options.total_steps)
    rows, verdict = compared(arms, runs)
    words = f"rookery bench returns --systems {' '.join(options.systems)} --env {options.env}"
    words += f" --seeds {options.seeds} --total-steps {options.total_steps}"
    return [
        Record(
            bench="returns",
            subject=f"{options.env}, {' and '.join(options.systems)}: return at equal steps",
            command=words + (f' --train-options="{options.train_options}"' if options.train_options else ""),
            conditions=now,
            settings={"seeds": list(range(options.seeds)), "total_steps": options.total_steps},
            rows=rows,
            verdicts=[verdict],
            notes=[NOTE],
            runs=runs,
            failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
        )
    ]


def in_turns(arms: dict[str, list[str]], *, seeds: int, total_steps: int) -> list[Run]:
    """Run every command with every seed; the order rotates."""
    runs: list[Run] = []
    for seed in range(seeds):
        for name, words in rotated(list(arms.items()), seed):
            command = [*words, "--total-steps", str(total_steps), "--eval-episodes", "50", "--seed", str(seed), "--json"]
            with tempfile.TemporaryDirectory() as place:
                done = process.rookery(command, runs=Path(place), timeout=900)
            found: Run = {"arm": name, "seed": seed, "command": shlex.join(["rookery", *command])}
            runs.append(found | ({"failure": done.failure} if done.failure else {key: done.answer.get(key) for key in KEPT}))
            said = done.failure or f"{runs[-1]['eval_return_mean']:.1f} after {done.seconds:.0f} s"
            print(f"{name}, seed {seed}: {said}", file=sys.stderr, flush=True)
    return runs


def compared(arms: dict[str, list[str]], runs: list[Run]) -> tuple[list[Run], Verdict]:
    """Compare the arms, a row for each; the verdict is on the first two."""
    rows: list[Run] = []
    for name in arms:
        values = [run["eval_return_mean"] for run in runs if run["arm"] == name and "failure" not in run]
        low, high = interval(values)
        mean = statistics.fmean(values) if values else None
        rows.append(
            {"arm": name, "seeds": len(values), "eval_return_mean": mean, "low": low, "high": high, "range": spread(values)}
        )
    a, b = rows[:2]
    known = None not in (a["low"], b["low"])
    overlap = min(a["high"], b["high"]) - max(a["low"], b["low"]) if known else None
    return rows, Verdict.of("overlap of the 95 % intervals of both means (0: they touch)", overlap, at_least=0.0)
