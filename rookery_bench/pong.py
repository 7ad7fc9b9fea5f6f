"""ALE Pong with an asynchronous actor-learner: steady steps/s, beside RLlib's IMPALA and Sample Factory's APPO.

rookery bench pong --peers DIR --rllib-python PATH --sf-python PATH
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from rookery_bench import peers, process
from rookery_bench.metrics import Rows, read_metrics
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import mean, median, ratio, rotated, spread

Run = dict[str, Any]  # one measurement, as it is kept in the record
Runs = list[Run]
WARM_SECONDS = 15.0  # after the first update
BARS = {"rllib": 3.3, "sample-factory": 1.5}
NOTES = [
    "A step is one decision (4 frames); every arm plays without sticky actions and learns from each step once.",
    f"rookery: from {WARM_SECONDS:g} s after the first update to the end of the window, from the run's metrics; "
    "checkpoints included, the final one and the evaluation left out. Idle and lag are means over that window.",
    "Peers: the window of their drivers, which opens after 10 to 12 s and 2,000 to 3,000 steps of training.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """ALE Pong: steady steps/s of IMPALA, beside RLlib IMPALA and Sample Factory APPO (one epoch)."""

    seconds: float = 60.0
    """Length of each measured window."""
    repeats: int = 2
    """Runs of each side, in turns."""
    start_seconds: float = 45.0
    """Seconds added to each of rookery's runs for start-up, compilation and warm-up."""
    peers: str | None = None
    """Directory of the peers' drivers (rllib.py, sample_factory_peer.py)."""
    rllib_python: str | None = None
    """Interpreter that has RLlib."""
    sf_python: str | None = None
    """Interpreter that has Sample Factory."""
    system: str = "impala"
    """The system of ours that is measured."""
    train_options: str = ""
    """More options for `rookery train`, e.g. --train-options="--num-envs 64"."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/pong.jsonl."""


class Steady(NamedTuple):
    """A run between its warm-up and its end."""

    window_seconds: float
    env_steps_per_s: float
    trained_steps_per_s: float
    updates_per_s: float
    learner_idle: float | None
    policy_lag_mean: float | None


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench pong")


