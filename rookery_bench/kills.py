"""Collectors and hosts of environments are killed at random while a run on Ray trains: is the score reached all the same?

    rookery bench kills --minutes 10 --kills 20 --seed 0

IMPALA on CartPole, two collector actors, each with environments in a process of their own. At random moments one of the
actors, or one of those processes, gets SIGKILL. A ledger before the learner keeps every step (see audit.py); each loss
is timed from the kill to the first answer of the replacement, beside what the first life of the same place took to start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro

from rookery.types import Rollout
from rookery_bench.audit import Audited, WorkerLife
from rookery_bench.record import Record, Verdict, conditions

SCORE = 475.0
NAMES = ("collector-0", "collector-1")
WHAT = ("collector", "environment host")
START_SECONDS = 120.0
STEPS_PER_SECOND = 8_000  # planned, for the learning rate's schedule: a run that is faster ends with a rate of 0
SETTLE_SECONDS = 20.0  # without kills at the end
GRACE_SECONDS = 60.0  # for what is still to come when the time is over: kills, replacements
REPLACED_SECONDS = 1.0  # beside the time of a start


@dataclass(frozen=True, kw_only=True)
class Options:
    """Training on Ray while collectors and hosts of environments are killed."""

    minutes: float = 10.0
    """Length of the run, from the moment when every collector has answered."""
    kills: int = 20
    """Processes that are killed, evenly over the run."""
    score: float = SCORE
    """Mean return of greedy episodes to be reached."""
    episodes: int = 20
    """Greedy episodes of the evaluation at the end."""
    seed: int = 0
    """Of the run and of the kills."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/kills.jsonl."""


@dataclass
class Kill:
    """One kill; seconds since the first moment when every collector had answered, and since the kill."""

    what: str  # collector or environment host
    name: str
    at: float
    noticed_seconds: float | None = None
    replaced_seconds: float | None = None  # until the replacement's first rollout
    start_up_seconds: float | None = None  # what the first life of the same place took


@dataclass
class Drill:
    """How it went."""

    kills: list[Kill]
    violations: list[str]
    eval_return_mean: float
    seconds: float
    env_steps: int
    updates: int
    workers: dict[str, int]
    env_failures: int
    start_up_seconds: float  # the longest of the first lives


def cart_pole() -> gymnasium.Env:
    """Make CartPole by a callable: by its id it would be stepped by numpy in the collector, without a process of its own."""
    return gymnasium.make("CartPole-v1")


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench kills")


def measure(options: Options) -> list[Record]:
    now = conditions()
    drill = play(options)
    by_kind = {what: [kill for kill in drill.kills if kill.what == what] for what in WHAT}
    late = [kill.replaced_seconds - kill.start_up_seconds for kill in by_kind["collector"]
            if kill.replaced_seconds is not None and kill.start_up_seconds is not None]  # fmt: skip
    unanswered = sum(kill.replaced_seconds is None for kill in by_kind["collector"])
    row = {
        "system": "impala on CartPole-v1, ray", "minutes": drill.seconds / 60, "steps": drill.env_steps,
        "kills": len(drill.kills), "collectors_lost": drill.workers["collectors_lost"],
        "rollouts_lost": drill.workers["rollouts_lost"], "hosts_lost": drill.env_failures,
        "slowest_notice_s": _most(kill.noticed_seconds for kill in drill.kills),
        "slowest_start_s": drill.start_up_seconds,
        "slowest_replacement_s": _most(kill.replaced_seconds for kill in by_kind["collector"]),
        "violations": len(drill.violations), "eval_return_mean": drill.eval_return_mean,
    }  # fmt: skip
    failures = [f"ledger: {violation}" for violation in drill.violations]
    if len(drill.kills) < options.kills:
        failures.append(f"only {len(drill.kills)} of {options.kills} kills were done in time")
    return [
        Record(
            bench="kills",
            subject="collectors and hosts of environments killed on ray",
            command=f"rookery bench kills --minutes {options.minutes:g} --kills {options.kills} --seed {options.seed}",
            conditions=now,
            settings={"minutes": options.minutes, "kills": options.kills, "seeds": [options.seed], "score": options.score},
            rows=[row],
            verdicts=[
                Verdict.of("eval_return_mean at the end", drill.eval_return_mean, at_least=options.score),
                Verdict.of("violations of the ledger", float(len(drill.violations)), at_most=0.0),
                Verdict.of("killed collectors that were not replaced", float(unanswered), at_most=0.0),
                Verdict.of("seconds from a kill to the replacement's first rollout, less those of a start",
                           max(late, default=None), at_most=REPLACED_SECONDS),
            ],
            notes=["The ledger is kept before the learner: every (environment, incarnation, step) at most once, none missing "
                   "in between, versions that never go back, and as many as the run counts.",
                   "A start is from the spawning of the first life of the same place to its first rollout.",
                   "A host of environments is the process in which a collector's environments live."],
            runs=[asdict(kill) for kill in drill.kills],
            failures=failures,
        )
    ]  # fmt: skip


