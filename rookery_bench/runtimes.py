"""What Ray costs: the same run on `local` and on `ray`, side by side.

rookery bench runtimes --part returns      # IMPALA on CartPole: the same return at the same steps
rookery bench runtimes --part speed        # IMPALA on Pong: steps/s on the same cores
rookery bench runtimes --part rollouts     # 10 MB rollouts: bytes/s, beside bare Ray actors
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rookery_bench import process, returns
from rookery_bench.metrics import read_metrics
from rookery_bench.pong import steady
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio, spread

Run = dict[str, Any]  # one measurement, as it is kept in the record
RUNTIMES = ("local", "ray")
WARM_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """IMPALA on `local` and on `ray`: returns, speed, and the rate of large rollouts."""

    part: Literal["returns", "speed", "rollouts"] = "returns"
    """What is compared: returns, steps/s, or the rate of large rollouts."""
    seeds: int = 5
    """returns: seeds of each runtime."""
    total_steps: int = 400_000
    """returns: environment steps of each run."""
    repeats: int = 3
    """speed: runs of each runtime, in turns."""
    seconds: float = 60.0
    """speed: length of each measured window."""
    start_seconds: float = 45.0
    """speed: seconds added for start-up, compilation and warm-up."""
    megabytes: float = 10.0
    """rollouts: size of each."""
    rounds: int = 7
    """rollouts: rounds of both sides, in turns."""
    train_options: str = ""
    """More options for `rookery train impala`."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/runtimes.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench runtimes")


def measure(options: Options) -> list[Record]:
    now = conditions()
    return [{"returns": _returns, "speed": _speed, "rollouts": _rollouts}[options.part](options, now)]


def _returns(options: Options, now: dict[str, Any]) -> Record:
    more = shlex.split(options.train_options)
    arms = {name: ["train", "impala", "--env", "CartPole-v1", "--runtime", name, *more] for name in RUNTIMES}
    runs = returns.in_turns(arms, seeds=options.seeds, total_steps=options.total_steps)
    rows, verdict = returns.compared(arms, runs)
    return _record(options, now, "CartPole-v1, return at equal steps", rows, [verdict], runs, [returns.NOTE])


def _speed(options: Options, now: dict[str, Any]) -> Record:
    runs: list[Run] = []
    total = options.seconds + options.start_seconds
    for number in range(options.repeats):
        for runtime in RUNTIMES if number % 2 == 0 else RUNTIMES[::-1]:
            words = ["--env", "ALE/Pong-v5", "--seconds", f"{total:g}", "--eval-episodes", "0"]
            found, rows = _train(options, runtime, number, words, timeout=total + 300)
            window = steady(rows, warm=WARM_SECONDS, length=options.seconds, until=total)
            if window is None and "failure" not in found:
                found |= {"failure": "no metrics after the warm-up: ask for more --start-seconds"}
            runs.append(found | (window._asdict() if window else {}))
            print(f"{runtime}: {window.env_steps_per_s if window else 0:,.0f} steps/s", file=sys.stderr, flush=True)
    table: list[Run] = []
    for runtime in RUNTIMES:
        mine = [run for run in runs if run["runtime"] == runtime and "env_steps_per_s" in run]
        rates = [run["env_steps_per_s"] for run in mine]
        idle = median([run["learner_idle"] for run in mine])
        row = {"runtime": runtime, "runs": len(mine), "steps/s": median(rates), "range": spread(rates), "learner_idle": idle}
        table.append(row)
    verdict = Verdict.of("steps/s, ray / local", ratio(table[1]["steps/s"], table[0]["steps/s"]), at_least=0.8)
    return _record(options, now, "ALE Pong, steps/s", table, [verdict], runs, [
        f"From {WARM_SECONDS:g} s after the first update, over {options.seconds:g} s, in turns; one collector each."
    ])  # fmt: skip


def _rollouts(options: Options, now: dict[str, Any]) -> Record:
    words = ["--megabytes", f"{options.megabytes:g}", "--rounds", str(options.rounds)]
    command = ["-m", "rookery_bench.bare_ray", *words]
    done = process.run([sys.executable, *command], timeout=600, env=process.environment())
    rounds = done.answer.get("rounds", [])
    of = lambda name: [found[name] for found in rounds]
    rows = [
        {"side": side, "GB/s": median(of(name)), "range": spread(of(name))}
        for side, name in (("bare Ray actors", "bare"), ("rookery", "ours"))
    ]
    verdict = Verdict.of("GB/s, rookery / bare Ray, median of the rounds' ratios", median(of("ratio")), at_least=0.8)
    runs: list[Run] = [found | {"command": "python " + " ".join(command)} for found in rounds]
    if done.failure:
        runs.append({"command": "python " + " ".join(command), "failure": done.failure})
    return _record(options, now, f"{options.megabytes:g} MB rollouts to the learner", rows, [verdict], runs, [
        "Bare Ray: an actor returns a dict of arrays, the driver has views of it. Rookery: the rollout is copied into its slot."
    ])  # fmt: skip


def _train(options: Options, runtime: str, seed: int, words: list[str], *, timeout: float) -> tuple[Run, list[Any]]:
    command = ["train", "impala", *words, "--runtime", runtime, *shlex.split(options.train_options)]
    command += ["--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as runs:
        done = process.rookery(command, runs=Path(runs), timeout=timeout)
        found: Run = {"runtime": runtime, "seed": seed, "command": shlex.join(["rookery", *command])}
        if done.failure:
            return found | {"failure": done.failure}, []
        return found | {name: done.answer.get(name) for name in returns.KEPT}, read_metrics(Path(done.answer["run"]))


def _record(
    options: Options,
    now: dict[str, Any],
    subject: str,
    rows: list[Any],
    verdicts: list[Verdict],
    runs: list[Run],
    notes: list[str],
) -> Record:
    runs_of = {"returns": options.seeds, "speed": options.repeats, "rollouts": 0}
    more = {"returns": f"--seeds {options.seeds} --total-steps {options.total_steps}"}
    more |= {"speed": f"--repeats {options.repeats} --seconds {options.seconds:g}"}
    more |= {"rollouts": f"--megabytes {options.megabytes:g} --rounds {options.rounds}"}
    command = f"rookery bench runtimes --part {options.part} {more[options.part]}"
    return Record(
        bench="runtimes",
        subject=f"local and ray: {subject}",
        command=command + (f' --train-options="{options.train_options}"' if options.train_options else ""),
        conditions=now,
        settings={"seeds": list(range(runs_of[options.part])), "train": options.train_options},
        rows=rows,
        verdicts=verdicts,
        notes=notes,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
