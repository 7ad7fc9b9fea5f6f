"""Central inference beside local inference: steady steps/s at the same batch, and where the time goes.

rookery bench central --env ALE/Pong-v5 --env-options repeat_action_probability=0
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rookery_bench import process
from rookery_bench.metrics import Rows, read_metrics
from rookery_bench.pong import steady
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import mean, median, ratio, rotated, spread

Run = dict[str, Any]
PHASES = ("env", "inference", "transfer", "learn", "wait")
BAR = 0.95
NOTES = [
    "Arms alternate: each repeat runs all of them, beginning with another one each time. All are given the same --num-envs, "
    "--groups and --rollout-length, so that a batch has the same steps.",
    "steps/s are those of the window that opens --warm-seconds after the first update; env, inference, transfer, learn and "
    "wait are shares of the time of both workers (the one that acts and the learner) in that window.",
    "impala and seed have the same algorithm, as have appo and sample-factory: between these two only the cut differs.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Central beside local inference: steady steps/s at the same batch, and where the time goes."""

    env: str = "ALE/Pong-v5"
    """Its id; `rookery list envs` shows some."""
    env_options: tuple[str, ...] = ()
    """Environment options of all arms, as those of `rookery train`."""
    local: str = "impala"
    """The system that acts in its collectors."""
    central: str = "sample-factory"
    """The system with one policy beside the learner."""
    more: tuple[str, ...] = ()
    """More systems beside these two, e.g. --more seed appo."""
    num_envs: int = 32
    """Environments of every arm."""
    groups: int = 2
    """Groups of environments that step independently."""
    rollout_length: int = 20
    seconds: float = 60.0
    """Length of each measured window."""
    repeats: int = 2
    """Runs of each arm, in turns."""
    start_seconds: float = 45.0
    """Seconds added to each run for start-up, compilation and warm-up."""
    warm_seconds: float = 15.0
    """Warm-up after the first update, before the window begins."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/central.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench central")


def measure(options: Options) -> list[Record]:
    now, runs = conditions(), []  # type: dict[str, Any], list[Run]
    arms = [options.local, options.central, *options.more]
    for seed in range(options.repeats):
        for system in rotated(arms, seed):
            runs.append(_run(options, system, seed))
            said = runs[-1].get("failure") or f"{runs[-1]['steps_per_s']:,.0f} steps/s"
            print(f"repeat {seed}: {system}: {said}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def _run(options: Options, system: str, seed: int) -> Run:
    seconds = options.seconds + options.start_seconds
    command = [
        "train", system, "--env", options.env, *(("--env-options", *options.env_options) if options.env_options else ()),
        "--num-envs", str(options.num_envs), "--groups", str(options.groups), "--rollout-length", str(options.rollout_length),
        "--seconds", f"{seconds:g}", "--eval-episodes", "0", "--seed", str(seed), "--json",
    ]  # fmt: skip
    found: Run = {"arm": system, "seed": seed, "command": " ".join(["rookery", *command])}
    with tempfile.TemporaryDirectory() as runs:
        done = process.rookery(command, runs=Path(runs), timeout=seconds + 300)
        if done.failure:
            return found | {"failure": done.failure}
        rows = read_metrics(Path(done.answer["run"]))
    return found | window(rows, options, until=seconds)


def window(rows: Rows, options: Options, *, until: float) -> Run:
    """Measure the steady part of a run: rates, and shares of the time."""
    rates = steady(rows, warm=options.warm_seconds, length=options.seconds, until=until)
    if rates is None:
        return {"failure": f"no metrics {options.warm_seconds:g} s after the first update: ask for more --start-seconds"}
    begin = next(row["seconds"] for row in rows if row["updates"] > 0) + options.warm_seconds
    inside = [row for row in rows if begin <= row["seconds"] <= min(until, begin + options.seconds + 1.0)][1:]
    shares = {phase: mean([row[f"time/{phase}"] for row in inside if f"time/{phase}" in row]) for phase in PHASES}
    return {"steps_per_s": rates.env_steps_per_s} | rates._asdict() | shares


def summarise(options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    rows: dict[str, dict[str, Any]] = {}
    for arm in dict.fromkeys((options.local, options.central, *options.more)):
        mine = [run for run in runs if run["arm"] == arm and "failure" not in run]
        known = lambda name, mine=mine: [run[name] for run in mine if run.get(name) is not None]
        rows[arm] = {
            "arm": arm,
            "runs": len(mine),
            "steps/s": median(known("steps_per_s")),
            "range": spread(known("steps_per_s")),
        }
        rows[arm] |= {phase: median(known(phase)) for phase in PHASES}
        rows[arm] |= {"learner_idle": median(known("learner_idle")), "policy_lag": median(known("policy_lag_mean"))}
    of = lambda arm: rows[arm]["steps/s"]
    what = f"steps/s, {options.central} / {options.local}"
    words = ["rookery bench central --env", options.env]
    words += ["--env-options", *options.env_options] if options.env_options else []
    words += [f"--seconds {options.seconds:g} --repeats {options.repeats}"]
    words += ["--more", *options.more] if options.more else []
    return Record(
        bench="central",
        subject=f"{options.env}, {options.central} beside {options.local}",
        command=" ".join(words),
        conditions=now,
        settings={
            "num_envs": options.num_envs, "groups": options.groups, "rollout_length": options.rollout_length,
            "seconds": options.seconds, "seeds": list(range(options.repeats)),
        },
        rows=list(rows.values()),
        verdicts=[Verdict.of(what, ratio(of(options.central), of(options.local)), at_least=BAR)],
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )  # fmt: skip
