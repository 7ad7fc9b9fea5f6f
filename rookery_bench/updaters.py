"""QT-Opt's four parts, one number changed at a time: what each rate depends on, and what it does not.

rookery bench updaters
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from rookery_bench import process
from rookery_bench.metrics import Rows, read_metrics
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import mean, median, ratio, rotated

Run = dict[str, Any]
RATES = {"collected steps/s": "env_steps", "labelled batches/s": "refined/batches", "updates/s": "updates"}
MEANS = {"label's age": "refined/target_age", "lag": "refined/lag_mean", "samples per insert": "replay/samples_per_insert"}
FREE = 1e12  # an error buffer that never makes anyone wait: each part goes as fast as it can
STEADY, FASTER = 0.9, 1.25  # of a rate that should stay, and of one that should rise
NOTES = [
    "The replay's limiter is off (--replay.error-buffer 1e12), so that no part waits for another's count of steps: updaters "
    "label whatever is there, the trainer takes every label as often as it may. Each arm changes one number of the first.",
    "A step of the environment takes --pause seconds of the clock and hardly any of the processor, as a robot's does; the logs "
    "are episodes of a random policy, made by the bench.",
    "label's age: updates between the target networks that a batch was labelled with and its return; lag: those between them "
    "and the update that learned from it; samples per insert: how often a collected step was drawn.",
]


class Arm(NamedTuple):
    name: str
    collectors: int
    updaters: int = 1
    uses: int = 1
    logged: float = 0.0

    def words(self, options: Options, logs: Path) -> list[str]:
        shown = ["--demonstrations", str(logs), "--demo-ratio", f"{self.logged:g}"] if self.logged else []
        return [
            "train", "qt-opt", "--env", "grasping", "--env-options", f"pause={options.pause:g}",
            "--collectors", str(self.collectors), "--num-envs", str(self.collectors), "--updaters", str(self.updaters),
            "--uses", str(self.uses), *shown, "--replay.error-buffer", f"{FREE:g}", "--total-steps", "100000000",
            "--random-steps", "100000000", "--eval-episodes", "0", "--seconds", f"{options.whole_seconds:g}",
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """QT-Opt's collectors, logs, updaters and trainer: what each rate depends on, and what it does not."""

    collectors: tuple[int, ...] = (7, 3)
    """Numbers of collectors; the first is that of the other arms."""
    updaters: tuple[int, ...] = (1, 2, 4)
    """Numbers of Bellman updaters."""
    uses: tuple[int, ...] = (1, 4)
    """Updates that each label is used for."""
    logged: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Shares of logged experience."""
    pause: float = 0.05
    """Seconds that a step of the environment takes."""
    log_episodes: int = 200
    """Episodes of a random policy that are logged."""
    seconds: float = 60.0
    """Length of each measured window."""
    warm_seconds: float = 20.0
    """Seconds after the first update before the window begins."""
    start_seconds: float = 45.0
    """Seconds added to each run for start-up, compilation and the first thousand steps."""
    repeats: int = 2
    """Runs of each arm, in turns."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/updaters.jsonl."""

    @property
    def whole_seconds(self) -> float:
        return self.start_seconds + self.warm_seconds + self.seconds

    def arms(self) -> list[Arm]:
        first = Arm("as it is", self.collectors[0], self.updaters[0], self.uses[0], self.logged[0])
        return [
            first,
            *(first._replace(name=f"{number} updaters", updaters=number) for number in self.updaters[1:]),
            *(first._replace(name=f"labels used {number} times", uses=number) for number in self.uses[1:]),
            *(first._replace(name=f"{share:.0%} logged", logged=share) for share in self.logged[1:]),
            *(first._replace(name=f"{number} collectors", collectors=number) for number in self.collectors[1:]),
        ]


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench updaters")


