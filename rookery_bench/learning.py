"""Do the systems learn? Every task is a command that anyone can repeat, and a bar.

rookery bench learning --task cartpole-ppo cartpole-impala --seeds 3 --jobs 2
"""

from __future__ import annotations

import difflib
import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro

from rookery_bench import process
from rookery_bench.metrics import curve, read_metrics
from rookery_bench.record import Record, Verdict, conditions

Metric = Literal["return_mean", "eval_return_mean", "eval_return_best", "either"]


class Task(NamedTuple):
    name: str
    words: str  # after `rookery train`
    at_least: float | None = None
    at_most: float | None = None
    metric: Metric = "eval_return_mean"  # either: the greater of both
    curve: bool = False  # keep (minutes, env_steps, return_mean)
    minutes: float = 20.0  # a run that takes longer is ended

    def score(self, answer: dict[str, Any]) -> float | None:
        names = ("return_mean", "eval_return_mean") if self.metric == "either" else (self.metric,)
        return max((answer[name] for name in names if answer.get(name) is not None), default=None)

    def bar(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else "-"


CUE_PPO = "--env cue-recall --num-envs 32 --total-steps 200000"
CUE_IMPALA = "--env cue-recall --num-envs 16 --rollout-length 10 --total-steps 250000 --learning-rate 1e-3"
# (one gradient step per batch, so many small batches)
# Frames of 60 x 60, no sticky actions, A3C's network: what counts on two cores is the number of gradient steps
PONG = "--env ALE/Pong-v5 --env-options repeat_action_probability=0 height=60 width=60 --network.encoder shallow"
MANY_STEPS = (
    "--epochs 4 --minibatches 8 --learning-rate 5e-4 --clip 0.2 --entropy-cost 0.003 "
    "--total-steps 4000000 --seconds 5400 --stop-return 18.5"
)
PIXELS = (
    "--env pixel-reach --env-options side=16 --batch-size 64 --update-ratio 0.5 --random-steps 500 --replay.min-size 500 "
    "--discount 0.9 --total-steps 5000"
)
UNTIL = "--stop-eval-return 475"  # an evaluation that reaches it ends the run
LEARNING: tuple[Task, ...] = (
    Task("cartpole-ppo", "ppo --env CartPole-v1 --total-steps 300000", at_least=475, metric="either"),
    Task("cartpole-a2c", "a2c --env CartPole-v1 --total-steps 500000", at_least=475, metric="either"),
    Task("cartpole-pg", "pg --env CartPole-v1 --total-steps 1000000", at_least=475, metric="either"),
    Task("cartpole-impala", "impala --env CartPole-v1 --total-steps 800000", at_least=475, metric="either"),
    Task("cartpole-appo", "appo --env CartPole-v1 --total-steps 800000", at_least=475, metric="either"),
    *(
        Task(f"cartpole-{system}", f"{system} --env CartPole-v1 {UNTIL}", at_least=475, metric="eval_return_best")
        for system in (
            "dqn", "rainbow", "apex-dqn", "r2d2", "seed", "seed-r2d2", "sample-factory", "a3c", "async-dqn", "gala", "gorila",
            "es", "ars",
        )
    ),
    *(
        Task(f"cartpole-{system}", f"{system} --env jax:CartPole-v1 {UNTIL}", at_least=475, metric="eval_return_best")
        for system in ("anakin-ppo", "anakin-dqn")
    ),
    *(
        Task(f"cartpole-{system}-ray", f"{system} --env {env} --runtime ray {UNTIL}", at_least=475, metric="eval_return_best")
        for env, systems in (
            ("CartPole-v1", ("ppo", "a2c", "impala", "appo", "dqn", "rainbow", "apex-dqn", "r2d2", "seed", "seed-r2d2")),
            ("CartPole-v1", ("sample-factory", "a3c", "async-dqn", "gala", "gorila", "es", "ars")),
            ("jax:CartPole-v1", ("anakin-ppo", "anakin-dqn")),
        )
        for system in systems
    ),
    Task("pixel-reach-curl-sac", f"curl-sac {PIXELS}", at_least=-11),
    Task("pixel-reach-shifts", f"curl-sac --contrastive-every 0 {PIXELS}", at_least=-11),
    Task("pendulum-es", "es --env Pendulum-v1", at_least=-400),
    Task("pendulum-ars", "ars --env Pendulum-v1", at_least=-400),
    Task("lunarlander-ppo", "ppo --env LunarLander-v3 --total-steps 1500000", at_least=200),
    Task("grasping-qt-opt", "qt-opt --env grasping --eval-episodes 100", at_least=0.8),
    Task("cue-recall-ppo-lstm", f"ppo {CUE_PPO} --network.core lstm", at_least=0.95),
    Task("cue-recall-impala-lstm", f"impala {CUE_IMPALA} --network.core lstm", at_least=0.95),
    Task("cue-recall-ppo", f"ppo {CUE_PPO} --eval-episodes 200", at_most=0.65),
    Task("cue-recall-impala", f"impala {CUE_IMPALA} --eval-episodes 200", at_most=0.65),
    Task(
        "halfcheetah-ppo", "ppo --env HalfCheetah-v5 --total-steps 1000000", at_least=1500, metric="either", minutes=60
    ),
    Task(
        "pong-impala",
        "impala --env ALE/Pong-v5 --env-options repeat_action_probability=0 --total-steps 100000000 --seconds 1800",
        metric="return_mean", curve=True, minutes=40,
    ),
    Task(
        "pong-ppo", f"ppo {PONG} --rollout-length 64 {MANY_STEPS} --value-clip None", at_least=18, metric="return_mean",
        curve=True, minutes=95,
    ),
    Task(
        "pong-appo",  # no more in flight than keeps both sides busy: a lag of one update
        f"appo {PONG} --num-envs 16 --rollout-length 64 --in-flight 1 --prefetch 0 --anneal {MANY_STEPS}",
        at_least=18, metric="return_mean", curve=True, minutes=95,
    ),
    Task(
        "pong-rainbow",  # with a higher rate than the paper's: half an hour of two cores is some ten thousand batches
        "rainbow --env ALE/Pong-v5 --env-options repeat_action_probability=0 --learning-rate 2.5e-4 --target-period 500 "
        "--replay.min-size 5000 --total-steps 300000 --seconds 1800",
        metric="return_mean", curve=True, minutes=40,
    ),
    Task(
        "pong-rainbow-52",  # without the parts that cost most, on smaller frames: six times as many batches in that time
        "rainbow --env ALE/Pong-v5 --env-options repeat_action_probability=0 height=52 width=52 --topology actor-learner "
        "--no-noisy --no-dueling --epsilon-steps 40000 --epsilon 0.01 --gradient-steps 4 --learning-rate 2e-4 "
        "--target-period 500 --replay.min-size 5000 --total-steps 2000000 --seconds 1800",
        metric="return_mean", curve=True, minutes=40,
    ),
)  # fmt: skip
# Tasks that no preset names: the system, the environment and the number of steps are all that is said.
BOARDS = {"catch-8x8": "catch --env-options rows=8 columns=8", "catch-10x5": "catch"}
CUE_LSTM = "--env cue-recall --network.core lstm --total-steps 250000"
DISCRETE = (
    "ppo", "a2c", "impala", "appo", "seed", "sample-factory", "dqn", "rainbow", "apex-dqn", "r2d2", "a3c", "gala", "gorila",
    "async-dqn",
)  # fmt: skip
UNTUNED: tuple[Task, ...] = (
    *(
        Task(f"untuned-{board}-{system}", f"{system} --env {words} --total-steps 250000", at_least=0.9, minutes=60)
        for board, words in BOARDS.items()
        for system in DISCRETE
    ),
    *(
        Task(f"untuned-acrobot-{system}", f"{system} --env Acrobot-v1 --total-steps 500000", at_least=-110, minutes=60)
        for system in (*DISCRETE, "es", "ars")
    ),
    *(
        Task(f"untuned-lunarlander-{system}", f"{system} --env LunarLander-v3 --total-steps {steps}", at_least=200, minutes=60)
        for steps, systems in ((2_000_000, ("ppo", "a2c", "impala", "appo")), (500_000, ("dqn", "rainbow", "apex-dqn")))
        for system in systems  # those with a replay learn more from fewer steps, and take longer over each
    ),
    Task("untuned-mountaincar-ppo", "ppo --env MountainCarContinuous-v0 --total-steps 500000", at_least=90),
    *(
        Task(f"untuned-pendulum-{system}", f"{system} --env Pendulum-v1 --total-steps 500000", at_least=-250)
        for system in ("ppo", "a2c", "impala", "appo")
    ),
    *(
        Task(f"untuned-pendulum-{system}", f"{system} --env Pendulum-v1 --total-steps 20000", at_least=bar)
        for system, bar in (("sac", -200), ("td3", -200), ("ddpg", -300), ("apex-dpg", -300))
    ),
    Task("untuned-pendulum-qt-opt", "qt-opt --env Pendulum-v1 --total-steps 20000", at_least=-200, minutes=60),
    Task("untuned-pendulum-anakin-sac", "anakin-sac --env jax:Pendulum-v1 --total-steps 50000", at_least=-200),
    Task("untuned-bipedal-sac", "sac --env BipedalWalker-v3 --total-steps 300000", at_least=250, minutes=120),
    *(
        Task(f"untuned-mountaincar-{system}", f"{system} --env MountainCarContinuous-v0 --total-steps 50000", at_least=90)
        for system in ("sac", "td3")
    ),
    Task("untuned-bipedal-ppo", "ppo --env BipedalWalker-v3 --total-steps 2000000", at_least=250, minutes=60),
    Task("untuned-hopper-ppo", "ppo --env Hopper-v5 --total-steps 1000000", at_least=1500, minutes=60),
    *(Task(f"untuned-dict-obs-{system}", f"{system} --env dict-obs --total-steps 100000", at_least=7.6) for system in DISCRETE),
    *(Task(f"untuned-masked-{system}", f"{system} --env masked --total-steps 100000", at_least=7.4) for system in DISCRETE),
    Task("untuned-cue-recall-r2d2", "r2d2 --env cue-recall --total-steps 100000", at_least=0.95),
    *(
        Task(f"untuned-cue-recall-{system}", f"{system} {CUE_LSTM}", at_least=0.95)
        for system in ("ppo", "a2c", "impala", "appo", "seed", "sample-factory", "a3c", "gala")
    ),
)
TASKS = (*LEARNING, *UNTUNED)
NOTES = [
    "Each seed is a process of its own; a task is passed when every seed clears the bar. return_mean: the last 100 "
    "training episodes; eval_return_mean: greedy episodes after training; either: the greater of both; eval_return_best: "
    "the best evaluation of the run, which ended it (what is in flight is then learned from: the saved policy is a newer one).",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train tasks with several seeds and compare their returns with a bar."""

    task: tuple[str, ...] = ()
    """Names of tasks; all by default. --list shows them."""
    seeds: int = 3
    """Seeds 0, 1, ..."""
    jobs: int = 1
    """Runs at a time: returns do not depend on the clock, except where a task is bounded by time."""
    list: bool = False
    """Only print the tasks, their commands and their bars."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = "benchmarks/learning.jsonl"
    """Append a record per task to this file; --out None: nowhere."""


def parse(args: list[str]) -> Options:
    options = tyro.cli(Options, args=args, prog="rookery bench learning")
    if options.list:
        width = max(len(task.name) for task in TASKS)
        for task in TASKS:
            print(f"{task.name:<{width}}  {task.metric:<16} {task.bar():<6}  rookery train {task.words}")
        raise SystemExit(0)
    chosen_tasks(options.task)
    return options


def chosen_tasks(names: tuple[str, ...]) -> list[Task]:
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SystemExit(f"rookery: there is no task {name!r}.{hint} rookery bench learning --list shows them.")
    return [known[name] for name in names] or [*TASKS]


def measure(options: Options) -> list[Record]:
    now, tasks = conditions(), {task.name: task for task in chosen_tasks(options.task)}
    calls = {name: [partial(_train, task, seed) for seed in range(options.seeds)] for name, task in tasks.items()}
    done = process.side_by_side(calls, jobs=options.jobs)
    return [summarise(tasks[name], options, now, runs) for name, runs in done]


def _train(task: Task, seed: int) -> dict[str, Any]:
    command = ["train", *shlex.split(task.words), "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as runs:
        done = process.rookery(command, runs=Path(runs), timeout=task.minutes * 60)
        found: dict[str, Any] = {"seed": seed, "command": shlex.join(["rookery", *command])}
        found["wall_seconds"] = round(done.seconds, 1)
        if done.failure:
            found["failure"] = done.failure
        else:
            found |= {"score": task.score(done.answer)} | {k: v for k, v in done.answer.items() if k != "run"}
            if task.curve:
                found["curve"] = curve(read_metrics(Path(done.answer["run"])))
    score = found.get("failure") or found["score"]
    print(f"{task.name}, seed {seed}: {score} after {found['wall_seconds']:.0f} s", file=sys.stderr, flush=True)
    return found


def summarise(task: Task, options: Options, now: dict[str, Any], runs: list[dict[str, Any]]) -> Record:
    scores = [run.get("score") for run in runs]
    known = [score for score in scores if score is not None]
    whole = len(known) == len(runs) and bool(runs)  # a seed that failed has not passed
    verdict, of = None, f"of {len(runs)} seeds"
    if task.at_most is not None:
        worst = max(known) if whole else None
        verdict = Verdict.of(f"{task.name}, greatest {of}", worst, at_most=task.at_most)
    elif task.at_least is not None:
        worst = min(known) if whole else None
        verdict = Verdict.of(f"{task.name}, least {of}", worst, at_least=task.at_least)
    row = {
        "task": task.name,
        "metric": task.metric,
        "bar": task.bar(),
        "seeds": len(runs),
        "min": min(known, default=None),
        "median": statistics.median(known) if known else None,
        "max": max(known, default=None),
        "env_steps": max((run.get("env_steps", 0) for run in runs), default=0),
        "s_per_run": statistics.median(run["wall_seconds"] for run in runs) if runs else None,
        "passed": "-" if verdict is None else "yes" if verdict.met else "no",
    }
    return Record(
        bench="learning",
        subject=task.name,
        command=f"rookery bench learning --task {task.name} --seeds {options.seeds}",
        conditions=now,
        settings={"seeds": list(range(options.seeds)), "jobs": options.jobs, "train": f"rookery train {task.words}"},
        rows=[row],
        verdicts=[verdict] if verdict else [],
        notes=NOTES,
        runs=runs,
        failures=[f"{run['command']}: {run['failure']}" for run in runs if "failure" in run],
    )
