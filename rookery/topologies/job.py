"""What a topology is given (Job), what it tells (Progress, Graph), and the crew of workers that it drives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from rookery.data import arrays
from rookery.data.queue import Queue
from rookery.data.replay import Replay, batch_specs, check_memory
from rookery.runtime.local import Handle, LocalRuntime
from rookery.types import Agent, EnvPool, Episode, PyTree, Rollout, Spec
from rookery.workers.collector import Collected, Collector
from rookery.workers.learner import Learner, Update
from rookery.workers.shapes import rollout_specs

TICK_SECONDS = 0.5  # a topology yields at least this often, even when starved


@dataclass(frozen=True)
class Job:
    agent: Agent
    spec: Spec
    make_pool: Callable[[int, int], EnvPool]  # (num_envs, groups)
    runtime: LocalRuntime
    seed: int


class Edge(NamedTuple):
    """Something that travels between workers."""

    name: str
    source: str
    target: str
    nbytes: int  # of one item
    when_full: str


class Graph(NamedTuple):
    """A topology as `rookery show` prints it and a run reports it."""

    nodes: dict[str, int]  # role -> how many
    edges: tuple[Edge, ...]
    facts: dict[str, str]  # derived numbers worth saying at the start


@dataclass(frozen=True)
class Progress:
    """What happened since the last one, and how it stands. Counters are cumulative."""

    env_steps: int
    trained_steps: int
    updates: int
    episodes: int
    finished: list[Episode]  # since the last Progress
    report: dict[str, float]  # of the last update
    params: PyTree
    version: int
    lag_mean: float  # of the updates since the last Progress
    lag_max: int
    seconds: dict[str, float]  # cumulative per phase: env, inference, transfer (over collectors), learn, learner_idle
    items: dict[str, int]  # per edge, cumulative
    snapshot: Callable[[], PyTree] | None
    #   quiesces the workers and returns the whole state; callable until the next next(). None in the middle of a step
    #   that must be finished first: ask the next Progress


class Topology(Protocol):
    """A frozen dataclass of counts and periods."""

    overlaps: ClassVar[bool]  # do collectors work while the learner learns?

    def graph(self, agent: Agent, spec: Spec) -> Graph: ...
    def max_lag(self) -> int: ...
    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]: ...


@dataclass
class Meters:
    """Counts what a topology's workers report; part of every snapshot."""

    env_steps: int = 0
    trained_steps: int = 0
    updates: int = 0
    episodes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    finished: list[Episode] = field(default_factory=list)
    report: dict[str, float] = field(default_factory=dict)
    lags: list[tuple[float, int]] = field(default_factory=list)

    def collected(self, rollout: Collected) -> None:
        self.env_steps += rollout.env_steps
        self.episodes += len(rollout.episodes)
        self.finished += rollout.episodes
        for phase, seconds in rollout.seconds.items():
            self._spend(phase, seconds)
        self.moved("rollouts")

    def learned(self, update: Update, table: dict[str, float] | None = None) -> None:
        """table: what the table tells of itself."""
        self.trained_steps += update.trained_steps
        self.updates = update.version
        self.report = update.report | (table or {})
        self.lags.append((update.lag_mean, update.lag_max))
        self._spend("learn", update.busy_seconds)
        self._spend("learner_idle", update.idle_seconds)
        self.moved("batches")
        if update.priorities is not None:
            self.moved("priorities")

    def moved(self, edge: str, count: int = 1) -> None:
        self.items[edge] = self.items.get(edge, 0) + count

    def _spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def progress(self, crew: Crew, *, snapshot: Callable[[], PyTree] | None) -> Progress:
        finished, self.finished = self.finished, []
        lags, self.lags = self.lags, []
        return Progress(
            env_steps=self.env_steps,
            trained_steps=self.trained_steps,
            updates=self.updates,
            episodes=self.episodes,
            finished=finished,
            report=self.report,
            params=crew.params,
            version=crew.version,
            lag_mean=sum(mean for mean, _ in lags) / len(lags) if lags else 0.0,
            lag_max=max((peak for _, peak in lags), default=0),
            seconds=dict(self.seconds),
            items=dict(self.items),
            snapshot=snapshot,
        )

    def snapshot(self) -> PyTree:
        names = ("env_steps", "trained_steps", "updates", "episodes")
        finished = np.array(self.finished, np.float64).reshape(-1, 3)  # not told yet: the next Progress does
        return {name: getattr(self, name) for name in names} | {"items": dict(self.items), "finished": finished}

    @staticmethod
    def continued(snapshot: PyTree | None) -> Meters:
        """Meters that go on counting where the snapshot stopped."""
        if snapshot is None:
            return Meters()
        finished = [Episode(int(env), float(total), int(length)) for env, total, length in snapshot["meters"]["finished"]]
        return Meters(**snapshot["meters"] | {"finished": finished, "items": dict(snapshot["meters"]["items"])})