def measure(options: Options) -> list[Record]:
    now = conditions()
    rllib = "rllib.py pong_actor_learner --algo impala --runners 1 --envs-per-runner 8 --min-iter-s 2 --secs"
    factory = "sample_factory_peer.py pong_actor_learner --workers 2 --envs-per-worker 4 --epochs 1 --secs"
    others = peers.chosen(options.peers, [
        ("rllib", options.rllib_python, (*rllib.split(), f"{options.seconds:g}")),
        ("sample-factory", options.sf_python, (*factory.split(), f"{options.seconds:g}")),
    ])  # fmt: skip
    runs: Runs = []
    for seed in range(options.repeats):
        turns = [partial(_ours, options, seed), *(partial(_theirs, options, peer, seed) for peer in others)]
        for turn in rotated(turns, seed):
            runs.append(turn())
            said = runs[-1].get("failure") or f"{runs[-1]['steps_per_s']:,.0f} steps/s"
            print(f"repeat {seed}: {runs[-1]['arm']}: {said}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def _ours(options: Options, seed: int) -> Run:
    seconds = options.seconds + options.start_seconds
    command = [
        "train", options.system, "--env", "ALE/Pong-v5", "--env-options", "repeat_action_probability=0",
        "--seconds", f"{seconds:g}", *shlex.split(options.train_options), "--seed", str(seed), "--json",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as runs:
        done = process.rookery(command, runs=Path(runs), timeout=seconds + 300)
        found: Run = {"arm": f"rookery {options.system}", "seed": seed, "command": " ".join(["rookery", *command])}
        if done.failure:
            return found | {"failure": done.failure}
        rows = read_metrics(Path(done.answer["run"]))
    window = steady(rows, warm=WARM_SECONDS, length=options.seconds, until=seconds)
    if window is None:
        return found | {"failure": f"no metrics {WARM_SECONDS:g} s after the first update: ask for more --start-seconds"}
    names = ("env_steps", "updates", "return_mean", "learner_idle", "policy_lag_mean", "policy_lag_max")
    whole = {f"whole_{name}": done.answer.get(name) for name in names}
    rates = {"steps_per_s": window.env_steps_per_s, "trained_per_s": window.trained_steps_per_s}
    return found | rates | window._asdict() | whole


def steady(rows: Rows, *, warm: float, length: float, until: float) -> Steady | None:
    """Compute rates from `warm` seconds after the first update, over at most `length` seconds, by rows up to `until`.

    The last row of a run is written after its final checkpoint: a rate up to there would count the saving too.
    """
    learning = [row for row in rows if row["updates"] > 0 and row["seconds"] <= until]
    if not learning:
        return None
    begin = learning[0]["seconds"] + warm
    window = [row for row in learning if begin <= row["seconds"] <= begin + length + 1.0]
    if len(window) < 2:
        return None
    first, last = window[0], window[-1]
    wall = last["seconds"] - first["seconds"]
    rate = lambda name: (last[name] - first[name]) / wall
    average = lambda name: mean([row[name] for row in window[1:] if row.get(name) is not None])
    rates = (rate("env_steps"), rate("trained_steps"), rate("updates"))
    return Steady(wall, *rates, average("learner_idle"), average("policy_lag_mean"))


def _theirs(options: Options, peer: peers.PeerLibrary, seed: int) -> Run:
    done = peer.measure(options.peers or "", seed=seed, timeout=options.seconds + 300)
    found: Run = {"arm": peer.name, "seed": seed, "command": peer.command(seed)}
    if done.failure:
        return found | {"failure": done.failure}
    return found | {
        "steps_per_s": done.answer.get("steps_per_s"),
        "trained_per_s": done.answer.get("trained_per_s"),
        "window_seconds": done.answer.get("seconds"),
        "answer": done.answer,
    }


def summarise(options: Options, now: dict[str, Any], runs: Runs) -> Record:
    rows: dict[str, dict[str, Any]] = {}
    for arm in sorted(dict.fromkeys(run["arm"] for run in runs), key=lambda arm: not arm.startswith("rookery")):
        mine = [run for run in runs if run["arm"] == arm and "failure" not in run]
        known = lambda name, mine=mine: [run[name] for run in mine if run.get(name) is not None]
        rows[arm] = {
            "arm": arm,
            "runs": len(mine),
            "steps/s": median(known("steps_per_s")),
            "range": spread(known("steps_per_s")),
            "trained/s": median(known("trained_per_s")),
            "learner_idle": median(known("learner_idle")),
            "policy_lag": median(known("policy_lag_mean")),
            "window_s": median(known("window_seconds")),
        }
    ours = f"rookery {options.system}"
    verdicts = [
        Verdict.of(f"steps/s, {ours} / {arm}", ratio(rows[ours]["steps/s"], rows[arm]["steps/s"]), at_least=BARS[arm])
        for arm in rows
        if arm in BARS
    ]
    versions = peers.versions([run["answer"] for run in runs if "answer" in run])
    flags = (("peers", options.peers), ("rllib-python", options.rllib_python), ("sf-python", options.sf_python))
    return Record(
        bench="pong",
        subject="ALE Pong, asynchronous actor-learner" + ("" if options.system == "impala" else f" ({options.system})"),
        command=" ".join(
            [f"rookery bench pong --seconds {options.seconds:g} --repeats {options.repeats}"]
            + ([f"--system {options.system}"] if options.system != "impala" else [])
            + ([f'--train-options="{options.train_options}"'] if options.train_options else [])
            + [f"--{flag} PATH" for flag, value in flags if value]
        ),
        conditions=now | {"versions": now["versions"] | versions},
        settings={"seconds": options.seconds, "seeds": list(range(options.repeats)), "train": options.train_options},
        rows=list(rows.values()),
        verdicts=verdicts,
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
