"""How near does a whole system come to the limit that its parts set?

    rookery bench roofline impala --env ALE/Pong-v5 --env-options repeat_action_probability=0
    rookery bench roofline sac --env HalfCheetah-v5

Environment, inference, replay table and learner run alone, in one process, with the parts and the data that training uses.
What a frame costs in them, in CPU seconds of all threads, any program made of them must spend: the limit is cores / sum.
A learner that draws from a replay makes an update for every `steps_per_update` frames; so many frames it is counted for.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tyro

from rookery_bench.process import cpu_seconds
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median

SETTLE_SECONDS = 2.0  # of the whole system, before it is measured, in each round
REACHED, REACHED_BY_REPLAY = 0.8, 0.75  # shares of the limit
NOTES = [
    "A frame is a row of a rollout, resets included. Parts and whole take turns in one process; figures are medians of "
    "the rounds. CPU seconds are those of all threads of the process; threads that spin while they wait count.",
    "Environment: the pool of one collector with random actions; inference: the compiled step, one group at a time, "
    "until the action is there; table: rollouts inserted, and as many batches drawn as the ratio asks for; learner: whole "
    "updates on collected batches. Writing rollouts is in no part.",
    "Limit = cores / sum of CPU seconds per frame ('frames/s' of a part: cores / its CPU seconds per frame); 'one after "
    "the other' = 1 / sum of clock seconds per frame.",
    f"Whole: the Trainer's own loop, {SETTLE_SECONDS:g} s after it was resumed in each round, without checkpoints.",
]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What belongs to the bench; every other option is one of `rookery train SYSTEM`."""

    seconds: float = 10.0
    """Time for each part, over all rounds; the whole system is measured for twice as long."""
    rounds: int = 3
    """The parts are measured in turns, so many times."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/roofline.jsonl."""


class Options(NamedTuple):
    seconds: float
    rounds: int
    out: str | None
    json: bool
    config: Any
    words: str  # of the command line, for the record


class Cost(NamedTuple):
    """What a part or the whole took."""

    wall: float  # seconds
    cpu: float  # seconds of all threads
    frames: float

    @property
    def wall_per_frame(self) -> float:
        return self.wall / self.frames

    @property
    def cpu_per_frame(self) -> float:
        return self.cpu / self.frames


class Whole(NamedTuple):
    cost: Cost
    env_steps: int
    learner_idle: float  # share of the learner's time


def parse(args: list[str]) -> Options:
    from rookery.commands import parsing

    bench, rest = tyro.cli(Bench, args=args, prog="rookery bench roofline", return_unknown_args=True)
    config, flags = parsing.parse_system("bench roofline", rest)
    if not hasattr(config.topology, "collectors") or not hasattr(config.topology, "groups"):
        parsing.fail(f"{config.system} has no collectors with a pool of their own: its parts cannot be run alone")
    words = " ".join(word for word in rest if word != "--json")
    return Options(bench.seconds, bench.rounds, bench.out, flags["json"], config, words)


def measure(options: Options) -> list[Record]:
    now = conditions()
    costs: dict[str, list[Cost]] = {}
    wholes: list[Whole] = []
    share = options.seconds / options.rounds
    with tempfile.TemporaryDirectory() as runs:
        system = _MeasuredSystem(options.config, runs)
        try:
            for number in range(options.rounds):
                system.collect_batch()
                for name in system.loops:
                    costs.setdefault(name, []).append(system.alone(name, share))
                wholes.append(system.whole(2 * share))
                said = ", ".join(f"{name} {1e6 * costs[name][-1].cpu_per_frame:.1f} µs" for name in costs)
                rate = wholes[-1].cost.frames / wholes[-1].cost.wall
                print(f"round {number}: CPU per frame: {said}; whole {rate:,.0f} per s", file=sys.stderr, flush=True)
        finally:
            system.close()
    return [summarise(options, now, costs, wholes)]


