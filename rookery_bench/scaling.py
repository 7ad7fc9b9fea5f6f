"""Throughput over 1…N collectors, on each runtime, over 1…M devices of the learner and over 1…L learners; the cost of
an all-reduce over them; and what each edge moves per step.

rookery bench scaling --collectors 2 --devices 2 --learners 2
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rookery_bench import process, reduction
from rookery_bench.metrics import read_metrics
from rookery_bench.pong import steady
from rookery_bench.record import Record, conditions
from rookery_bench.statistics import ratio

Run = dict[str, Any]  # one measurement, as it is kept in the record
NOTES = [
    "steps/s and trained/s: from the warm-up to the end of the window, from the run's metrics.",
    "efficiency: steps/s over as many times the steps/s of one collector (device, learner) of the same kind. Devices and "
    "learners share the batches of one collector.",
    f"sum, vector and tree: milliseconds to sum {reduction.MEGABYTES:g} MB over them, as one vector and as {reduction.LEAVES} "
    "leaves. Learners sum the gradient as one vector, over TCP of one machine here.",
    "B/step: bytes that all edges of the graph move per step, as `rookery show` counts them. On ray they pass through the "
    "object store, on local they are written in place.",
    "Devices of a CPU are parts of the same cores, and so are learners on one machine: their rows show what sharing a batch "
    "costs, not what it gains.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sampling and training throughput over collectors, devices and learners."""

    collectors: int = 2
    """Measured with 1, 2, 4 … up to this many."""
    devices: int = 1
    """Measured with 1, 2, 4 … up to this many; host devices where there are no others."""
    learners: int = 1
    """Measured with 1, 2, 4 … up to this many processes, where it is more than 1."""
    env: str = "CartPole-v1"
    """Its id; `rookery list envs` shows some."""
    envs_per_collector: int = 32
    """Environments of each collector."""
    seconds: float = 20.0
    """Length of each measured window."""
    start_seconds: float = 30.0
    """Seconds added to each run for start-up, compilation and warm-up."""
    warm_seconds: float = 3.0
    """Warm-up after the first update, before the window begins."""
    runtimes: tuple[str, ...] = ("local", "ray")
    """Runtimes that are measured."""
    train_options: str = ""
    """More options for `rookery train impala`."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/scaling.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench scaling")


def counts(most: int) -> list[int]:
    """Count 1, 2, 4 … and the most."""
    return sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)})


def measure(options: Options) -> list[Record]:
    now, runs = conditions(), []
    for runtime in options.runtimes:
        if runtime == "ray" and importlib.util.find_spec("ray") is None:
            print("ray is not installed: its rows are left out", file=sys.stderr)
            continue
        runs += [_run(options, runtime, collectors=n) for n in counts(options.collectors)]
        if options.learners > 1:
            runs += [_run(options, runtime, learners=n) for n in counts(options.learners)]
    runs += [_run(options, "local", devices=n) for n in counts(options.devices) if n > 1]
    return [summarise(options, now, runs)]


def _run(options: Options, runtime: str, *, collectors: int = 1, devices: int = 1, learners: int | None = None) -> Run:
    """Train once and measure. learners: in processes of their own; None: one with the driver."""
    num_envs, seconds = options.envs_per_collector * collectors, options.seconds + options.start_seconds
    common = ["impala", "--env", options.env, "--collectors", str(collectors), "--num-envs", str(num_envs)]
    common += ["--rollouts-per-batch", "1", "--devices", str(devices), *shlex.split(options.train_options)]
    words = ["train", *common, "--runtime", runtime, "--total-steps", str(10**12), "--seconds", f"{seconds:g}"]
    words += ["--eval-episodes", "0", "--json", *([] if learners is None else ["--learners", str(learners)])]
    found: Run = {"runtime": runtime, "collectors": collectors, "devices": devices, "learners": learners}
    found["command"] = " ".join(["rookery", *words])
    before = os.environ.get("XLA_FLAGS")
    if devices > 1:
        os.environ["XLA_FLAGS"] = f"{before or ''} --xla_force_host_platform_device_count={devices}".strip()
    try:
        with tempfile.TemporaryDirectory() as runs:
            shown = process.rookery(["show", *common, "--json"], runs=Path(runs), timeout=120)
            done = process.rookery(words, runs=Path(runs), timeout=seconds + 120)
            rows = [] if done.failure else read_metrics(Path(done.answer["run"]))
    finally:
        os.environ.pop("XLA_FLAGS", None) if before is None else os.environ.__setitem__("XLA_FLAGS", before)
    window = steady(rows, warm=options.warm_seconds, length=options.seconds, until=seconds)
    if done.failure or shown.failure or window is None:
        return found | {
            "failure": done.failure or shown.failure or "no metrics after the warm-up: ask for more --start-seconds"
        }
    counted = f"{collectors} collectors, {devices} devices, {learners or 'no'} learners of their own"
    print(f"{runtime}, {counted}: {window.env_steps_per_s:,.0f} steps/s", file=sys.stderr)
    sums: dict[str, float] = {}
    if (many := learners or 1) * devices > 1 and runtime == "local":
        sums = reduction.reduction(processes=many, devices=devices)
    moved = bytes_per_step(shown.answer, sharing=many if learners else 1)
    return found | window._asdict() | {"bytes_per_step": moved, "sum": sums}


def bytes_per_step(graph: dict[str, Any], sharing: int = 1) -> dict[str, float]:
    """Count the bytes of each edge of a shown graph per step: rollouts and batches once, parameters per update and collector.

    sharing: processes of an all-reduce of a gradient as large as the parameters, each sending and receiving all of it."""
    steps = int(graph["facts"]["steps per update"].replace(",", ""))
    per_update = {"parameters": graph["nodes"]["collector"]}
    batch = next(edge["nbytes"] for edge in graph["edges"] if edge["name"] == "batches")
    of = lambda edge: batch if edge["name"] == "rollouts" else edge["nbytes"] * per_update.get(edge["name"], 1)
    moved = {edge["name"]: round(of(edge) / steps, 1) for edge in graph["edges"]}
    parameters = next(edge["nbytes"] for edge in graph["edges"] if edge["name"] == "parameters")
    return moved | {"gradients": round((sharing > 1) * sharing * parameters / steps, 1)}


def _times(run: Run) -> int:
    return run["collectors"] * run["devices"] * (run["learners"] or 1)


def summarise(options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    good = [run for run in runs if "failure" not in run]
    kind = lambda run: (run["runtime"], run["learners"] is not None)
    alone_of = {kind(run): run["env_steps_per_s"] for run in good if _times(run) == 1}
    rows = []
    for run in good:
        alone = ratio(run["env_steps_per_s"], alone_of.get(kind(run)))
        rows.append(
            {name: run[name] for name in ("runtime", "collectors", "devices", "learners")}
            | {"steps/s": run["env_steps_per_s"], "trained/s": run["trained_steps_per_s"]}
            | {"efficiency": None if alone is None else alone / _times(run), "learner_idle": run["learner_idle"]}
            | {f"sum, {shape}": run["sum"].get(shape) for shape in ("vector", "tree")}
            | {f"{edge} B/step": nbytes for edge, nbytes in run["bytes_per_step"].items()}
        )
    return Record(
        bench="scaling",
        subject=f"scaling of impala on {options.env}",
        command=f"rookery bench scaling --collectors {options.collectors} --devices {options.devices} "
        f"--learners {options.learners} --env {options.env} "
        f"--envs-per-collector {options.envs_per_collector} --seconds {options.seconds:g}",
        conditions=now,
        settings={"seconds": options.seconds, "envs_per_collector": options.envs_per_collector, "train": options.train_options},
        rows=rows,
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
