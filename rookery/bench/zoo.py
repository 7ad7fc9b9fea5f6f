"""Returns after equally many steps beside stable-baselines3 with the settings of its zoo: IQM over seeds, with intervals.

rookery bench zoo --task hopper-ppo --seeds 5 --peer-python PATH      # an environment with stable-baselines3

Ours are the defaults: the environment and the number of steps are all that is said.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from rookery.bench import process
from rookery.bench.peers import Peer, chosen, versions
from rookery.bench.record import Record, Verdict, conditions
from rookery.bench.statistics import bootstrap, iqm, spread

Run = dict[str, Any]


class Task(NamedTuple):
    system: str
    env: str
    steps: int  # the zoo's


TASKS = {
    "hopper-ppo": Task("ppo", "Hopper-v5", 1_000_000),
    "walker2d-ppo": Task("ppo", "Walker2d-v5", 1_000_000),
    "halfcheetah-ppo": Task("ppo", "HalfCheetah-v5", 1_000_000),
    "lunarlander-a2c": Task("a2c", "LunarLander-v3", 200_000),
    "lunarlander-dqn": Task("dqn", "LunarLander-v3", 100_000),
}
NOTES = [
    "iqm: the mean of the middle half of the seeds' returns, each of 20 greedy episodes after the last step; low, high: its "
    "95 % interval (10,000 bootstrap samples of seeds).",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Greedy returns after equally many steps, beside stable-baselines3 with its zoo's settings."""

    task: tuple[str, ...] = tuple(TASKS)
    """Of: hopper-ppo, walker2d-ppo, halfcheetah-ppo, lunarlander-a2c, lunarlander-dqn."""
    seeds: int = 5
    """Seeds 0, 1, ..., of each side."""
    jobs: int = 1
    """Runs at a time: returns do not depend on the clock."""
    peers: str = "benchmarks/peers"
    """The directory of the driver sb3_zoo.py."""
    peer_python: str | None = None
    """The interpreter that has stable-baselines3; without it only ours are trained."""
    json: bool = False
    out: str | None = None
    """Append a record per task to this file, e.g. benchmarks/zoo.jsonl."""


def parse(args: list[str]) -> Options:
    options = tyro.cli(Options, args=args, prog="rookery bench zoo")
    if unknown := set(options.task) - TASKS.keys():
        raise SystemExit(f"rookery: there is no task {', '.join(sorted(unknown))}. Tasks: {', '.join(TASKS)}.")
    return options


def measure(options: Options) -> list[Record]:
    now = conditions()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {
            name: [pool.submit(run) for seed in range(options.seeds) for run in _arms(TASKS[name], seed, options)]
            for name in options.task
        }
        try:
            return [_record(name, options, now, [future.result() for future in futures[name]]) for name in options.task]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            process.end_all()  # else leaving the pool would wait for what still trains
            raise


def _arms(task: Task, seed: int, options: Options) -> list[Any]:
    peers = chosen(options.peers, [("stable-baselines3", options.peer_python, ("sb3_zoo.py", task.system, task.env))])
    return [lambda: _ours(task, seed), *(lambda peer=peer: _theirs(peer, task, seed, options) for peer in peers)]


def _ours(task: Task, seed: int) -> Run:
    command = ["train", task.system, "--env", task.env, "--total-steps", str(task.steps), "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as place:
        done = process.rookery(command, runs=Path(place), timeout=3600)
    return _told({"arm": "rookery", "seed": seed, "command": shlex.join(["rookery", *command])}, task, done)


def _theirs(peer: Peer, task: Task, seed: int, options: Options) -> Run:
    done = peer.measure(options.peers, timeout=3 * 3600, seed=seed)
    return _told({"arm": peer.name, "seed": seed, "command": peer.command(seed)}, task, done)


def _told(run: Run, task: Task, done: process.Finished) -> Run:
    kept = ("eval_return_mean", "return_mean", "env_steps", "peer", "version")
    run["wall_seconds"] = round(done.seconds, 1)
    run |= {"failure": done.failure} if done.failure else {key: done.answer[key] for key in kept if key in done.answer}
    said = done.failure or f"{run['eval_return_mean']:.1f} after {done.seconds:.0f} s"
    print(f"{task.system} on {task.env}, {run['arm']}, seed {run['seed']}: {said}", file=sys.stderr, flush=True)
    return run


def _record(name: str, options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    rows: list[Run] = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        values = [run["eval_return_mean"] for run in runs if run["arm"] == arm and "failure" not in run]
        low, high = bootstrap(values)
        rows.append({"task": name, "arm": arm, "seeds": len(values), "iqm": iqm(values), "low": low, "high": high,
                     "range": spread(values)})  # fmt: skip
    both = len(rows) == 2 and None not in (rows[0]["iqm"], rows[1]["iqm"])
    ahead = rows[0]["iqm"] - rows[1]["iqm"] if both else None
    verdict = Verdict.of(f"{name}: our IQM less theirs", ahead, at_least=0.0)
    return Record(
        bench="zoo",
        subject=name,
        command=f"rookery bench zoo --task {name} --seeds {options.seeds} --peer-python PATH",
        conditions=now | {"peers": versions(runs)},
        settings={"seeds": list(range(options.seeds)), "jobs": options.jobs, "steps": TASKS[name].steps},
        rows=rows,
        verdicts=[verdict] if both else [],
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
