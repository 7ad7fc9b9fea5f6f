"""CartPole-v1 with PPO: steps per second of a whole run, and seconds from typing the command to a return of 475.

rookery bench cartpole --peers DIR --sb3-python PATH --rejax-python PATH
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from rookery_bench import peers, process
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio, rotated, spread

Run = dict[str, Any]  # one measurement, as it is kept in the record
Runs = list[Run]
FIRST, AGAIN = "rookery, first run", "rookery, compiled before"
NOTES = [
    "All arms take turns, seed by seed, and the order rotates; figures are medians over the seeds, with ranges.",
    "rookery's steps/s: environment steps of a whole process divided by its time on the clock, seen from outside: "
    "imports, compilation, checkpoints and the final evaluation included.",
    "rookery's time to the target: from the start of the process to its exit, evaluation and checkpoint included; "
    "'own clock' is the moment when the mean of the last 100 training episodes reached the target.",
    "'first run' starts with an empty compilation cache, as a newcomer's does; 'compiled before' repeats it.",
]
PEER_NOTES = {
    "stable-baselines3": "stable-baselines3's steps/s: over its first 100,000 steps, imports left out (1 thread); "
    "time to the target: import_s + time_to_target_s of its driver (mean of the last 100 training episodes), without "
    "starting Python and building the model.",
    "rejax": "rejax's time to the target: import_s + compile_s + the share of its run until an evaluation of 128 fresh "
    "episodes reaches it once; it steps a JAX copy of CartPole; its steps/s leaves out imports and compilation.",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """CartPole-v1 PPO: steps/s and time to the target, beside stable-baselines3 and rejax."""

    seeds: int = 5
    """Seeds 0, 1, ..."""
    peers: str | None = None
    """Directory of the peers' drivers (sb3.py, rejax_peer.py)."""
    sb3_python: str | None = None
    """Interpreter that has stable-baselines3."""
    rejax_python: str | None = None
    """Interpreter that has rejax."""
    total_steps: int = 1_000_000
    """Environment steps of the runs that measure steps/s."""
    target: float = 475.0
    """Mean return of 100 episodes; the peers' drivers know 475 only."""
    warm: bool = True
    """Repeat each of rookery's runs with what the first one compiled."""
    timeout_seconds: float = 600.0
    """Time limit of one run; a peer gives up on the target after half of it."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/cartpole.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench cartpole")


def measure(options: Options) -> list[Record]:
    now = conditions()
    others = peers.chosen(options.peers, [
        ("stable-baselines3", options.sb3_python, ("sb3.py", "cartpole_ppo", "--threads", "1")),
        ("rejax", options.rejax_python, ("rejax_peer.py", "cartpole_ppo")),
    ])  # fmt: skip
    runs: Runs = []
    for seed in range(options.seeds):
        turns: list[Callable[[], Runs]] = [
            partial(_ours, options, "rate", ["--total-steps", str(options.total_steps)], seed),
            partial(_ours, options, "target", ["--stop-return", f"{options.target:g}"], seed),
            *(partial(_theirs, options, peer, seed) for peer in others),
        ]
        for turn in rotated(turns, seed):
            for run in turn():
                runs.append(run)
                print(f"seed {seed}: {told(run)}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def _ours(options: Options, kind: str, words: list[str], seed: int) -> Runs:
    """Run with an empty compilation cache and, if asked, again with what was compiled."""
    command = ["train", "ppo", "--env", "CartPole-v1", *words, "--seed", str(seed), "--json"]
    results = []
    with tempfile.TemporaryDirectory() as place:
        for arm in (FIRST, AGAIN) if options.warm else (FIRST,):
            done = process.rookery(
                command, runs=Path(place) / "runs", cache=Path(place) / "cache", timeout=options.timeout_seconds
            )
            results.append(our_run(arm, kind, seed, " ".join(["rookery", *command]), done))
    return results


def our_run(arm: str, kind: str, seed: int, command: str, done: process.Finished) -> Run:
    found: Run = {"arm": arm, "kind": kind, "seed": seed, "command": command, "wall_seconds": round(done.seconds, 3)}
    if done.failure:
        return found | {"failure": done.failure}
    names = ("env_steps", "seconds", "seconds_to_target", "return_mean", "eval_return_mean")
    found |= {name: done.answer.get(name) for name in names}
    if kind == "rate":
        found["steps_per_s"] = done.answer["env_steps"] / done.seconds
    else:
        reached = done.answer.get("seconds_to_target") is not None
        found["to_target_seconds"] = found["wall_seconds"] if reached else None
    return found


def _theirs(options: Options, peer: peers.PeerLibrary, seed: int) -> Runs:
    cap = options.timeout_seconds / 2
    done = peer.measure(options.peers or "", seed=seed, timeout=options.timeout_seconds, cap_seconds=cap)
    return [peer_run(peer.name, seed, peer.command(seed), done)]


def peer_run(arm: str, seed: int, command: str, done: process.Finished) -> Run:
    found: Run = {"arm": arm, "kind": "both", "seed": seed, "command": command, "wall_seconds": round(done.seconds, 3)}
    if done.failure:
        return found | {"failure": done.failure}
    return found | {
        "steps_per_s": done.answer.get("steps_per_s"),
        "to_target_seconds": peers.time_to_target(done.answer),
        "answer": done.answer,
    }


def summarise(options: Options, now: dict[str, Any], runs: Runs) -> Record:
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    arms.sort(key=lambda arm: not arm.startswith("rookery"))
    rows = {arm: row_of([run for run in runs if run["arm"] == arm], arm) for arm in arms}
    now = now | {"versions": now["versions"] | peers.versions([run["answer"] for run in runs if "answer" in run])}
    return Record(
        bench="cartpole",
        subject="CartPole-v1, PPO",
        command=_command(options),
        conditions=now,
        settings={"seeds": list(range(options.seeds)), "total_steps": options.total_steps, "target": options.target},
        rows=list(rows.values()),
        verdicts=_verdicts(rows),
        notes=NOTES + [note for name, note in PEER_NOTES.items() if name in rows],
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )


def _command(options: Options) -> str:
    words = [f"rookery bench cartpole --seeds {options.seeds}"]
    words += [f"--total-steps {options.total_steps}"] if options.total_steps != Options.total_steps else []
    words += [f"--target {options.target:g}"] if options.target != Options.target else []
    words += [] if options.warm else ["--no-warm"]
    places = {"peers": options.peers, "sb3-python": options.sb3_python, "rejax-python": options.rejax_python}
    return " ".join(words + [f"--{flag} PATH" for flag, place in places.items() if place])


def row_of(runs: Runs, arm: str) -> dict[str, Any]:
    rates = [run["steps_per_s"] for run in runs if run["kind"] != "target" and run.get("steps_per_s") is not None]
    timed = [run for run in runs if run["kind"] != "rate"]  # a failed run is one that never reached the target
    times = [run.get("to_target_seconds") for run in timed]
    own = [run.get("seconds_to_target") for run in timed] if arm.startswith("rookery") else []
    return {
        "arm": arm,
        "steps/s": median(rates),
        "steps/s_range": spread(rates),
        "s_to_target": median(times),
        "s_to_target_range": spread(times),
        "own_clock": median(own),
        "reached": f"{sum(time is not None for time in times)}/{len(times)}",
    }


def _verdicts(rows: dict[str, dict[str, Any]]) -> list[Verdict]:
    verdicts = []
    for ours in (arm for arm in (FIRST, AGAIN) if arm in rows):
        for theirs in (arm for arm in rows if not arm.startswith("rookery")):
            quotient = lambda name, ours=ours, theirs=theirs: ratio(rows[ours][name], rows[theirs][name])
            names = f"{ours} / {theirs}"
            if theirs == "stable-baselines3":
                verdicts.append(Verdict.of(f"steps/s, {names}", quotient("steps/s"), at_least=15.0))
            bar = 0.6 if theirs == "stable-baselines3" else 1.0
            verdicts.append(Verdict.of(f"seconds to the target, {names}", quotient("s_to_target"), at_most=bar))
    return verdicts


def told(run: Run) -> str:
    if "failure" in run:
        return f"{run['arm']}: failed: {run['failure']}"
    said = [f"{run['steps_per_s']:,.0f} steps/s"] if run.get("steps_per_s") else []
    if run["kind"] != "rate":
        seconds = run["to_target_seconds"]
        said.append("target not reached" if seconds is None else f"target after {seconds:.1f} s")
    return f"{run['arm']}: {', '.join(said)} ({run['wall_seconds']:.1f} s in all)"
