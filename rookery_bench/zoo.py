"""Returns after equally many steps beside peers: IQM over seeds, with intervals.

rookery bench zoo --task hopper-ppo --seeds 5 --sb3-python PATH        # an environment with stable-baselines3
rookery bench zoo --task breakout-minatar --seeds 3 --rejax-python PATH

Stable-baselines3 has the settings of its zoo, and ours are the defaults: the environment and the number of steps are all that
is said. Rejax has the hyper-parameters of our preset, without a falling rate, which it does not know; its network is its own.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from rookery_bench import process
from rookery_bench.peers import PeerLibrary, chosen, versions
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import bootstrap, iqm, spread

Run = dict[str, Any]


class ZooTask(NamedTuple):
    words: str  # after `rookery train`
    steps: int
    peer: str
    python: str  # the option that says where the peer is
    driver: tuple[str, ...]
    metric: str


def _zoo(system: str, env: str, steps: int) -> ZooTask:
    driver = ("sb3_zoo.py", system, env)
    return ZooTask(f"{system} --env {env}", steps, "stable-baselines3", "sb3_python", driver, "eval_return_mean")


def _minatar(game: str, steps: int = 2_000_000) -> ZooTask:
    driver = ("rejax_minatar.py", game, "--total-steps", str(steps))
    return ZooTask(f"anakin-ppo --env gymnax:{game} --no-anneal", steps, "rejax", "rejax_python", driver, "return_mean")


TASKS = {
    "hopper-ppo": _zoo("ppo", "Hopper-v5", 1_000_000),
    "walker2d-ppo": _zoo("ppo", "Walker2d-v5", 1_000_000),
    "halfcheetah-ppo": _zoo("ppo", "HalfCheetah-v5", 1_000_000),
    **{
        f"{env.lower()}-{system}": _zoo(system, f"{env}-v5", 300_000)
        for system in ("sac", "td3")
        for env in ("HalfCheetah", "Hopper", "Walker2d")
    },
    "lunarlander-a2c": _zoo("a2c", "LunarLander-v3", 200_000),
    "lunarlander-dqn": _zoo("dqn", "LunarLander-v3", 100_000),
    "breakout-minatar": _minatar("Breakout-MinAtar"),
    "spaceinvaders-minatar": _minatar("SpaceInvaders-MinAtar"),
    "asterix-minatar": _minatar("Asterix-MinAtar"),
}
NOTES = [
    "iqm: the mean of the middle half of the seeds' returns; low, high: its 95 % interval (10,000 bootstrap samples of seeds). "
    "Of greedy episodes after the last step beside stable-baselines3; beside rejax, whose policies are sampled, of the last "
    "100 episodes of training (ours) and of 128 after it (theirs).",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Returns after equally many steps, beside stable-baselines3 with its zoo's settings and rejax on MinAtar."""

    task: tuple[str, ...] = tuple(TASKS)
    """All by default: hopper-ppo, walker2d-ppo, halfcheetah-ppo, halfcheetah-sac, hopper-sac, walker2d-sac, halfcheetah-td3,
    hopper-td3, walker2d-td3, lunarlander-a2c, lunarlander-dqn, breakout-minatar, spaceinvaders-minatar, asterix-minatar."""
    seeds: int = 5
    """Seeds 0, 1, ..., of each side."""
    jobs: int = 1
    """Runs at a time: returns do not depend on the clock."""
    peers: str = "benchmarks/peers"
    """The directory of the drivers sb3_zoo.py and rejax_minatar.py."""
    sb3_python: str | None = None
    """The interpreter that has stable-baselines3; without it only ours are trained."""
    rejax_python: str | None = None
    """The interpreter that has rejax; without it only ours are trained."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append a record per task to this file, e.g. benchmarks/zoo.jsonl."""


def parse(args: list[str]) -> Options:
    options = tyro.cli(Options, args=args, prog="rookery bench zoo")
    if unknown := set(options.task) - TASKS.keys():
        raise SystemExit(f"rookery: there is no task {', '.join(sorted(unknown))}. Tasks: {', '.join(TASKS)}.")
    return options


def measure(options: Options) -> list[Record]:
    now = conditions()
    calls = {
        name: [arm for seed in range(options.seeds) for arm in _arms(TASKS[name], seed, options)] for name in options.task
    }
    return [_record(name, options, now, runs) for name, runs in process.side_by_side(calls, jobs=options.jobs)]


def _arms(task: ZooTask, seed: int, options: Options) -> list[Callable[[], Run]]:
    peers = chosen(options.peers, [(task.peer, getattr(options, task.python), task.driver)])
    return [partial(_ours, task, seed), *(partial(_theirs, peer, task, seed, options) for peer in peers)]


def _ours(task: ZooTask, seed: int) -> Run:
    command = ["train", *shlex.split(task.words), "--total-steps", str(task.steps), "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as place:
        done = process.rookery(command, runs=Path(place), timeout=3600)
    return _told({"arm": "rookery", "seed": seed, "command": shlex.join(["rookery", *command])}, task, done)


def _theirs(peer: PeerLibrary, task: ZooTask, seed: int, options: Options) -> Run:
    done = peer.measure(options.peers, timeout=3 * 3600, seed=seed)
    return _told({"arm": peer.name, "seed": seed, "command": peer.command(seed)}, task, done)


def _told(run: Run, task: ZooTask, done: process.Finished) -> Run:
    kept = ("eval_return_mean", "return_mean", "env_steps", "peer", "version")
    run["wall_seconds"] = round(done.seconds, 1)
    run |= {"failure": done.failure} if done.failure else {key: done.answer[key] for key in kept if key in done.answer}
    said = done.failure or f"{run[task.metric]:.1f} after {done.seconds:.0f} s"
    print(f"{task.words}, {run['arm']}, seed {run['seed']}: {said}", file=sys.stderr, flush=True)
    return run


def _record(name: str, options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    rows: list[Run] = []
    flag = TASKS[name].python.replace("_", "-")
    for arm in dict.fromkeys(run["arm"] for run in runs):
        values = [run[TASKS[name].metric] for run in runs if run["arm"] == arm and "failure" not in run]
        low, high = bootstrap(values)
        rows.append({"task": name, "arm": arm, "seeds": len(values), "iqm": iqm(values), "low": low, "high": high,
                     "range": spread(values)})  # fmt: skip
    both = len(rows) == 2 and None not in (rows[0]["iqm"], rows[1]["iqm"])
    ahead = rows[0]["iqm"] - rows[1]["iqm"] if both else None
    verdict = Verdict.of(f"{name}: our IQM less theirs", ahead, at_least=0.0)
    return Record(
        bench="zoo",
        subject=name,
        command=f"rookery bench zoo --task {name} --seeds {options.seeds} --{flag} PATH",
        conditions=now | {"peers": versions(runs)},
        settings={"seeds": list(range(options.seeds)), "jobs": options.jobs, "steps": TASKS[name].steps},
        rows=rows,
        verdicts=[verdict] if both else [],
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