def measure(options: Options) -> list[Record]:
    now, runs = conditions(), []  # type: dict[str, Any], list[Run]
    with tempfile.TemporaryDirectory() as directory:
        logs = write_logs(Path(directory) / "logs", options.log_episodes)
        for seed in range(options.repeats):
            for arm in rotated(options.arms(), seed):
                runs.append(_run(options, arm, seed, logs))
                said = runs[-1].get("failure") or ", ".join(f"{runs[-1][name]:,.1f} {name}" for name in RATES)
                print(f"repeat {seed}: {arm.name}: {said}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def write_logs(path: Path, episodes: int) -> Path:
    """Log episodes of a uniformly random policy on grasping."""
    import numpy as np

    from rookery.run import demonstrations

    rng = np.random.default_rng(0)
    act = lambda now: rng.uniform(-1, 1, (episodes, 4)).astype(np.float32)
    demonstrations.write(path, demonstrations.play("grasping", act, episodes=episodes), env="grasping")
    return path


def _run(options: Options, arm: Arm, seed: int, logs: Path) -> Run:
    command = [*arm.words(options, logs), "--seed", str(seed), "--json"]
    shown = " ".join(["rookery", *command]).replace(str(logs), "PATH")
    found: Run = {"arm": arm.name, "seed": seed, "command": shown}
    with tempfile.TemporaryDirectory() as runs:
        done = process.rookery(command, runs=Path(runs), timeout=options.whole_seconds + 300)
        if done.failure:
            return found | {"failure": done.failure}
        return found | window(read_metrics(Path(done.answer["run"])), options)


def window(rows: Rows, options: Options) -> Run:
    """Measure the steady part of a run: rates of the three counters, and means of the lags."""
    learning = [row for row in rows if row["updates"] > 0 and "refined/batches" in row]
    begin = learning[0]["seconds"] + options.warm_seconds if learning else 0.0
    inside = [row for row in learning if begin <= row["seconds"] <= begin + options.seconds + 1.0]
    inside = inside[:-1]  # the last one is written after the checkpoint
    if len(inside) < 2:
        return {"failure": f"no metrics {options.warm_seconds:g} s after the first update: ask for more --start-seconds"}
    first, last = inside[0], inside[-1]
    wall = last["seconds"] - first["seconds"]
    rates = {name: (last[counter] - first[counter]) / wall for name, counter in RATES.items()}
    return rates | {name: mean([row[metric] for row in inside]) for name, metric in MEANS.items()} | {"window": wall}


def summarise(options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    rows: dict[str, Run] = {}
    for arm in options.arms():
        mine = [run for run in runs if run["arm"] == arm.name and "failure" not in run]
        known = lambda name, mine=mine: [run[name] for run in mine if run.get(name) is not None]
        rows[arm.name] = {**arm._asdict(), "runs": len(mine)} | {name: median(known(name)) for name in (*RATES, *MEANS)}
    return Record(
        bench="updaters",
        subject="grasping, one number changed at a time",
        command=f"rookery bench updaters --seconds {options.seconds:g} --repeats {options.repeats}",
        conditions=now,
        settings={
            "pause": options.pause, "seconds": options.seconds, "log_episodes": options.log_episodes,
            "seeds": list(range(options.repeats)),
        },
        rows=list(rows.values()),
        verdicts=_verdicts(options, rows),
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )  # fmt: skip


def _verdicts(options: Options, rows: dict[str, Run]) -> list[Verdict]:
    """Hold the arm of each changed number against the first: what should rise with it, and what should stay."""
    collected, labelled, updates = RATES
    told = []

    def of(arm: str, name: str, *, at_least: float) -> None:
        told.append(Verdict.of(f"{name}, {arm} / as it is", ratio(rows[arm][name], rows["as it is"][name]), at_least=at_least))

    for number in options.updaters[1:2]:
        of(f"{number} updaters", labelled, at_least=FASTER)
        of(f"{number} updaters", collected, at_least=STEADY)
    for number in options.uses[1:2]:
        of(f"labels used {number} times", updates, at_least=FASTER)
    for number in options.collectors[1:2]:
        of(f"{number} collectors", labelled, at_least=STEADY)
    for share in options.logged[1:2]:
        of(f"{share:.0%} logged", labelled, at_least=STEADY)
    return told
