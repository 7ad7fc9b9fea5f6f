"""How many members of a population are evaluated per second, as one batch and one episode at a time?

    rookery bench evolution es --env CartPole-v1

Both arms play the members of one generation of the same, trained policy with the EvolutionWorker of training: with as many
environments as a share has members, or with one. They take turns; updates are in neither.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import tyro

from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio

BATCH, ALONE = "one batch", "one episode at a time"
NOTES = [
    "An evaluation is the whole first episode of one member. Both arms act with parameters that are perturbed beforehand, one "
    "compiled call per step, for all members of a share or for one; the members, the policy and the environment are the same.",
    "Figures are medians of the rounds. A batch lasts as long as its longest episode.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Evaluations per second of a population, as one batch and one episode at a time."""

    system: Annotated[Literal["es", "ars"], tyro.conf.Positional] = "es"
    """The system whose population it is."""
    env: str = "CartPole-v1"
    """Its id; `rookery list envs` shows some."""
    population: int = 128
    """Members, each of which plays an episode."""
    num_envs: int = 64
    """Environments in all; a share has as many as a worker."""
    workers: int = 1
    """Threads that evaluate shares, in the batched arm."""
    generations: int = 8
    """Generations of training before anything is measured."""
    seconds: float = 5.0
    """Time for each arm, over all rounds."""
    rounds: int = 3
    """The arms are measured in turns, so many times."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/evolution.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench evolution")


def measure(options: Options) -> list[Record]:
    now = conditions()
    arms = _arms(options)
    for arm in arms.values():
        arm()  # compiled before it is measured
    runs: list[dict[str, Any]] = []
    share = options.seconds / options.rounds
    for number in range(options.rounds):
        for name, arm in arms.items():
            runs.append({"arm": name, "round": number, **timed(arm, share)})
            print(f"round {number}: {name}: {runs[-1]['evaluations_per_s']:,.1f} evaluations/s", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def _arms(options: Options) -> dict[str, Callable[[], tuple[int, int]]]:
    """Make the arms; each plays some members and returns how many, and how many steps they took."""
    from rookery import Trainer
    from rookery.run.assemble import pool_factory
    from rookery.topologies.evolution import Evolution
    from rookery.workers.acting.evolution_worker import EvolutionWorker, Shares

    topology = Evolution(population=options.population, num_envs=options.num_envs, workers=options.workers)
    with tempfile.TemporaryDirectory() as runs:
        trainer = Trainer(
            options.system, env=options.env, runs=runs, population=options.population, num_envs=options.num_envs,
            workers=options.workers, total_steps=2**40, eval_episodes=0, checkpoint_every=2**31,
        )  # fmt: skip
        with trainer:
            while trainer.progress is None or trainer.progress.updates < options.generations:
                trainer.advance()
            state = trainer.progress.snapshot()["policies"]["main"]
    make, version = pool_factory(trainer.config, trainer.plan), int(state["version"])
    worker = lambda shares: EvolutionWorker(trainer.agent, partial(make, shares.size), seed=0, shares=shares, state=state)
    whole = topology.shares()
    many, one = [worker(whole) for _ in range(options.workers)], worker(Shares(options.population, 1))
    threads, turn = ThreadPoolExecutor(options.workers), iter(range(2**62))

    def batch() -> tuple[int, int]:
        """Evaluate all shares, each worker its own."""
        mine = lambda place: [many[place].evaluate(version, s) for s in range(place, whole.number, options.workers)]
        scores = [score for part in threads.map(mine, range(options.workers)) for score in part]
        return sum(len(score.length) for score in scores), sum(int(score.length.sum()) for score in scores)

    def alone() -> tuple[int, int]:
        return 1, int(one.evaluate(version, next(turn) % options.population).length.sum())

    return {BATCH: batch, ALONE: alone}


def timed(arm: Callable[[], tuple[int, int]], seconds: float) -> dict[str, float]:
    """Run an arm at least once, and until the time is over; return its rates."""
    members = steps = 0
    begin = time.perf_counter()
    while True:
        more, played = arm()
        members, steps = members + more, steps + played
        if (spent := time.perf_counter() - begin) >= seconds:
            return {"evaluations_per_s": members / spent, "steps_per_s": steps / spent, "episode_length": steps / members}


def summarise(options: Options, now: dict[str, Any], runs: list[dict[str, Any]]) -> Record:
    names = ("evaluations_per_s", "steps_per_s", "episode_length")
    rows: dict[str, dict[str, Any]] = {
        arm: {"arm": arm} | {name: median([run[name] for run in runs if run["arm"] == arm]) for name in names}
        for arm in (BATCH, ALONE)
    }
    quotient = ratio(rows[BATCH]["evaluations_per_s"], rows[ALONE]["evaluations_per_s"])
    told = ("env", "population", "num_envs", "workers", "generations", "seconds", "rounds")
    words = [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in told]
    return Record(
        bench="evolution",
        subject=f"{options.system} on {options.env}, {options.population} members",
        command=" ".join(["rookery bench evolution", options.system, *words]),
        conditions=now,
        settings={"num_envs": options.num_envs, "workers": options.workers, "generations": options.generations},
        rows=list(rows.values()),
        verdicts=[Verdict.of(f"evaluations/s, {BATCH} / {ALONE}", quotient, at_least=5.0)],
        notes=NOTES,
        runs=runs,
    )
