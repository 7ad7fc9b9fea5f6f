"""CartPole-v1 with DQN: steps per second at stable-baselines3's update ratio, and seconds to an evaluated return of 475.

    rookery bench dqn --peers DIR --sb3-python PATH
    rookery bench dqn --part idle      # Ape-X: the share of its time that the learner has no batch

The ratio is that of the peer's driver: 128 gradient steps on batches of 64 for 256 environment steps, a network of two
layers of 256. Rookery steps 16 environments 16 times for that, and takes the 128 batches out of the table at once; on
ActorLearner, so that the next steps are made while it learns.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro

from rookery_bench import peers, process
from rookery_bench.cartpole import Run, Runs, our_run, peer_run, row_of, told
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio, rotated, spread

OURS, PEER = "rookery", "stable-baselines3"
SAME_RATIO = (
    "--topology actor-learner --groups 1 --num-envs 16 --rollout-length 16 --batch-size 64 "
    "--gradient-steps 128 --replay.samples-per-insert 32 "
    "--replay.min-size 1000 --network.hidden 256 256 --learning-rate 2.3e-3 --target-period 128 --epsilon-steps 8000 "
    "--no-double"
)
STEPS = 150_000
STEPS_BAR, SECONDS_BAR, IDLE_BAR = 5.0, 60.0, 0.05
NOTES = [
    "Both take turns, seed by seed, and the order rotates; figures are medians over the seeds, with ranges.",
    "rookery's steps/s: environment steps of a whole process divided by its time on the clock, seen from outside: "
    "imports, compilation, checkpoints and the final evaluation included; trained/s: from its first second with an update to "
    "the end of training, checkpoints included. stable-baselines3's steps/s: over its first 50,000 steps, imports left out.",
    "rookery's XLA has one thread, and its collector steps environments in another; stable-baselines3's torch has 1 thread.",
    "Time to the target: with the options that `dqn` has for CartPole-v1, from the start of the process to its exit; greedy "
    "episodes are evaluated 20 times in a run.",
]
IDLE_NOTES = [
    "From the first update, when the table may be sampled, to the last: the time between the end of an update and the start of "
    "the next, divided by all of it. Ten checkpoints are in it, which are written meanwhile.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """CartPole-v1 DQN: steps/s at one update ratio beside stable-baselines3, and time to the target."""

    part: Literal["speed", "idle"] = "speed"
    """speed: steps/s beside the peer, and time to the target; idle: how long the learner waits."""
    seeds: int = 5
    """Seeds 0, 1, ..."""
    peers: str | None = None
    """Directory of the peers' drivers (sb3.py)."""
    sb3_python: str | None = None
    """Interpreter that has stable-baselines3."""
    total_steps: int | None = None
    """Environment steps of the runs that measure steps/s or idle time; None: 150,000 of DQN, and those of Ape-X's preset."""
    target: float = 475.0
    """Mean return of evaluated greedy episodes."""
    timeout_seconds: float = 600.0
    """Time limit of one run; the peer gives up on the target after half of it."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/dqn.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench dqn")


def measure(options: Options) -> list[Record]:
    now = conditions()
    if options.part == "idle":
        return [_idle(options, now)]
    others = peers.chosen(options.peers, [(PEER, options.sb3_python, ("sb3.py", "cartpole_dqn", "--threads", "1"))])
    runs: Runs = []
    same = [*SAME_RATIO.split(), "--total-steps", str(options.total_steps or STEPS)]
    for seed in range(options.seeds):
        turns: list[Callable[[], Run]] = [
            partial(_ours, options, "dqn", "rate", same, seed),
            partial(_ours, options, "dqn", "target", ["--stop-eval-return", f"{options.target:g}"], seed),
            *(partial(_theirs, options, peer, seed) for peer in others),
        ]
        for turn in rotated(turns, seed):
            runs.append(turn())
            print(f"seed {seed}: {told(runs[-1])}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def _ours(options: Options, system: str, kind: str, words: list[str], seed: int) -> Run:
    command = ["train", system, "--env", "CartPole-v1", *words, "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as place:
        done = process.rookery(command, runs=Path(place) / "runs", cache=Path(place) / "cache", timeout=options.timeout_seconds)
        found = our_run(OURS, kind, seed, " ".join(["rookery", *command]), done)
        if not done.failure:
            found["learner_idle"] = done.answer.get("learner_idle")
            found["trained_steps_per_s"] = _trained(Path(done.answer["run"]) / "metrics.jsonl")
    return found


def _trained(metrics: Path) -> float | None:
    """Compute steps per second after the start: between the first and the last row with an update."""
    if not metrics.exists():
        return None
    rows = [row for row in map(json.loads, metrics.read_text().splitlines()) if row["updates"]]
    seconds = rows[-1]["seconds"] - rows[0]["seconds"] if rows else 0.0
    return (rows[-1]["env_steps"] - rows[0]["env_steps"]) / seconds if seconds > 0 else None


def _theirs(options: Options, peer: peers.PeerLibrary, seed: int) -> Run:
    cap = options.timeout_seconds / 2
    done = peer.measure(options.peers or "", seed=seed, timeout=options.timeout_seconds, cap_seconds=cap)
    return peer_run(peer.name, seed, peer.command(seed), done)


def summarise(options: Options, now: dict[str, Any], runs: Runs) -> Record:
    arms = [arm for arm in (OURS, PEER) if any(run["arm"] == arm for run in runs)]
    rows = {arm: row_of([run for run in runs if run["arm"] == arm], arm) for arm in arms}
    now = now | {"versions": now["versions"] | peers.versions([run["answer"] for run in runs if "answer" in run])}
    places = {"peers": options.peers, "sb3-python": options.sb3_python}
    verdicts = [Verdict.of(f"seconds to an evaluated {options.target:g}", rows[OURS]["s_to_target"], at_most=SECONDS_BAR)]
    trained = [run["trained_steps_per_s"] for run in runs if run["kind"] == "rate" and run.get("trained_steps_per_s")]
    rows[OURS] |= {"trained/s": median(trained), "trained/s_range": spread(trained)}
    if PEER in rows:
        quotient = lambda name: ratio(rows[OURS][name], rows[PEER]["steps/s"])
        parts = {"steps/s after the start": "trained/s", "steps/s of the whole process": "steps/s"}
        both = [Verdict.of(f"{what}, {OURS} / {PEER}", quotient(name), at_least=STEPS_BAR) for what, name in parts.items()]
        verdicts = [*both, *verdicts]
    return Record(
        bench="dqn",
        subject="CartPole-v1, DQN, one gradient step of 64 for 2 steps",
        command=" ".join([
            f"rookery bench dqn --seeds {options.seeds} --total-steps {options.total_steps or STEPS}",
            f"--timeout-seconds {options.timeout_seconds:g}", *(f"--{flag} PATH" for flag, place in places.items() if place),
        ]),
        conditions=now,
        settings={"seeds": list(range(options.seeds)), "total_steps": options.total_steps or STEPS, "target": options.target},
        rows=list(rows.values()),
        verdicts=verdicts,
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )  # fmt: skip


def _idle(options: Options, now: dict[str, Any]) -> Record:
    """Measure the share of the learner's time, from its first update to its last, that it had no batch."""
    runs: Runs = []
    steps = ["--total-steps", str(options.total_steps)] if options.total_steps else []
    for seed in range(options.seeds):
        runs.append(_ours(options, "apex-dqn", "rate", steps, seed))
        print(f"seed {seed}: {told(runs[-1])}, learner idle {runs[-1].get('learner_idle')}", file=sys.stderr, flush=True)
    shares = [run["learner_idle"] for run in runs if run.get("learner_idle") is not None]
    row = row_of(runs, OURS)
    return Record(
        bench="dqn",
        subject="CartPole-v1, Ape-X: the learner's idle time",
        command=" ".join(["rookery bench dqn --part idle --seeds", str(options.seeds), *steps]),
        conditions=now,
        settings={"seeds": list(range(options.seeds)), "total_steps": options.total_steps},
        rows=[{"arm": OURS, "steps/s": row["steps/s"], "learner_idle": median(shares), "learner_idle_range": spread(shares)}],
        verdicts=[Verdict.of("learner idle", median(shares), at_most=IDLE_BAR)],
        notes=IDLE_NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
