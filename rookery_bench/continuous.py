"""HalfCheetah-v5 with SAC, TD3 and DDPG at one gradient step for each environment step, beside SBX and stable-baselines3.

    rookery bench continuous --sbx-python PATH --sb3-python PATH                                # steps/s, and SAC's roofline
    rookery bench continuous --part score --system sac --sbx-python PATH --sb3-python PATH      # seconds to a return of 3,000

All have batches of 256, two layers of 256 and a rate of 3e-4. Rookery steps 8 environments and then makes 8 gradient steps,
as its defaults say; the peers step one environment and make one, as theirs do (`--burst`: as many of each at a time).
"""

from __future__ import annotations

import shlex
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
from rookery_bench.metrics import read_metrics
from rookery_bench.pong import steady
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import ratio, rotated

PARTS, LIMIT = ("environment", "inference", "table", "learner"), "limit of the parts"  # rows of the roofline
OURS, SBX, SB3 = "rookery", "sbx", "stable-baselines3"
SETTLE_SECONDS = 6.0  # after the first update: the first look at how learning stands is compiled 5 s after it
EVALUATED_STEPS = 5_000  # between evaluations, as in the driver
STEPS_BAR, LIMIT_BAR, SCORE_BAR = 1.6, 0.75, 1.0  # of the peers' steps/s and of the limit, at least; of seconds, at most
RATE_NOTES = [
    "All take turns, round by round, and the order rotates; figures are medians over the rounds, with ranges. Each run is a "
    "process of its own, and its steps/s are those of a window after everything is compiled and learning has begun: ours from "
    f"{SETTLE_SECONDS:g} s after the first update, theirs from 500 steps after it.",
    "One gradient step on 256 transitions for each environment step, networks of two layers of 256, everywhere; TD3's policy "
    "moves every second step. Torch has two threads, SBX's and our XLA what they take by themselves.",
    "The parts: `NPROC=1 rookery bench roofline SYSTEM`, in the same session: each alone, in CPU seconds. With one thread, for "
    "one that spins while it waits for another would count. The limit is cores / their sum; our runs have all cores.",
]
SCORE_NOTES = [
    "Seconds to the target: from the start of the process to the evaluation whose mean reaches it (the peers: from their "
    "imports on). Five greedy episodes every 5,000 steps, whose time counts; a run that gives up counts as infinitely slow.",
    "All act at random for 10,000 steps; meanwhile the peers do not learn, as in their zoo's settings, and ours do.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """HalfCheetah-v5 by SAC, TD3 and DDPG beside SBX and stable-baselines3: steps/s, or seconds to a return."""

    part: Literal["speed", "score"] = "speed"
    """speed: steps/s, and the roofline; score: seconds to an evaluated return."""
    system: tuple[Literal["sac", "td3", "ddpg"], ...] = ("sac", "td3", "ddpg")
    """Systems that are measured."""
    roofline: tuple[str, ...] = ("sac",)
    """Systems whose parts are measured alone as well (with part speed)."""
    rounds: int = 2
    """Runs of each; their seeds are 0, 1, ..."""
    seconds: float = 12.0
    """Length of the window in which steps are counted."""
    target: float = 3000.0
    """Mean return of evaluated greedy episodes."""
    options: str = ""
    """More options of our runs, in one word: '--update-ratio 4 --layer-norm'."""
    burst: int = 1
    """Environment steps of the peers between as many gradient steps."""
    peers: str = "benchmarks/peers"
    """The directory of the driver, continuous.py."""
    sbx_python: str | None = None
    """Interpreter that has sbx-rl."""
    sb3_python: str | None = None
    """Interpreter that has stable-baselines3."""
    env: str = "HalfCheetah-v5"
    """Environment with actions between bounds."""
    timeout_seconds: float = 3600.0
    """Time limit of one run; with part score a peer gives up on the target after as long."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append a record per system to this file, e.g. benchmarks/continuous.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench continuous")


def measure(options: Options) -> list[Record]:
    now = conditions()
    return [_of_system(options, now, system) for system in options.system]


def _of_system(options: Options, now: dict[str, Any], system: str) -> Record:
    words = ("--seconds", f"{options.seconds:g}") if options.part == "speed" else ("--target", f"{options.target:g}")
    driver = lambda library: ("continuous.py", library, system, options.env, "--burst", str(options.burst), *words)
    others = peers.chosen(options.peers, [(SBX, options.sbx_python, driver("sbx")), (SB3, options.sb3_python, driver("sb3"))])
    runs: Runs = []
    for seed in range(options.rounds):
        turns: list[Callable[[], Run]] = [
            partial(_ours, options, system, seed), *(partial(_theirs, options, peer, seed) for peer in others)
        ]  # fmt: skip
        for turn in rotated(turns, seed):
            runs.append(turn())
            print(f"{system}, seed {seed}: {told(runs[-1])}", file=sys.stderr, flush=True)
    roofline = _roofline(options, system) if options.part == "speed" and system in options.roofline else None
    return summarise(options, now, system, runs, roofline)