class _MeasuredSystem:
    """The parts of one job, and the Trainer that drives the same job. Nothing of one runs while another is measured."""

    def __init__(self, config: Any, runs: str) -> None:
        from rookery import envs
        from rookery.data.replay import table_for
        from rookery.run import threads
        from rookery.run.trainer import Trainer
        from rookery.topologies.wiring import envs_each
        from rookery.workers.acting.collector import Collector
        from rookery.workers.acting.shapes import rollout_specs
        from rookery.workers.learning.learner import Learner

        threads.limit(config)  # as `rookery train` does
        run = dataclasses.replace(config.run, runs=runs, run="roofline", checkpoint_every=10**12, eval_every=None)
        self.config = dataclasses.replace(config, run=run)
        self.trainer = Trainer.from_config(self.config)
        self.agent, self.spec, topology = self.trainer.agent, self.trainer.spec, config.topology
        self.each = envs_each(topology.num_envs, topology.collectors, topology.groups)
        make_pool = lambda: envs.make(config.env, self.each, groups=topology.groups, **config.env_options)
        self.pool = make_pool()
        self.collector = Collector(self.agent, make_pool, num_workers=topology.collectors, seed=config.run.seed)
        self.learner = Learner(self.agent, seed=config.run.seed)
        self.parts = getattr(topology, "rollouts_per_batch", topology.collectors)
        specs = rollout_specs(self.agent, self.spec, self.each)
        self.table = table_for(
            self.agent.needs, specs, collectors=1, in_flight=1, parts=self.parts, slots=1, prefetch=1, seed=config.run.seed
        )  # fmt: skip
        self.taken: Any = None
        self.priorities: Any = None  # of the newest rollout
        self.loops = {"environment": self._environment(), "inference": self._inference(), "learner": self._learner()}
        if self.agent.needs.table is not None:
            self.loops["table"] = self._table()

    def collect_batch(self) -> None:
        """Collect a batch as the learner would get it now."""
        if self.taken is not None:
            self.table.release(self.taken.slot)
        self.collector.publish(*self.learner.published())
        while (taken := self.table.take()) is None:  # a queue gives one after so many parts, a replay after its warm-up
            part = self.table.claim()
            assert part is not None
            self.priorities = self.collector.collect(part.rollout).priorities
            self.table.commit(part, self.priorities)
        self.taken = taken

    def alone(self, name: str, seconds: float) -> Cost:
        loop = self.loops[name]
        loop()  # compiled, and warm
        self.learner.inspect()  # so is the look at how learning stands, which comes seconds after the first update
        return timed(loop, seconds)

    def _environment(self) -> Callable[[], float]:
        """Make the loop of the environments: groups step while others are waited for, as in a collector."""
        from gymnasium.vector.utils import batch_space

        groups = self.pool.groups
        spaces = [batch_space(self.pool.spec.action, group.stop - group.start) for group in groups]
        for i, space in enumerate(spaces):
            space.seed(i)
        actions = [itertools.cycle([space.sample() for _ in range(64)]) for space in spaces]
        self.pool.reset(0)
        for group, stream in enumerate(actions):
            self.pool.send(next(stream), group)

        def step() -> float:
            for group, stream in enumerate(actions):
                self.pool.recv(group)
                self.pool.send(next(stream), group)
            return self.pool.num_envs

        return step

    def _inference(self) -> Callable[[], float]:
        import jax
        import numpy as np

        from rookery.workers.acting.step import compiled_step

        act, agent, groups = compiled_step(self.agent), self.agent, self.pool.groups
        key, counter = jax.random.key(0), itertools.count()
        explore = agent.explore(self.learner.params, np.arange(self.each), self.config.topology.num_envs, 0)
        explores = [jax.tree.map(lambda x, g=group: x[g], explore) for group in groups]
        memory = [agent.memory(group.stop - group.start) for group in groups]
        first = [np.zeros(group.stop - group.start, bool) for group in groups]

        def step() -> float:
            observation = self.taken.batch.rollout.observation
            number = next(counter)
            row = number % agent.needs.rollout_length
            for i, group in enumerate(groups):
                seen = jax.tree.map(lambda x, g=group: np.ascontiguousarray(x[row, g]), observation)
                _, decision = act(self.learner.params, seen, memory[i], first[i], explores[i], key, np.uint32(number))
                memory[i] = decision.memory
                jax.tree.map(np.asarray, decision.action)  # waits for it
            return self.each

        return step

    def _table(self) -> Callable[[], float]:
        """Make the loop of a replay: the newest rollout goes in as if it went on, and batches come out as its ratio says."""

        def turn() -> float:
            part = self.table.claim()  # memory of the one writer: the newest rollout is still in it
            assert part is not None
            part.rollout.step[:] += self.agent.needs.rollout_length
            self.table.commit(part, self.priorities)
            while (taken := self.table.take()) is not None:
                self.table.release(taken.slot)
            return float(part.rollout.reward.size)

        return turn

    def _learner(self) -> Callable[[], float]:
        def update() -> float:
            self.learner.learn(self.taken.batch)
            return frames

        replay = self.agent.needs.table is not None
        frames = self.config.steps_per_update if replay else self.parts * self.each * self.agent.needs.rollout_length
        return update

    def whole(self, seconds: float) -> Whole:
        """Resume training for a while. Afterwards what is in flight ends, and nothing runs."""
        progress = self.trainer.advance()
        while progress.updates == 0:
            progress = self.trainer.advance()
        settled = time.perf_counter() + SETTLE_SECONDS
        while time.perf_counter() < settled:
            progress = self.trainer.advance()
        before, wall, cpu = progress, time.perf_counter(), cpu_seconds()
        while time.perf_counter() - wall < seconds or progress.items["rollouts"] == before.items["rollouts"]:
            progress = self.trainer.advance()
        frames = (progress.items["rollouts"] - before.items["rollouts"]) * self.each * self.agent.needs.rollout_length
        cost = Cost(time.perf_counter() - wall, cpu_seconds() - cpu, frames)
        quiet()
        spent = lambda name: progress.seconds[name] - before.seconds[name]
        busy = spent("learn") + spent("learner_idle")
        return Whole(cost, progress.env_steps - before.env_steps, spent("learner_idle") / busy if busy else 0.0)

    def close(self) -> None:
        for group in range(len(self.pool.groups)):
            self.pool.recv(group)
        self.pool.close()
        self.collector.close()
        self.trainer.close()


