"""Does a long run grow, and does it leave anything behind?

rookery bench memory --minutes 10
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from rookery_bench import process
from rookery_bench.metrics import curve, read_metrics
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import slope

SKIP = 0.25  # of the run, from its start: caches and queues fill
WINDOWS = 12  # of the rest: what counts is the peak of each, because buffers come and go between them
NOTES = [
    "Memory is the resident size of the process and its descendants, seen from outside; growth is the slope of the "
    f"least-squares line through the peaks of {WINDOWS} windows after the first {SKIP:.0%} of the run: the size swings "
    "with the buffers of the compiled programs, and what would end a run is its peak. A checkpoint every 100 updates.",
    "Left behind: processes that inherited a mark from the run's environment, the ports that they listen on, and "
    "entries of /dev/shm that are new and that no process maps.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Growth of memory over a long run, and what is left after it."""

    minutes: float = 10.0
    """Length of the run."""
    env: str = "ALE/Pong-v5"
    """Its id; `rookery list envs` shows some."""
    system: str = "impala"
    """The system that is trained."""
    seed: int = 0
    """Of the run."""
    sample_seconds: float = 5.0
    """Seconds between two looks at the memory."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/memory.jsonl."""


@dataclass
class MemoryWatch:
    """What was seen of a process tree while it lived."""

    began: float = field(default_factory=time.perf_counter)
    samples: list[tuple[float, float]] = field(default_factory=list)  # seconds, MB
    threads: int = 0
    children: int = 0
    ports: set[int] = field(default_factory=set)

    def __call__(self, pid: int) -> None:
        pids = process.tree(pid)
        self.samples.append((round(time.perf_counter() - self.began, 2), round(process.resident_mb(pid), 2)))
        self.threads = max(self.threads, process.threads(pid))
        self.children = max(self.children, len(pids) - 1)
        self.ports |= set(process.listening(pids))
        print(f"{self.samples[-1][0]:6.0f} s  {self.samples[-1][1]:8.1f} MB", file=sys.stderr, flush=True)


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench memory")


def measure(options: Options) -> list[Record]:
    now, seconds, mark = conditions(), options.minutes * 60, uuid.uuid4().hex
    command = [
        "train", options.system, "--env", options.env, "--total-steps", str(10**12), "--seconds", f"{seconds:g}",
        "--checkpoint-every", "100", "--seed", str(options.seed), "--json",
    ]  # fmt: skip
    segments = process.shared_memory()
    watch = MemoryWatch()
    with tempfile.TemporaryDirectory() as runs:
        how: dict[str, Any] = {"mark": mark, "watch": watch, "watch_seconds": options.sample_seconds}
        done = process.rookery(command, runs=Path(runs), timeout=seconds + 300, **how)
        points = [] if done.failure else curve(read_metrics(Path(done.answer["run"])))
    orphans = [pid for pid in process.marked(mark) if pid != os.getpid()]
    left = {
        "processes": len(orphans),
        "ports": process.listening(orphans),
        "shared_memory": sorted(process.unused(process.shared_memory() - segments)),
    }
    return [summarise(options, now, " ".join(["rookery", *command]), watch, left, done, points)]


def growth(samples: list[tuple[float, float]], skip: float = SKIP) -> float | None:
    """Fit the growth of the peaks, in MB per minute, after the first part of the run."""
    if not samples:
        return None
    last = samples[-1][0]
    begin = samples[0][0] + skip * (last - samples[0][0])
    width = (last - begin) / WINDOWS or 1.0
    peaks: dict[int, float] = {}
    for seconds, mb in samples:
        if seconds >= begin:
            window = min(WINDOWS - 1, int((seconds - begin) / width))
            peaks[window] = max(mb, peaks.get(window, 0.0))
    return slope([width * window / 60 for window in peaks], list(peaks.values()))


def summarise(
    options: Options,
    now: dict[str, Any],
    command: str,
    watch: MemoryWatch,
    left: dict[str, Any],
    done: process.Finished,
    points: list[tuple[float, int, float | None]],
) -> Record:
    """Summarise a run. points: (minutes, env_steps, return_mean), kept because long runs are dear."""
    training = [sample for sample in watch.samples if sample[0] <= options.minutes * 60]  # then it evaluates and closes
    sizes = [mb for _, mb in training]
    per_minute = growth(training)
    row = {
        "run": f"{options.system} on {options.env}",
        "minutes": done.seconds / 60,
        "env_steps": done.answer.get("env_steps"),
        "return_mean": done.answer.get("return_mean"),
        "MB_at_the_end": sizes[-1] if sizes else None,
        "peak_MB": max(sizes, default=None),
        "MB_per_minute": per_minute,
        "threads": watch.threads,
        "child_processes": watch.children,
        "listening_ports": len(watch.ports),
        "left_behind": left["processes"] + len(left["ports"]) + len(left["shared_memory"]),
    }
    return Record(
        bench="memory",
        subject=f"memory of {options.system} on {options.env}",
        command=f"rookery bench memory --minutes {options.minutes:g} --env {options.env} --system {options.system} "
        f"--seed {options.seed}",
        conditions=now,
        settings={"minutes": options.minutes, "seeds": [options.seed], "sample_seconds": options.sample_seconds},
        rows=[row],
        verdicts=[
            Verdict.of("growth, MB per minute", per_minute, at_most=1.0),
            Verdict.of("ports that listened during the run", float(len(watch.ports)), at_most=0.0),
            Verdict.of("processes, ports and shared memory left behind", float(row["left_behind"]), at_most=0.0),
        ],
        notes=NOTES,
        runs=[
            {"command": command, "samples": watch.samples, "left": left, "curve": points}
            | {"answer": done.answer | {"run": None}}
        ],
        failures=[f"{command}: {done.failure}"] if done.failure else [],
    )