def play(options: Options) -> Drill:
    from rookery import systems
    from rookery.run import config, startup
    from rookery.run.assemble import assemble, open_runtime, pool_factory
    from rookery.topologies.job import Job
    from rookery.workers.acting.evaluator import Evaluator

    startup.prepare()
    mine = dict(runtime="ray", collectors=len(NAMES), env_processes=1, seed=options.seed)
    mine["total_steps"] = max(1, int(60 * options.minutes * STEPS_PER_SECOND))
    cfg = config.resolve("impala", env=cart_pole, **systems.defaults("impala", "CartPole-v1") | mine)
    spec, agent, plan = assemble(cfg)
    runtime = Audited(open_runtime(cfg, plan))
    driver = cfg.topology.drive(Job(agent, spec, pool_factory(cfg, plan), runtime, options.seed))
    try:
        began = _until_all_answer(driver, runtime)
        progress, kills = _through_the_kills(options, driver, runtime, began)
        seconds = time.monotonic() - began
        assert progress.snapshot is not None
        saved = progress.snapshot()
        waiting = [Rollout(**part) for part in saved["tables"]["queue"]["parts"]]
        counted = {name: int(saved["meters"][name]) for name in ("trained_steps", "env_steps")}
        violations = runtime.ledger.closed(waiting, **counted)
    finally:
        driver.close()
    evaluator = Evaluator(agent, lambda: pool_factory(cfg)(options.episodes), seed=options.seed + 1_000_003)
    try:
        score = evaluator.evaluate(progress.params).return_mean
    finally:
        evaluator.close()
    return Drill(
        kills=kills, violations=violations, eval_return_mean=score, seconds=seconds, env_steps=counted["env_steps"],
        updates=progress.updates, workers=progress.workers, env_failures=progress.env_failures,
        start_up_seconds=max(_start_up(lives_of(runtime, name)[0]) or 0.0 for name in NAMES),
    )  # fmt: skip


def _until_all_answer(driver: Iterator[Any], runtime: Audited) -> float:
    """Drive until every collector has answered; return when that was."""
    begin = time.monotonic()
    while not all(any(life.answered for life in lives_of(runtime, name)) for name in NAMES):
        next(driver)
        if time.monotonic() - begin > START_SECONDS:
            raise RuntimeError(f"the collectors did not answer within {START_SECONDS:g} s")
    return time.monotonic()


def _through_the_kills(options: Options, driver: Iterator[Any], runtime: Audited, began: float) -> tuple[Any, list[Kill]]:
    rng, length, kills = np.random.default_rng(options.seed), 60 * options.minutes, list[Kill]()
    moments = np.sort(rng.uniform(0.0, max(length - SETTLE_SECONDS, length / 2), options.kills))
    planned = [(at, WHAT[rng.integers(len(WHAT))], NAMES[rng.integers(len(NAMES))]) for at in moments]
    for progress in driver:
        now = time.monotonic() - began
        if planned and now >= planned[0][0] and (struck := _strike(runtime, *planned[0][1:], rng)) is not None:
            planned.pop(0)
            kills.append(Kill(what=struck.what, name=struck.name, at=struck.at - began))
            print(f"{now:.0f} s, {progress.env_steps:,} steps: killed {struck.what} {struck.name}", file=sys.stderr, flush=True)
        settled = _follow(kills, runtime, progress, began)
        over = now >= length and settled and not planned
        if (over or now >= length + GRACE_SECONDS) and progress.snapshot is not None:
            return progress, kills
    raise AssertionError("a driver never ends by itself")


def _strike(runtime: Audited, what: str, name: str, rng: np.random.Generator) -> Kill | None:
    """Kill a collector, or one of its hosts; None: it is just being replaced, or has none now."""
    life = lives_of(runtime, name)[-1]
    if life.answered is None or life.lost is not None:
        return None
    _, pid = life.handle.ready.result()
    hosts = [host for fork_server in children(pid) for host in children(fork_server)]
    if what != "collector" and not hosts:
        return None
    try:
        os.kill(pid if what == "collector" else hosts[rng.integers(len(hosts))], signal.SIGKILL)
    except ProcessLookupError:
        return None
    return Kill(what, name, time.monotonic())


def _follow(kills: list[Kill], runtime: Audited, progress: Any, began: float) -> bool:
    """Fill in when kills were noticed and replaced; return whether that is known of all."""
    for kill in (kill for kill in kills if kill.what == "collector" and kill.replaced_seconds is None):
        lives, at = lives_of(runtime, kill.name), kill.at + began
        before = [life for life in lives if life.answered is not None and life.answered <= at][-1]
        kill.start_up_seconds = _start_up(lives[0])
        kill.noticed_seconds = None if before.lost is None else before.lost - at
        after = next((life for life in lives if life.spawned > at and life.answered is not None), None)
        kill.replaced_seconds = None if after is None or after.answered is None else after.answered - at
    unnoticed = [kill for kill in kills if kill.what != "collector" and kill.noticed_seconds is None]
    for _, kill in zip(progress.incidents, unnoticed):
        kill.noticed_seconds = time.monotonic() - began - kill.at
    return all((kill.replaced_seconds if kill.what == "collector" else kill.noticed_seconds) is not None for kill in kills)


def lives_of(runtime: Audited, name: str) -> list[WorkerLife]:
    return [life for life in runtime.lives if life.name == name]


def _start_up(life: WorkerLife) -> float | None:
    return None if life.answered is None else life.answered - life.spawned


def children(pid: int) -> list[int]:
    """List the processes whose parent this is; none where it has gone."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