class Crew:
    """One learner and N collectors of a job, spawned, and what is done with all of them at once."""

    def __init__(
        self, job: Job, *, collectors: int, envs_per_collector: int, groups: int, parts: int, snapshot: PyTree | None
    ) -> None:
        """parts: rollouts per batch."""
        saved: Sequence[PyTree | None] = snapshot["collectors"] if snapshot else [None] * collectors
        if len(saved) != collectors:
            raise ValueError(f"the checkpoint was made with --collectors {len(saved)}, not {collectors}: use that number")
        self.job, self.specs = job, rollout_specs(job.agent, job.spec, envs_per_collector)
        self.learner: Handle = job.runtime.spawn(
            Learner, job.agent, seed=job.seed, snapshot=snapshot["learner"] if snapshot else None, name="learner"
        )
        make_pool = lambda: job.make_pool(envs_per_collector, groups)
        self.collectors: list[Handle] = [
            job.runtime.spawn(
                Collector, job.agent, make_pool, index=i, num_collectors=collectors, seed=job.seed,
                snapshot=saved[i], name=f"collector-{i}",
            )
            for i in range(collectors)
        ]  # fmt: skip
        self.params, self.version = self.learner.now("published")
        self.learner.call("warm_up", batch_specs(job.agent.needs, self.specs, parts))
        for collector in self.collectors:
            collector.now("publish", self.params, self.version)

    def publish(self, update: Update, meters: Meters) -> None:
        """Newest wins: a collector reads it at the start of its next rollout."""
        self.params, self.version = update.params, update.version
        published = self.job.runtime.put(update.params)
        for collector in self.collectors:
            collector.now("publish", published, update.version)
        meters.moved("parameters", len(self.collectors))

    def done(self, future: Future, seconds: float) -> bool:
        """Waits at most `seconds` for a call to end."""
        return bool(self.job.runtime.wait([future], seconds)[0])

    def snapshot(self, meters: Meters, queue: Queue | Replay) -> PyTree:
        """The whole state as a tree of numpy arrays; nothing may be in flight."""
        return {
            "learner": self.learner.call("snapshot").result(),
            "collectors": [collector.call("snapshot").result() for collector in self.collectors],
            "meters": meters.snapshot(),
            "queue": queue.snapshot(),
        }


def loop_edges(agent: Agent, spec: Spec, *, envs_per_collector: int, parts: int, when_full: str) -> tuple[Edge, ...]:
    """The edges of the one loop: rollouts, batches and parameters."""
    specs: Rollout = rollout_specs(agent, spec, envs_per_collector)
    table, middle = agent.needs.table, "queue" if agent.needs.table is None else "table"
    edges = [
        Edge("rollouts", "collector", middle, arrays.nbytes(specs), when_full),
        Edge("batches", middle, "learner", arrays.nbytes(batch_specs(agent.needs, specs, parts)), "stay queued"),
        Edge("parameters", "learner", "collector", parameter_bytes(agent), "newest wins"),
    ]
    if table is not None and table.config.selector == "prioritized":
        edges.append(Edge("priorities", "learner", "table", 4 * table.batch_size, "those of evicted items are ignored"))
    return tuple(edges)


def replay_facts(agent: Agent, spec: Spec, *, envs_per_collector: int, num_envs: int) -> dict[str, str]:
    """What a replay table takes and gives, worth saying at the start; refuses one that does not fit into memory."""
    if (table := agent.needs.table) is None:
        return {}
    nbytes = check_memory(agent.needs, rollout_specs(agent, spec, envs_per_collector), num_envs=num_envs)
    ratio, batch, steps = table.config.samples_per_insert, table.batch_size, 1
    if table.sequence_length:
        steps = agent.needs.rollout_length  # a sequence starts with every rollout
    kept = f"{table.config.capacity:,} steps in {nbytes / 1e6:,.0f} MB, {table.config.selector}"
    return {
        "replay": kept,
        "steps per update": f"{batch * steps / ratio:,.1f}",
        "samples per insert": f"{ratio:g}",
        "policy lag": "as old as the replay",
    }


def parameter_bytes(agent: Agent) -> int:
    import jax

    return arrays.nbytes(jax.tree.leaves(jax.eval_shape(agent.init, jax.random.key(0)).params))


def envs_each(num_envs: int, collectors: int, groups: int) -> int:
    """Environments per collector; refuses counts that cannot be shared out evenly."""
    if num_envs % (collectors * groups):
        raise ValueError(
            f"--num-envs {num_envs} cannot be shared by {collectors} collectors of {groups} groups: "
            f"try --num-envs {max(1, num_envs // (collectors * groups)) * collectors * groups}"
        )
    return num_envs // collectors
