"""How fast is an environment, by each way to run it?

    rookery bench envs HalfCheetah-v5
    rookery bench envs CartPole-v1 --python        stepped one by one, although Gymnasium has it as numpy arrays
    rookery bench envs HalfCheetah-v5 --work-ms 0.5 --processes 1      with other work between the steps

Random actions, made beforehand; where observations have a mask, drawn in each step from those that are legal. Every way takes
turns with the others; figures are medians of the rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro

from rookery import envs, spaces
from rookery.envs import legal
from rookery.envs.atari import AtariOptions, AtariPool, is_atari
from rookery.envs.processes.cores import usable_cores
from rookery.envs.python_envs import Placement, Source
from rookery.envs.registry import find
from rookery.types import EnvPool
from rookery_bench.record import Record, Verdict, conditions

NOTES = [
    "A step is one environment's; resets are steps too. Each way is kept and takes its turn in every round, so that a "
    "slow moment of the machine meets all of them.",
    "With several groups, all are sent to before the first is received: while one is looked at, the others step.",
]
RNG = np.random.default_rng(0)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Random-action steps/s of each way to run an environment, and what `train` would choose."""

    env: Annotated[str, tyro.conf.Positional]
    """Its id; `rookery list envs` shows some."""
    num_envs: int = 64
    """Environments of each way."""
    seconds: float = 1.0
    """Time per way and round."""
    rounds: int = 5
    """Each way takes its turn in every round."""
    python: bool = False
    """Step it one by one even if it has a pool of its own."""
    processes: tuple[int, ...] = ()
    """Counts of worker processes to compare; by default 1 to the number of cores."""
    work_ms: float = 0.0
    """Busy work of the caller per group and step, in place of inference."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/envs.jsonl."""


@dataclass
class Way:
    name: str
    kind: str  # "ours" or "peer"
    turn: Callable[[float], float]  # (seconds) -> steps/s
    close: Callable[[], None]
    groups: int = 1
    processes: int = 0


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench envs")


def measure(options: Options) -> list[Record]:
    now = conditions()
    found: dict[str, list[float]] = {}
    ways: list[Way] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for way in _ways(options):
                ways.append(way)
                way.turn(0.2)
            for number in range(options.rounds):
                for way in ways:
                    rate = way.turn(options.seconds)
                    found.setdefault(way.name, []).append(rate)
                    print(f"round {number}: {way.name}: {rate:,.0f} steps/s", file=sys.stderr, flush=True)
        finally:
            for way in ways:
                way.close()
        choices = _choices(options)
    return [summarise(options, now, ways, found, choices)]


def _choices(options: Options) -> list[str]:
    if _own_pool(options):
        return ["`train` would use the pool of its own."]
    with _python_cartpole(options) as id:
        found = {groups: envs.chosen(id, options.num_envs, groups) for groups in (1, 2)}
    said = {0: "step it in process", 1: "use 1 process"}
    would = lambda c: said.get(c.processes, f"use {c.processes} processes") + " beside this one" * c.here
    return [f"`train` with {_groups(groups)} would {would(c)}: {c.why}." for groups, c in found.items()]


def summarise(
    options: Options, now: dict[str, Any], ways: list[Way], found: dict[str, list[float]], choices: list[str]
) -> Record:
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    peers = {way.name: middle[way.name] for way in ways if way.kind == "peer"}
    ours = {way.name: middle[way.name] for way in ways if way.kind == "ours"}
    first_peer = next(iter(peers), None)
    rows = [
        {"way": way.name, "steps_per_s": middle[way.name], "least": min(found[way.name]), "greatest": max(found[way.name]),
         f"x {first_peer}" if first_peer else "x": middle[way.name] / peers[first_peer] if first_peer else None}
        for way in ways
    ]  # fmt: skip
    words = f"{options.env} --num-envs {options.num_envs} --seconds {options.seconds:g} --rounds {options.rounds}"
    words += " --python" * options.python + (f" --work-ms {options.work_ms:g}" if options.work_ms else "")
    words += "".join(f" {p}" for p in ("--processes", *options.processes)) if options.processes else ""
    what = f"{options.env}{' stepped by Python' * options.python}"
    what += f", {options.work_ms:g} ms of work" if options.work_ms else ""
    return Record(
        bench="envs",
        subject=f"{what}, {options.num_envs} environments",
        command=f"rookery bench envs {words}",
        conditions=now,
        settings={"num_envs": options.num_envs, "seconds": options.seconds, "rounds": options.rounds, "seeds": [0]},
        rows=rows,
        verdicts=_verdicts(options, ways, middle, ours, peers),
        notes=[*choices, *NOTES],
        runs=[{"way": name, "steps_per_s": rates} for name, rates in found.items()],
    )


