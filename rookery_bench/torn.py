"""Worker processes of environments are killed at random: is a torn step ever read, or one counted twice?

    rookery bench torn --steps 10000000

Every observation carries its number in front, behind and in every byte between, so one that is half written shows. Every
environment counts its steps, so one that is lost, repeated or comes from another life shows too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import tyro

from rookery.envs.pools.pool import EnvironmentFailed
from rookery.envs.processes.process_pool import ProcessPool
from rookery_bench.record import Record, Verdict, conditions

LENGTH = 100  # of an episode
BODY = 1024  # bytes


@dataclass(frozen=True, kw_only=True)
class Options:
    """Steps of a checked environment while its worker processes are killed."""

    steps: int = 10_000_000
    """Steps of environments in all."""
    kill_seconds: float = 1.0
    """Seconds between kills, on average."""
    num_envs: int = 64
    """Environments in all."""
    processes: int = 2
    """Worker processes that share them."""
    seed: int = 0
    """Of the environments and of the kills."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/torn.jsonl."""


class Numbered(gymnasium.Env):
    """Shows [process, episode, step] twice, and a byte that depends on them BODY times in between."""

    observation_space = gymnasium.spaces.Dict(
        head=gymnasium.spaces.Box(0, 2**31 - 1, (3,), np.int32),
        body=gymnasium.spaces.Box(0, 255, (BODY,), np.uint8),
        tail=gymnasium.spaces.Box(0, 2**31 - 1, (3,), np.int32),
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.process, self.episode, self.count = os.getpid(), -1, 0

    def _seen(self) -> dict[str, np.ndarray]:
        head = np.array((self.process, self.episode, self.count), np.int32)
        return {"head": head, "body": np.full(BODY, (self.episode * 31 + self.count) % 251, np.uint8), "tail": head}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._seen(), 1.0, False, self.count == LENGTH, {}


@dataclass
class Tallied:
    steps: int = 0
    kills: int = 0
    failures: int = 0
    torn: int = 0  # rows whose parts do not agree
    wrong: int = 0  # rows that do not follow the row before
    episodes: int = 0
    odd: int = 0  # episodes that were not LENGTH steps long or did not pay LENGTH
    notice_seconds: float = 0.0  # the longest from a kill to its being noticed


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench torn")


def measure(options: Options) -> list[Record]:
    now, begin = conditions(), time.perf_counter()
    tallied = play(options)
    row = {
        "environment": f"{options.num_envs} in {options.processes} processes",
        "steps": tallied.steps, "seconds": time.perf_counter() - begin, "kills": tallied.kills, "noticed": tallied.failures,
        "torn": tallied.torn, "out_of_order": tallied.wrong, "episodes": tallied.episodes,
        "miscounted": tallied.odd, "slowest_notice_ms": 1e3 * tallied.notice_seconds,
    }  # fmt: skip
    return [
        Record(
            bench="torn",
            subject="killed environment workers",
            command=f"rookery bench torn --steps {options.steps} --kill-seconds {options.kill_seconds:g} --seed {options.seed}",
            conditions=now,
            settings={"steps": options.steps, "num_envs": options.num_envs, "seeds": [options.seed]},
            rows=[row],
            verdicts=[
                Verdict.of("torn steps", float(tallied.torn), at_most=0.0),
                Verdict.of("steps out of order or counted twice", float(tallied.wrong + tallied.odd), at_most=0.0),
                Verdict.of("seconds until a kill was noticed", tallied.notice_seconds, at_most=1.0),
            ],
            notes=["A step is torn if the number in front, the number behind and the bytes between do not agree. It is out "
                   "of order if it is not the one after the step before it in the same life of the same environment."],
        )
    ]  # fmt: skip


def play(options: Options) -> Tallied:
    rng, found = np.random.default_rng(options.seed), Tallied()
    pool = ProcessPool(Numbered, options.num_envs, id="Numbered", processes=options.processes, groups=2)
    last = pool.reset(options.seed).observation["head"].copy()
    sizes = [group.stop - group.start for group in pool.groups]
    for group, size in enumerate(sizes):
        pool.send(np.zeros(size, int), group)
    next_kill, killed_at, told = time.monotonic() + rng.exponential(options.kill_seconds), None, 0
    while found.steps < options.steps:
        if time.monotonic() >= next_kill:
            killed_at = _kill_one(pool, rng) or killed_at
            found.kills += killed_at is not None
            next_kill = time.monotonic() + rng.exponential(options.kill_seconds)
        for group, part in enumerate(pool.groups):
            while True:
                try:
                    step = pool.recv(group)
                    break
                except EnvironmentFailed as error:
                    found.failures += 1
                    if killed_at is not None:
                        found.notice_seconds = max(found.notice_seconds, time.monotonic() - killed_at)
                        killed_at = None
                    pool.rebuild(error.env_id)
            judge(found, step, last[part])
            pool.send(np.zeros(sizes[group], int), group)
        for episode in pool.take_episodes():
            found.episodes += 1
            found.odd += episode.length != LENGTH or episode.total_reward != LENGTH
        if found.steps // 1_000_000 > told:
            told = found.steps // 1_000_000
            print(f"{found.steps:,} steps, {found.kills} kills: {found}", file=sys.stderr, flush=True)
    pool.close()
    return found


def judge(found: Tallied, step: Any, last: np.ndarray) -> None:
    """Compare the rows with themselves and with those before; `last` becomes what they show."""
    head, body, tail = (step.observation[name] for name in ("head", "body", "tail"))
    expected = ((head[:, 1].astype(np.int64) * 31 + head[:, 2]) % 251).astype(np.uint8)
    found.torn += int(((head != tail).any(axis=1) | (body != expected[:, None]).any(axis=1)).sum())
    real = ~step.first
    follows = (head[:, :2] == last[:, :2]).all(axis=1) & (head[:, 2] == last[:, 2] + 1)
    found.wrong += int((real & ~follows).sum()) + int((step.first & (head[:, 2] != 0)).sum())
    found.steps += int(real.sum())
    last[:] = head


def _kill_one(pool: ProcessPool, rng: np.random.Generator) -> float | None:
    working = [worker for worker in pool._workers if pool._supervisor.is_working(worker.index)]
    alive = [worker.child.pid for worker in working if worker.child is not None]
    if not alive:
        return None
    try:
        os.kill(alive[rng.integers(len(alive))], signal.SIGKILL)
    except ProcessLookupError:
        return None
    return time.monotonic()
