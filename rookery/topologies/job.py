"""A topology's input (Job), its output (Progress, Graph), and the learner and collectors that it drives (Crew)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from rookery.data import arrays
from rookery.data.demonstrations import Demonstrations
from rookery.data.replay import batch_specs, check_memory
from rookery.envs import Incident
from rookery.envs.pools.restarts import GOOD_STEPS
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle, Runtime
from rookery.runtime.roster import Life, Roster, Terms
from rookery.types import Agent, EnvPool, Episode, PyTree, Rollout, Spec
from rookery.workers.acting.collector import Collected, Collector
from rookery.workers.acting.inference import AnyCollector
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.learner import Learner, Update
from rookery.workers.learning.learners import AnyLearner, Learners

if TYPE_CHECKING:
    from rookery.workers.replay.shards import AnyTable

TICK_SECONDS = 0.5  # a topology yields at least this often, even when starved
LIFE = 1 << 12  # incarnations that each life of a collector may use up: environments are rebuilt within a life, too


@dataclass(frozen=True)
class Job:
    agent: Agent
    spec: Spec
    make_pool: Callable[[int, int], EnvPool]  # (num_envs, groups)
    runtime: Runtime
    seed: int
    devices: int = 1  # of the learner; of each, where there are several
    learners: int | None = None  # processes that share each batch; None: one learner that lives with the driver
    env_restarts: int = 10  # of an environment, without progress in between
    env: Any = None  # what the user named, for a topology that compiles environments into its own program
    env_options: Mapping[str, Any] = field(default_factory=dict)
    shown: Demonstrations | None = None  # to be learned from beside what is collected


class Edge(NamedTuple):
    """A stream of messages between two roles: rollouts, batches, parameters, gradients ..."""

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
    """The state of a run after a step of its topology. Counters are cumulative unless they say otherwise."""

    env_steps: int
    trained_steps: int
    updates: int
    episodes: int
    finished: list[Episode]  # since the last Progress
    env_failures: int  # of environments that were rebuilt
    incidents: list[Incident]  # since the last Progress
    report: dict[str, float]  # of the last update
    params: PyTree
    version: int
    lag_mean: float  # of the updates since the last Progress
    lag_max: int
    seconds: dict[str, float]  # cumulative per phase: env, inference, transfer (over collectors), learn, learner_idle
    items: dict[str, int]  # per edge, cumulative
    workers: dict[str, int]
    #   collectors that work now, and those that were lost with the rollouts they owed since the start; with `learners`,
    #   how often they were lost, and the updates that went with them
    snapshot: Callable[[], PyTree] | None
    #   quiesces the workers and returns the whole state; callable until the next next(). None in the middle of a step
    #   that must be finished first: ask the next Progress
    waiting: str | None = None  # whom the table holds back now, and what for
    inspect: Callable[[], dict[str, float]] = dict
    #   how learning stands now, by the names of the report; {} where nobody has both the state and a batch. Callable when
    #   `snapshot` was called


class Topology(Protocol):
    """A frozen dataclass of counts and periods.

    Its snapshot is a tree of arrays with at least {"learner": {"state": the flat TrainState that is evaluated}, "meters":
    Meters.snapshot()}: evaluation and resuming read these two, whatever the topology.
    """

    overlaps: ClassVar[bool]  # do collectors work while the learner learns?
    num_envs: int  # environments in all

    def roles(self) -> dict[str, tuple[int, int]]: ...  # workers that a cluster hosts, by the role they are spawned with
    def refuses(self, agent: Agent, spec: Spec) -> str | None: ...
    #   why this agent cannot be driven, and what can ("..., use Sync"); None where it can
    def steps_per_update(self, algorithm: Any) -> float: ...  # environment steps, planned
    def graph(self, agent: Agent, spec: Spec) -> Graph: ...  # its edges are all that Progress.items counts
    def max_lag(self) -> int: ...  # of the data that is learned from, in updates
    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]: ...


class Published(Protocol):
    """Holds the newest parameters and counts the workers: a Crew, or what a topology has in its place."""

    @property
    def params(self) -> PyTree: ...
    @property
    def version(self) -> int: ...
    def workers(self) -> dict[str, int]: ...
    def inspect(self) -> dict[str, float]: ...  # nothing may be in flight


OF_ENVIRONMENTS = ("env_dropped", "env_clipped", "env_recycled")


@dataclass
class Meters:
    """Counts what a topology's workers report; part of every snapshot."""

    env_steps: int = 0
    trained_steps: int = 0
    updates: int = 0
    episodes: int = 0
    env_failures: int = 0
    env_dropped: int = 0  # episodes cut short for a number that was not finite
    env_clipped: int = 0  # answers whose numbers were made finite
    env_recycled: int = 0  # worker processes that had grown too large
    seconds: dict[str, float] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    finished: list[Episode] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    report: dict[str, float] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)  # the newest that an update told, which not every one does
    lags: list[tuple[float, int]] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)  # what central inference says of its hosts

    def collected(self, rollout: Collected, *, edge: str = "rollouts") -> None:
        self.env_steps += rollout.env_steps
        self.episodes += len(rollout.episodes)
        self.finished += rollout.episodes
        self.count_incidents(rollout.incidents)
        for phase, seconds in rollout.seconds.items():
            self._spend(phase, seconds)
        self.moved(edge)
        if rollout.said is not None:
            self.workers = rollout.said.workers
            for name, count in rollout.said.moved.items():
                self.moved(name, count)

    def count_incidents(self, incidents: Sequence[Incident]) -> None:
        counters = {"dropped": "env_dropped", "clipped": "env_clipped", "recycled": "env_recycled"}
        for one in incidents:
            name = counters.get(one.kind, "env_failures")
            setattr(self, name, getattr(self, name) + one.times)
        self.incidents += [one for one in incidents if one.env_ids]

    def learned(self, update: Update, table: dict[str, float] | None = None, *, edge: str | None = "batches") -> None:
        """Count an update. table: metrics of the table; edge: None where a batch does not leave the worker that made it."""
        self.trained_steps += update.trained_steps
        self.updates = update.version
        self.health |= {name: value for name, value in update.report.items() if name.startswith("health/")}
        self.report = update.report | self.health | (table or {})
        self.lags.append((update.lag_mean, update.lag_max))
        self._spend("learn", update.busy_seconds)
        self._spend("learner_idle", update.idle_seconds)
        if edge is not None:
            self.moved(edge)
        if update.priorities is not None:
            self.moved("priorities")

    def moved(self, edge: str, count: int = 1) -> None:
        self.items[edge] = self.items.get(edge, 0) + count

    def _spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def progress(self, crew: Published, *, snapshot: Callable[[], PyTree] | None, waiting: str | None = None) -> Progress:
        finished, self.finished = self.finished, []
        incidents, self.incidents = self.incidents, []
        lags, self.lags = self.lags, []
        return Progress(
            env_steps=self.env_steps,
            trained_steps=self.trained_steps,
            updates=self.updates,
            episodes=self.episodes,
            finished=finished,
            env_failures=self.env_failures,
            incidents=incidents,
            report=self.report,
            params=crew.params,
            version=crew.version,
            lag_mean=sum(mean for mean, _ in lags) / len(lags) if lags else 0.0,
            lag_max=max((peak for _, peak in lags), default=0),
            seconds=dict(self.seconds),
            items=dict(self.items),
            workers=crew.workers() | self.workers | {n: count for n in OF_ENVIRONMENTS if (count := getattr(self, n))},
            snapshot=snapshot,
            waiting=waiting,
            inspect=crew.inspect,
        )

    def snapshot(self) -> PyTree:
        names = ("env_steps", "trained_steps", "updates", "episodes", "env_failures", *OF_ENVIRONMENTS)
        finished = np.array(self.finished, np.float64).reshape(-1, 3)  # not told yet: the next Progress does
        return {name: getattr(self, name) for name in names} | {"items": dict(self.items), "finished": finished}

    @staticmethod
    def continued(snapshot: PyTree | None) -> Meters:
        """Resume counting from a snapshot; None: from zero."""
        if snapshot is None:
            return Meters()
        finished = [Episode(int(env), float(total), int(length)) for env, total, length in snapshot["meters"]["finished"]]
        return Meters(**snapshot["meters"] | {"finished": finished, "items": dict(snapshot["meters"]["items"])})