def _verdicts(
    options: Options, ways: list[Way], middle: dict[str, float], ours: dict[str, float], peers: dict[str, float]
) -> list[Verdict]:
    if options.work_ms:
        # with a worker on every core there is none left to step on while the caller works
        same = lambda a, b: a.kind == b.kind == "ours" and 0 < a.processes == b.processes < max(2, usable_cores())
        pairs = [(a, b) for a in ways for b in ways if same(a, b) and (a.groups, b.groups) == (2, 1)]
        return [Verdict.of(f"two groups : one, {way.processes} process{'es' * (way.processes > 1)}",
                           middle[way.name] / middle[other.name], at_least=1.3) for way, other in pairs]  # fmt: skip
    best = max(ours.values())
    if is_atari(options.env):
        return [Verdict.of("our best : the peers' best", best / max(peers.values()), at_least=0.95)]
    bars = {"HalfCheetah-v5": (1.3, 3.0)}.get(options.env, (1.2, 8.0))
    return [Verdict.of(f"our best : {name}", best / rate, at_least=bar) for (name, rate), bar in zip(peers.items(), bars)]


# ------------------------------------------------------------------------------------------------------ the ways


def _own_pool(options: Options) -> bool:
    return not options.python and envs.chosen(options.env, 1, 1).why == "it has a pool of its own"


def _ways(options: Options) -> Iterator[Way]:
    if is_atari(options.env):
        yield from _atari_ways(options)
        return
    id, n = options.env, options.num_envs
    if _own_pool(options):
        for groups in (1, 2):
            yield _ours(f"own pool, {_groups(groups)}", envs.make(id, n, groups=groups), options)
        if id in envs.toys.TOYS or ":" in id:
            return
    source = Source(id, {}, find(id))
    for groups in (1, 2):
        yield _ours(f"in process, {_groups(groups)}", source.pool(n, Placement(0), seed=0, groups=groups), options)
    for processes in range(1, usable_cores()):
        pool = source.pool(n, Placement(processes, here=True), seed=0, groups=1)
        yield _ours(f"in process and {processes} process{'es' * (processes > 1)}, 1 group", pool, options)
    for processes in options.processes or range(1, usable_cores() + 1):
        for groups in (1, 2):
            pool = source.pool(n, Placement(processes), seed=0, groups=groups)
            name = f"{processes} process{'es' * (processes > 1)}, {_groups(groups)}"
            yield _ours(name, pool, options, processes=processes)
    for processes in options.processes or range(2, usable_cores() + 1):
        if processes > 1:
            pool = source.pool(n, Placement(processes, apart=True), seed=0, groups=processes)
            yield _first_ready(f"{processes} processes, a group each, first ready", pool, options)
    makers = [partial(gymnasium.make, id)] * n
    yield _gymnasium("SyncVectorEnv", gymnasium.vector.SyncVectorEnv(makers), options)
    yield _gymnasium("AsyncVectorEnv", gymnasium.vector.AsyncVectorEnv(makers), options)