def command(options: Options, system: str, seed: int) -> list[str]:
    """Return our command line: it runs for as long as the window needs, or until an evaluation reaches the target."""
    words = [system, "--env", options.env, *shlex.split(options.options)]
    if options.part == "speed":
        until = ["--seconds", f"{options.seconds + SETTLE_SECONDS + 6:g}", "--eval-episodes", "0"]
    else:
        from rookery.commands import parsing

        config, _ = parsing.parse_system("train", words)
        period = max(1, round(EVALUATED_STEPS / config.steps_per_update))
        until = ["--stop-eval-return", f"{options.target:g}", "--eval-episodes", "5", "--eval-every", str(period)]
    return ["train", *words, *until, "--seed", str(seed), "--json"]


def _ours(options: Options, system: str, seed: int) -> Run:
    words, kind = command(options, system, seed), {"speed": "rate", "score": "target"}[options.part]
    with tempfile.TemporaryDirectory() as place:
        done = process.rookery(words, runs=Path(place) / "runs", timeout=options.timeout_seconds)
        found = our_run(OURS, kind, seed, shlex.join(["rookery", *words]), done)
        if kind == "rate" and not done.failure:
            rows, until = read_metrics(Path(done.answer["run"])), done.answer["seconds"]
            window = steady(rows, warm=SETTLE_SECONDS, length=options.seconds, until=until)
            late = {"steps_per_s": None, "failure": "it ended before the window did: more --seconds"}
            found |= {"steps_per_s": window.env_steps_per_s} if window else late
    return found


def _theirs(options: Options, peer: peers.PeerLibrary, seed: int) -> Run:
    cap = options.timeout_seconds
    done = peer.measure(options.peers, seed=seed, timeout=cap + 60, cap_seconds=cap)
    kind = {"speed": "rate", "score": "target"}[options.part]
    return peer_run(peer.name, seed, peer.command(seed), done) | {"kind": kind}


def _roofline(options: Options, system: str) -> process.Finished:
    """Measure the parts, in a process of their own and with one thread; compiled for it: the cache does not know of threads."""
    words = ["-m", "rookery", "bench", "roofline", system, "--env", options.env, *shlex.split(options.options)]
    given = ["--seconds", f"{options.seconds / 2:g}", "--rounds", "2", "--json"]
    env = process.environment() | {"NPROC": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return process.run([sys.executable, *words, *given], timeout=options.timeout_seconds, env=env)


def summarise(
    options: Options, now: dict[str, Any], system: str, runs: Runs, roofline: process.Finished | None = None
) -> Record:
    arms = [arm for arm in (OURS, SBX, SB3) if any(run["arm"] == arm for run in runs)]
    found = {arm: row_of([run for run in runs if run["arm"] == arm], arm) for arm in arms}
    speed = options.part == "speed"
    names = ("steps/s", "steps/s_range") if speed else ("s_to_target", "s_to_target_range", "reached")
    rows = [{"system": system, "arm": arm} | {name: row[name] for name in names} for arm, row in found.items()]
    verdicts, failures = [], [f"{run['command']}: {run['failure']}" for run in runs if "failure" in run]
    for arm in arms[1:]:
        quotient = ratio(found[OURS][names[0]], found[arm][names[0]])
        what = f"{system}: {'steps/s' if speed else 'seconds to the target'}, {OURS} / {arm}"
        bar = {"at_least": STEPS_BAR} if speed else {"at_most": SCORE_BAR}
        verdicts.append(Verdict.of(what, quotient, **bar))
    if roofline is not None and not roofline.failure:
        parts = {"frames/s": "steps/s", "cpu_µs": "cpu_µs_per_step", "share": "share"}
        alone = {part["part"]: {new: part.get(old) for old, new in parts.items()} for part in roofline.answer["rows"]}
        rows += [{"system": system, "arm": part} | alone[part] for part in (*PARTS, LIMIT)]
        reached = ratio(found[OURS]["steps/s"], alone[LIMIT]["steps/s"])
        verdicts.append(Verdict.of(f"{system}: share of the limit of its parts", reached, at_least=LIMIT_BAR))
    elif roofline is not None:
        failures.append(f"rookery bench roofline {system}: {roofline.failure}")
    columns = dict.fromkeys(name for row in rows for name in row)
    now = now | {"versions": now["versions"] | peers.versions([run["answer"] for run in runs if "answer" in run])}
    return Record(
        bench="continuous",
        subject=f"{options.env}, {system}, {'steps/s' if speed else f'seconds to {options.target:g}'}",
        command=_command(options),
        conditions=now,
        settings={"seeds": list(range(options.rounds)), "seconds": options.seconds, "target": options.target,
                  "burst": options.burst, "options": options.options},
        rows=[{name: row.get(name) for name in columns} for row in rows],
        verdicts=verdicts,
        notes=RATE_NOTES if speed else SCORE_NOTES,
        runs=runs + ([{"arm": "roofline", "answer": roofline.answer}] if roofline is not None and speed else []),
        failures=failures,
    )  # fmt: skip


def _command(options: Options) -> str:
    words = [f"rookery bench continuous --part {options.part} --system {' '.join(options.system)} --rounds {options.rounds}"]
    words += [f"--seconds {options.seconds:g}"] if options.part == "speed" else [f"--target {options.target:g}"]
    words += [f"--options '{options.options}'"] * bool(options.options) + [f"--burst {options.burst}"] * (options.burst > 1)
    places = {"sbx-python": options.sbx_python, "sb3-python": options.sb3_python}
    return " ".join(words + [f"--{flag} PATH" for flag, place in places.items() if place])