class Crew:
    """The learner and the fleet of collectors of a job: spawns them, broadcasts to them, snapshots them together."""

    def __init__(
        self, job: Job, *, collectors: tuple[int, int], envs_per_collector: int, make_pool: Callable[[], EnvPool], parts: int,
        in_flight: int = 1, snapshot: PyTree | None, worker: Callable[..., AnyCollector] = Collector,
    ) -> None:  # fmt: skip
        """collectors: at least and at most; parts: rollouts per batch; in_flight: calls per collector.

        make_pool: of one collector; worker: spawned in its place, with the driver and without a deadline: it waits for hosts.
        """
        most, self.specs = collectors[1], rollout_specs(job.agent, job.spec, envs_per_collector)
        shapes = batch_specs(job.agent.needs, self.specs, parts)
        columns = shapes.reward.shape[1]
        if problem := uneven(columns, job.learners, job.devices):
            raise ValueError(problem)
        self._saved: Sequence[PyTree | None] = snapshot["collectors"] if snapshot else [None] * most
        if len(self._saved) != most:
            raise ValueError(f"the checkpoint was made with --collectors {len(self._saved)}, not {most}: use that number")
        self.job, self._most = job, most
        self._make_pool, self._worker = make_pool, worker
        self.stored = job.learners is not None and job.runtime.stores and worker is Collector
        self._losses = {"learners_lost": 0, "updates_lost": 0}
        self.learner = self._learner(snapshot["learner"] if snapshot else None)
        self._lives: list[int] = list(map(int, snapshot.get("lives", ()))) if snapshot else []
        patience = job.runtime.patience if worker is Collector else None
        terms = Terms(
            least=collectors[0], most=most, in_flight=in_flight, call_deadline=patience, start_deadline=patience,
            good_calls=GOOD_STEPS / job.agent.needs.rollout_length,
        )  # fmt: skip
        self.collectors = Fleet(job.runtime, "collector", Roster(terms, self._lives), self._collector, self._greet)
        self.collectors.tend()  # they start while the learner does
        self.params, self.version = self.learner.call(AnyLearner.published).result()
        self._put: Callable[[PyTree], Any] = job.runtime.put if worker is Collector else lambda params: params
        self._published = self._put(self.params)
        self.learner.call(AnyLearner.warm_up, shapes)

    def _learner(self, snapshot: PyTree | None) -> Handle[AnyLearner]:
        """Spawn a Learner in this process or, with --learners, a Learners, which spawns its ranks itself."""
        job = self.job
        if job.learners is None:
            return job.runtime.spawn(
                Learner, job.agent, seed=job.seed, snapshot=snapshot, devices=job.devices, name="learner", role="learner"
            )
        return job.runtime.spawn(
            Learners, job.runtime, job.agent, seed=job.seed, count=job.learners, devices=job.devices, snapshot=snapshot,
            losses=self._losses, name="learners",
        )  # fmt: skip

    def _collector(self, life: Life) -> Handle[AnyCollector]:
        """Spawn a collector. A life that is in the snapshot resumes from it; a replacement starts streams of its own."""
        goes_on = life.number == (self._lives[life.place] if self._lives else 0)
        return self.job.runtime.spawn(
            self._worker, self.job.agent, self._make_pool, index=life.place, num_collectors=self._most,
            seed=self.job.seed, incarnation=life.number * LIFE, env_restarts=self.job.env_restarts,
            snapshot=self._saved[life.place] if goes_on else None, name=f"collector-{life.place}", role="collector",
        )  # fmt: skip

    def _greet(self, collector: Handle[AnyCollector]) -> None:
        collector.now(AnyCollector.publish, self._published, self.version)

    def publish(self, update: Update, meters: Meters) -> None:
        """Broadcast the newest parameters; a collector reads them at the start of its next rollout."""
        self.params, self.version = update.params, update.version
        self._published = self._put(update.params)
        meters.moved("parameters", self.collectors.publish(AnyCollector.publish, self._published, update.version))

    def done(self, future: Future, seconds: float) -> bool:
        """Wait at most `seconds` for a call to end."""
        return bool(self.job.runtime.wait([future], seconds)[0])

    def workers(self) -> dict[str, int]:
        roster = self.collectors.roster
        return {
            "collectors": roster.count("working", "leaving"),
            "collectors_lost": roster.lost_workers,
            "rollouts_lost": roster.lost_calls,
        } | (self._losses if self.job.learners else {})

    def inspect(self) -> dict[str, float]:
        return self.learner.call(AnyLearner.inspect).result()

    def snapshot(self, meters: Meters, queue: AnyTable) -> PyTree:
        """Gather the whole state as a tree of numpy arrays; nothing may be in flight."""
        return {
            "learner": self.learner.call(AnyLearner.snapshot).result(),
            "collectors": self.collectors.gather(AnyCollector.snapshot),
            "lives": self.collectors.roster.lives,
            "meters": meters.snapshot(),
            "queue": queue.snapshot(),
        }