def _atari_ways(options: Options) -> Iterator[Way]:
    """Make ways with ALE's own vector class, bare, and EnvPool's where it is installed; the same preprocessing everywhere."""
    id, n = options.env, options.num_envs
    for groups in (1, 2, 4):
        yield _ours(f"AtariPool, {_groups(groups)}", envs.make(id, n, groups=groups), options)
    from ale_py.vector_env import AtariVectorEnv

    pool = AtariPool(id, 1)
    pool.close()
    game, preset = gymnasium.spec(id).kwargs["game"], AtariOptions()
    bare = AtariVectorEnv(
        game, n, num_threads=usable_cores(), repeat_action_probability=pool.repeat_action_probability,
        stack_num=preset.stack, frameskip=preset.frame_skip, noop_max=preset.noop_max,
    )  # fmt: skip
    yield _gymnasium("AtariVectorEnv", bare, options)
    if find_spec("envpool") is not None:
        import envpool

        task = f"{''.join(part.capitalize() for part in game.split('_'))}-v5"
        sticky = {"repeat_action_probability": pool.repeat_action_probability}
        common = {"num_envs": n, "num_threads": usable_cores(), "seed": 0, **sticky}
        yield _gymnasium("envpool", envpool.make(task, env_type="gymnasium", **common), options, actions=pool.spec.action)
        half = envpool.make(task, env_type="gymnasium", batch_size=n // 2, **common)
        yield _envpool_async("envpool, half at a time", half, n // 2, options, pool.spec.action)


def _ours(name: str, pool: EnvPool, options: Options, *, processes: int = 0) -> Way:
    first = pool.reset(0).observation
    groups = len(pool.groups)
    actions = [_actions(pool.spec.action, part.stop - part.start) for part in pool.groups]
    seen = [spaces.take(first, part) for part in pool.groups]

    def turn(seconds: float) -> float:
        for group in range(groups):
            pool.send(_legal(pool.spec.action, seen[group], actions[group][0]), group)
        count, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            for group in range(groups):
                shown = pool.recv(group).observation
                _work(options.work_ms)
                pool.send(_legal(pool.spec.action, shown, actions[group][count % len(actions[group])]), group)
            count += 1
        for group in range(groups):
            seen[group] = pool.recv(group).observation
        pool.take_episodes()
        return count * pool.num_envs / spent

    return Way(name, "ours", turn, pool.close, groups, processes)


def _first_ready(name: str, pool: Any, options: Options) -> Way:
    """Step whichever group has answered first, as the asynchronous mode of other libraries does."""
    first = pool.reset(0).observation
    actions = [_actions(pool.spec.action, part.stop - part.start) for part in pool.groups]
    sizes = [part.stop - part.start for part in pool.groups]
    seen = [spaces.take(first, part) for part in pool.groups]

    def turn(seconds: float) -> float:
        for group in range(len(sizes)):
            pool.send(_legal(pool.spec.action, seen[group], actions[group][0]), group)
        count, steps, begin = 0, 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            group = pool.ready_group()
            shown = pool.recv(group).observation
            _work(options.work_ms)
            pool.send(_legal(pool.spec.action, shown, actions[group][count % len(actions[group])]), group)
            count, steps = count + 1, steps + sizes[group]
        for group in range(len(sizes)):
            seen[group] = pool.recv(group).observation
        pool.take_episodes()
        return steps / spent

    return Way(name, "ours", turn, pool.close, len(sizes))


def _gymnasium(name: str, vector: Any, options: Options, actions: Any = None) -> Way:
    n = options.num_envs
    space = actions or vector.single_action_space
    samples, shown = _actions(space, n), vector.reset()[0]

    def turn(seconds: float) -> float:
        nonlocal shown
        count, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            shown = vector.step(_legal(space, shown, samples[count % len(samples)]))[0]
            _work(options.work_ms)
            count += 1
        return count * n / spent

    return Way(name, "peer", turn, vector.close)


def _envpool_async(name: str, pool: Any, batch: int, options: Options, space: Any) -> Way:
    samples = _actions(space, batch)
    pool.async_reset()

    def turn(seconds: float) -> float:
        count, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            ids = pool.recv()[4]["env_id"]
            _work(options.work_ms)
            pool.send(samples[count % len(samples)], ids)
            count += 1
        return count * batch / spent

    return Way(name, "peer", turn, pool.close)


def _actions(space: Any, count: int, kinds: int = 64) -> list[Any]:
    """Sample batches of random canonical actions."""
    space.seed(0)
    batched = gymnasium.vector.utils.batch_space(space, count)
    batched.seed(0)
    return [batched.sample() for _ in range(kinds)]


def _legal(space: Any, observation: Any, action: Any) -> Any:
    """Return `action`, or one that is drawn by the mask of the observation where it has one."""
    mask = legal.mask_of(observation, batched=True)
    return action if mask is None else legal.draw(space, mask, RNG)


def _work(milliseconds: float) -> None:
    until = time.perf_counter() + 1e-3 * milliseconds
    while milliseconds and time.perf_counter() < until:
        np.random.random(64).sum()


@contextmanager
def _python_cartpole(options: Options) -> Iterator[str]:
    """Hide the vectorised form of the environment from the registry, with `--python`; yield its id."""
    if not options.python:
        yield options.env
        return
    spec = gymnasium.spec(options.env)
    before, spec.vector_entry_point = spec.vector_entry_point, None
    try:
        yield options.env
    finally:
        spec.vector_entry_point = before


def _groups(groups: int) -> str:
    return f"{groups} group{'s' * (groups > 1)}"
