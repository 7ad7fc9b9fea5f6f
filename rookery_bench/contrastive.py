"""What does CURL's contrastive loss bring from pixels, and what does a second learner bring to it?

    rookery bench contrastive                    both, within 12 minutes on two idle cores
    rookery bench contrastive --part steps       with and without the loss, at equal steps: stands under load
    rookery bench contrastive --part seconds     one learner and two, at equal wall time: leave the machine alone

Intervals are Student's t, from scipy: pip install 'rookery[plot]'.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rookery.analysis.statistics import require_scipy
from rookery_bench import process
from rookery_bench.metrics import Rows, read_metrics
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import interval, rotated

Run = dict[str, Any]  # one measurement, as it is kept in the record
POINTS = 8  # of a curve
SMALL = (
    "--env-options side=16 --batch-size 64 --update-ratio 0.5 --random-steps 500 --replay.min-size 500 --replay.capacity 20000 "
    "--discount 0.9"
)
LOOP = "--groups 1 --in-flight 1 --prefetch 1"  # collectors beside the learner, alike in both arms
ARMS: dict[str, dict[str, str]] = {
    "steps": {"without": "curl-sac --contrastive-every 0", "with": "curl-sac"},
    "seconds": {
        "one learner": f"curl-sac --topology actor-learner --num-envs 8 {LOOP}",
        "two learners": f"async-curl-sac --num-envs 8 {LOOP}",
    },
}
REPORTED = (
    "updates", "env_steps", "return_mean", "loss/contrastive", "staleness_mean", "staleness_max", "auxiliary_updates_per_s",
)  # fmt: skip
NOTES = [
    "low, high: 95 % interval of the mean over seeds (Student's t), of greedy episodes after the last step. A curve is "
    "(env_steps, mean over seeds of the return of the last 100 episodes).",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """CURL with and without its loss at equal steps, and with one learner and two at equal wall time."""

    part: Literal["both", "steps", "seconds"] = "both"
    """What is measured."""
    env: str = "pixel-reach"
    """Its id: one that is seen as images."""
    seeds: int = 3
    """Seeds of each arm."""
    total_steps: int = 6_000
    """Environment steps of each run of the first part."""
    seconds: float = 60.0
    """Seconds of each run of the second part; what is compiled while its replay fills counts."""
    train_options: str = SMALL
    """Options for `rookery train`, for all arms."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = "benchmarks/contrastive.jsonl"
    """Append a record per part to this file; --out None: nowhere."""


def parse(args: list[str]) -> Options:
    options = tyro.cli(Options, args=args, prog="rookery bench contrastive")
    require_scipy("rookery bench contrastive")  # now, and not after the training
    return options


def measure(options: Options) -> list[Record]:
    parts = [part for part in ARMS if options.part in ("both", part)]
    return [_measured(part, options) for part in parts]


def _measured(part: str, options: Options) -> Record:
    now, arms = conditions(), ARMS[part]
    length = _length(part, options) + ("" if part == "steps" else " --total-steps 1000000")
    runs = [
        _train(name, shlex.split(f"{words} --env {options.env} {options.train_options} {length}"), seed)
        for seed in range(options.seeds)
        for name, words in rotated(list(arms.items()), seed)
    ]
    rows = [_row(name, [run for run in runs if run["arm"] == name and "failure" not in run]) for name in arms]
    return Record(
        bench="contrastive",
        subject=f"{options.env}: {' and '.join(arms)}, at equal {part}",
        command=f"rookery bench contrastive --part {part} --env {options.env} --seeds {options.seeds} {_length(part, options)}",
        conditions=now,
        settings={"seeds": list(range(options.seeds)), "arms": arms, "train_options": options.train_options},
        rows=rows,
        verdicts=[_verdict(part, rows)],
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )


def _length(part: str, options: Options) -> str:
    return f"--total-steps {options.total_steps}" if part == "steps" else f"--seconds {options.seconds:g}"


def _train(arm: str, words: list[str], seed: int) -> Run:
    command = ["train", *words, "--eval-episodes", "50", "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as place:
        done = process.rookery(command, runs=Path(place), timeout=3600)
        found: Run = {"arm": arm, "seed": seed, "command": shlex.join(["rookery", *command])}
        found["wall_seconds"] = round(done.seconds, 1)
        if done.failure:
            return found | {"failure": done.failure}
        rows = read_metrics(Path(done.answer["run"]))
    found |= {"eval_return_mean": done.answer["eval_return_mean"], "curve": curve(rows)}
    found |= {name: rows[-1][name] for name in REPORTED if name in rows[-1]}
    print(f"{arm}, seed {seed}: {found['eval_return_mean']:.2f} after {done.seconds:.0f} s", file=sys.stderr, flush=True)
    return found


def curve(rows: Rows) -> list[tuple[int, float]]:
    """Return (env_steps, return_mean) at evenly spread steps, as far as the rows go."""
    told = [(row["env_steps"], row["return_mean"]) for row in rows if row.get("return_mean") is not None]
    wanted = [told[-1][0] * (i + 1) / POINTS for i in range(POINTS)] if told else []
    distances = [[abs(steps - at) for steps, _ in told] for at in wanted]
    return [told[each.index(min(each))] for each in distances]


def _row(arm: str, runs: list[Run]) -> Run:
    values = [run["eval_return_mean"] for run in runs]
    low, high = interval(values)
    there = [name for name in REPORTED if runs and all(run.get(name) is not None for run in runs)]
    means = {name: statistics.fmean(run[name] for run in runs) for name in there}
    points = [run["curve"] for run in runs if len(run["curve"]) == POINTS]
    middle = [statistics.fmean(points_of[i][1] for points_of in points) for i in range(POINTS)] if points else []
    return {
        "arm": arm, "seeds": len(values), "eval_return_mean": statistics.fmean(values) if values else None, "low": low,
        "high": high, **{name: means.get(name) for name in REPORTED}, "curve": " ".join(f"{value:.1f}" for value in middle),
    }  # fmt: skip


def _verdict(part: str, rows: list[Run]) -> Verdict:
    """The second arm is not below the first: the ends of their intervals that face each other overlap."""
    first, second = rows
    known = first["low"] is not None and second["high"] is not None
    return Verdict.of(
        f"{second['arm']} is not below {first['arm']} at equal {part}: its high end − the other's low end",
        second["high"] - first["low"] if known else None, at_least=0.0,
    )  # fmt: skip