def timed(loop: Callable[[], float], seconds: float) -> Cost:
    """Call `loop`, which returns how many frames it dealt with, for `seconds`."""
    frames, wall, cpu = 0.0, time.perf_counter(), cpu_seconds()
    while time.perf_counter() - wall < seconds or not frames:
        frames += loop()
    return Cost(time.perf_counter() - wall, cpu_seconds() - cpu, frames)


def quiet(patience: float = 20.0) -> None:
    """Wait until this process uses next to no CPU."""
    deadline = time.perf_counter() + patience
    while time.perf_counter() < deadline:
        before = cpu_seconds()
        time.sleep(0.2)
        if cpu_seconds() - before < 0.02:
            return


def summarise(options: Options, now: dict[str, Any], costs: dict[str, list[Cost]], wholes: list[Whole]) -> Record:
    cores = now["cores"]
    middle = lambda values: median(list(values)) or 0.0
    cpu = {name: middle(cost.cpu_per_frame for cost in costs[name]) for name in costs}
    wall = {name: middle(cost.wall_per_frame for cost in costs[name]) for name in costs}
    limit, in_turn = cores / sum(cpu.values()), 1 / sum(wall.values())
    reached = middle(whole.cost.frames / whole.cost.wall for whole in wholes)
    rows = [_part_row(name, wall[name], cpu[name], cores, sum(cpu.values())) for name in costs]
    rows += [
        {"part": "limit of the parts", "frames/s": limit},
        {"part": "parts one after the other", "wall_µs": 1e6 * sum(wall.values()), "frames/s": in_turn},
        {
            "part": "whole system", "wall_µs": 1e6 / reached,
            "cpu_µs": 1e6 * middle(whole.cost.cpu_per_frame for whole in wholes),
            "cores_busy": middle(w.cost.cpu / w.cost.wall for w in wholes), "frames/s": reached,
            "share": f"{bar(reached / limit)} {reached / limit:.0%} of the limit",
        },
    ]  # fmt: skip
    dearest = max(cpu, key=lambda name: cpu[name])
    idle = middle(whole.learner_idle for whole in wholes)
    steps = middle(whole.env_steps / whole.cost.wall for whole in wholes)
    bar_reached = REACHED_BY_REPLAY if "table" in cpu else REACHED
    verdicts = [Verdict.of("share of the limit reached", reached / limit, at_least=bar_reached)]
    if options.config.topology.overlaps:  # else everyone waits in turn, as it says
        verdicts.append(Verdict.of("learner idle", idle, at_most=0.05))
    return Record(
        bench="roofline",
        subject=f"roofline of {options.config.system} on {options.config.env_name}",
        command=f"rookery bench roofline {options.words} --seconds {options.seconds:g} --rounds {options.rounds}",
        conditions=now,
        settings={"seconds": options.seconds, "rounds": options.rounds, "seeds": [options.config.run.seed],
                  "config": _without_places(options.config.to_dict()), "xla_flags": os.environ.get("XLA_FLAGS", "")},
        rows=rows,
        verdicts=verdicts,
        notes=[f"The dearest part is the {dearest}: {cpu[dearest] / sum(cpu.values()):.0%} of the CPU time of a frame. "
               f"The whole trained on {steps:,.0f} environment steps/s.", *NOTES],
        runs=[{"part": name, **cost._asdict()} for name in costs for cost in costs[name]]
        + [{"part": "whole", **w.cost._asdict(), "env_steps": w.env_steps, "idle": w.learner_idle} for w in wholes],
    )  # fmt: skip


def _part_row(name: str, wall: float, cpu: float, cores: int, total: float) -> dict[str, Any]:
    return {
        "part": name,
        "wall_µs": 1e6 * wall,
        "cpu_µs": 1e6 * cpu,
        "cores_busy": cpu / wall,
        "frames/s": cores / cpu,
        "share": f"{bar(cpu / total)} {cpu / total:.0%} of the CPU time",
    }


def bar(share: float, width: int = 20) -> str:
    filled = round(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "·" * (width - filled)


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"run": {key: value for key, value in config["run"].items() if key not in ("run", "runs")}}