def uneven(columns: int, learners: int | None, devices: int) -> str | None:
    """Explain why a batch cannot be split evenly over learners and devices; None: it can."""
    asked = [("learners", learners or 1), ("devices", devices)]
    if columns % ((learners or 1) * devices) == 0:
        return None
    by = " ".join(f"--{name} {count}" for name, count in asked if count > 1)
    return f"a batch of {columns} columns cannot be shared by {by}: make it a multiple"


def loop_edges(agent: Agent, spec: Spec, *, envs_per_collector: int, parts: int, when_full: str) -> tuple[Edge, ...]:
    """List the edges of the actor-learner loop: rollouts, batches, parameters and, where prioritized, priorities."""
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
    """Summarise the replay table for the start of a run; refuse one that does not fit into memory."""
    if (table := agent.needs.table) is None:
        return {}
    nbytes = check_memory(agent.needs, rollout_specs(agent, spec, envs_per_collector), num_envs=num_envs)
    ratio, batch, steps = table.config.samples_per_insert, table.batch_size * (1.0 - table.demo_ratio), 1
    if table.sequence_length:
        steps = agent.needs.rollout_length  # a sequence starts with every rollout
    kept = f"{table.config.capacity:,} steps in {nbytes / 1e6:,.0f} MB, {table.config.selector}"
    shown = {"demonstrations": f"{table.demo_ratio:.2%} of a batch"} if table.demo_ratio else {}
    return {
        "replay": kept,
        "steps per update": f"{batch * steps / ratio:,.1f}",
        "samples per insert": f"{ratio:g}",
        "policy lag": "as old as the replay",
    } | shown


def parameter_bytes(agent: Agent) -> int:
    import jax

    return arrays.nbytes(jax.tree.leaves(jax.eval_shape(agent.init, jax.random.key(0)).params))


def envs_each(num_envs: int, collectors: int, groups: int, *, whose: str = "collectors") -> int:
    """Divide the environments over the collectors; refuse counts that do not divide evenly."""
    if num_envs % (collectors * groups):
        raise ValueError(
            f"--num-envs {num_envs} cannot be shared by {collectors} {whose} of {groups} groups: "
            f"try --num-envs {max(1, num_envs // (collectors * groups)) * collectors * groups}"
        )
    return num_envs // collectors
