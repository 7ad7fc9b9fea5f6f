"""Anakin: the whole loop is one compiled program, and the host only looks in now and then (Hessel et al. 2021).

    ┌─ program, for each of S seeds ─────────────────────────────────────────┐
    │   environment × B ──observation──▶ act ──row──▶ rollout [T, B]         │
    │         ▲───────────action──────────┘                │                 │
    │                     parameters ▲             (or ring on the device)   │
    │                                └─────── learn ◀──────┘                 │
    └──── repeated for many updates per call ──┬─────────────────────────────┘
                                               ▼
                       returns, reports and parameters, once per call

Environments must be written in JAX. Nobody waits for anybody and nothing travels: data is learned from by the parameters
that made it, or from a uniform replay beside them. The program's state is one tree of arrays, so a run is bit-reproducible
and a resumed one goes on bit for bit. Seeds share nothing but the program; the first one is published and evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from rookery.data import arrays
from rookery.data.config import TableSpec
from rookery.data.memory import check_fits
from rookery.envs.jax.sources import build, is_jax_id, kind_of
from rookery.envs.named import resolved
from rookery.envs.registry import JAX_IDS
from rookery.ranges import Count, Workers
from rookery.topologies.compatibility import rows_of
from rookery.topologies.job import TICK_SECONDS, Job, Progress, Published
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.wiring import parameter_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.compiled import ring
from rookery.workers.compiled.anakin_program import Advanced, AnakinProgram, Pace

if TYPE_CHECKING:
    from rookery.envs.jax.env import JaxEnv

STEPS_PER_CALL = 16_384  # on two CPU cores, PPO with 8 environments takes 0.2 s for these
WORK_PER_CALL = 5e10  # floating-point operations: about a second of two cores; nobody is heard in the middle of a call
WINDOW = 100  # episodes of each seed that its mean return is taken over


@dataclass(frozen=True, kw_only=True)
class Anakin:
    """Environments, acting and learning compiled into one program."""

    overlaps: ClassVar[bool] = False
    num_envs: Count = 64
    """Environments of each seed."""
    num_seeds: Workers = 1
    """Agents trained side by side, with the seeds seed, seed + 1, ...; they share the budget of --total-steps."""
    updates_per_call: Count | None = None
    """Updates per call of the compiled program; None: about 16,384 steps' worth, or a second's. What is learned does not
    depend on it."""

    def max_lag(self) -> int:
        return 0

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        return _not_compilable(spec) or _not_on_the_device(agent) or _uneven(agent, self.num_envs)

    def steps_per_update(self, algorithm: Any) -> float:
        steps = getattr(algorithm, "steps_per_update", None)
        return self.num_seeds * (self.num_envs * rows_of(algorithm) if steps is None else steps)

    def pace(self, agent: Agent) -> Pace:
        """Alternate rollouts and updates: one of each or, with a replay, in the ratio that its samples per insert ask for."""
        rows, table = self.num_envs * agent.needs.rollout_length, agent.needs.table
        updates, rollouts = _updates_per_rollout(agent, self.num_envs).as_integer_ratio()
        wanted = self.updates_per_call or STEPS_PER_CALL // (self.num_seeds * rows * rollouts) * updates
        if self.updates_per_call is None and table is not None:  # SAC's gradient steps of 16,384 steps take a minute
            wanted = min(wanted, int(WORK_PER_CALL / (self.num_seeds * work_of_update(agent, table.batch_size))))
        turns = max(1, round(wanted / updates))
        if table is None:
            return Pace(rollouts, updates, turns, warm_up=0)
        full = -(-table.config.min_size // rows)
        ready = 1 + -(-table.n_step // agent.needs.rollout_length)  # rollouts until there is something to draw
        return Pace(rollouts, updates, turns, warm_up=max(full, ready))

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent = agents[MAIN]
        needs, pace = agent.needs, self.pace(agent)
        rows = self.num_seeds * self.num_envs * needs.rollout_length * pace.rollouts  # of a turn
        facts = {
            "steps per update": f"{rows / pace.updates:,.1f}".removesuffix(".0"),
            "updates per call": f"{pace.turns * pace.updates:,}",
        } | (_replay_facts(self, agent, spec) if needs.table else {"policy lag": "0"})
        ended = 9 * rows * pace.turns  # of each row: did an episode end there, with what return and length
        return Plan(  # nothing is hosted: the program lives where the driver does, on every runtime
            nodes=(
                Node(name="environment", most=self.num_seeds * self.num_envs),
                Node(name="seed", most=self.num_seeds),
                Node(name="program", role="learner", worker=AnakinProgram, envs=self.num_envs),
                Node(name="driver"),
            ),
            edges=(
                Edge("reports", "program", "driver", "request", ended, "the program waits"),
                Edge("parameters", "program", "driver", "newest", parameter_bytes(agent), "newest wins"),
            ),
            facts=facts,
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        if job.devices > 1:
            raise ValueError(f"--devices {job.devices}: Anakin's program lives on one device, use --devices 1 or Sync")
        try:
            driver = _ProgramDriver(self, job, snapshot)
            while True:
                coming = driver.program.call(AnakinProgram.advance)
                while not job.runtime.wait([coming], TICK_SECONDS)[0]:
                    yield driver.progress(snapshot=None)
                driver.take(coming.result())
                yield driver.progress(snapshot=driver.snapshot)
        finally:
            job.runtime.close()


class _ProgramDriver:
    """The driver's side of the program: its handle, the counters, the newest parameters and returns."""

    def __init__(self, topology: Anakin, job: Job, snapshot: PyTree | None) -> None:
        self.topology, self.meters = topology, Meters.of(topology.plan(job.agents, job.spec), snapshot)
        self.program = job.runtime.spawn(
            AnakinProgram, job.agent, _env_of(job), num_envs=topology.num_envs, num_seeds=topology.num_seeds,
            pace=topology.pace(job.agent), seed=job.seed, snapshot=_of_program(snapshot), name="program", role="learner",
        )  # fmt: skip
        self.params, self.version = self.program.call(AnakinProgram.published).result()
        self.returns: list[list[float]] = [[] for _ in range(topology.num_seeds)]  # the newest of each seed
        if snapshot is not None:
            self.returns = [list(map(float, returns)) for returns in snapshot["returns"]]

    def take(self, news: Advanced) -> None:
        meters = self.meters
        meters.env_steps += news.env_steps
        meters.trained_steps += news.trained_steps
        meters.updates = news.version
        meters.episodes += len(news.episodes)
        meters.finished += news.episodes
        meters.seconds["learn"] = meters.seconds.get("learn", 0.0) + news.seconds
        meters.lags.append((news.lag_mean, news.lag_max))
        meters.moved("reports")
        meters.moved("parameters")
        for episode in news.episodes:
            self.returns[episode.env_id // self.topology.num_envs].append(episode.total_reward)
        self.returns = [returns[-WINDOW:] for returns in self.returns]
        if news.report:
            means = {f"return_mean/seed_{n}": sum(r) / len(r) for n, r in enumerate(self.returns) if r}
            meters.report = news.report | {"sample_reuse": meters.trained_steps / meters.env_steps}
            meters.report |= means if len(self.returns) > 1 else {}
        self.params, self.version = news.params, news.version

    def progress(self, *, snapshot: Callable[[], PyTree] | None) -> Progress:
        return self.meters.progress(self, snapshot=snapshot)

    @property
    def policies(self) -> dict[str, Published]:
        return {MAIN: Published(self.params, self.version)}

    def workers(self) -> dict[str, int]:
        return {}

    def tune(self, values: Mapping[str, float]) -> None:
        self.program.call(AnakinProgram.tune, values).result()

    def inspect(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> PyTree:
        returns = [np.array(returns, np.float64) for returns in self.returns]
        saved = self.program.call(AnakinProgram.snapshot).result()
        return {"policies": {MAIN: saved.pop("learner")}} | saved | {"meters": self.meters.snapshot(), "returns": returns}


def _of_program(snapshot: PyTree | None) -> PyTree | None:
    """Hand the program its part of a snapshot."""
    return None if snapshot is None else {"learner": snapshot["policies"][MAIN], "program": snapshot["program"]}


# ------------------------------------------------------------------------------------------------- what fits


def _not_compilable(spec: Spec) -> str | None:
    if spec.pool is not None:
        return (
            "its environments are part of a compiled program, and options of pools act on the host: leave them out, or use Sync"
        )
    if is_jax_id(spec.id):
        return None
    twin = f"jax:{spec.id}"
    hint = f"use --env {twin}" if twin in JAX_IDS else "use Sync, or an id that begins with jax:, gymnax:, brax: or pgx:"
    return f"{spec.id!r} is not written in JAX and cannot be compiled into the program: {hint}"


def _not_on_the_device(agent: Agent) -> str | None:
    needs, table = agent.needs, agent.needs.table
    if needs.whole_episodes:
        return "it learns from the returns of whole episodes, and rollouts are cut at a fixed length: use Evolution"
    if table is not None and table.sequence_length:
        return "its replay on the device holds single transitions, not sequences: use ActorLearner"
    if table is not None and table.config.selector == "prioritized":
        return "a sum tree of priorities is slow inside a compiled program: use --replay.selector uniform, or Sync"
    if agent.process is not None:
        return "it processes rollouts on the host, and Anakin's never get there: use Sync"
    if table is None:
        return None
    if table.extras:
        return "its replay on the device stores no extras: use Sync"
    config = table.config
    if config.stack or config.remover != "fifo" or config.max_times_sampled:
        return "its replay is a plain ring: use --replay.stack 0, --replay.remover fifo and --replay.max-times-sampled 0"
    return None


def _updates_per_rollout(agent: Agent, num_envs: int) -> Fraction:
    if (table := agent.needs.table) is None:
        return Fraction(1)
    inserts = num_envs * agent.needs.rollout_length
    return Fraction(table.samples_per_insert).limit_denominator(10_000) * inserts / table.batch_size


def work_of_update(agent: Agent, rows: int) -> int:
    """Estimate the floating-point operations of learning from so many rows: six for each of them and each parameter."""
    return 6 * rows * (parameter_bytes(agent) // 4)


def _uneven(agent: Agent, num_envs: int) -> str | None:
    """Refuse a ratio that is not one rollout and some updates, or some rollouts and one update, per turn."""
    ratio = _updates_per_rollout(agent, num_envs)
    if 1 in ratio.as_integer_ratio():
        return None
    near = Fraction(round(ratio)) if ratio > 1 else Fraction(1, round(1 / ratio))
    samples = float(near / ratio * Fraction(agent.needs.table.samples_per_insert))
    counted = agent.needs.table.ratio is not None  # in gradient steps, by --update-ratio
    remedy = "another --gradient-steps or --num-envs" if counted else f"--replay.samples-per-insert {samples:g}"
    return (
        f"a rollout of {num_envs} environments pays for {float(ratio):g} updates, and neither that nor its inverse is a whole "
        f"number: use {remedy}"
    )


def _replay_facts(topology: Anakin, agent: Agent, spec: Spec) -> dict[str, str]:
    """Summarise the replay for the start of a run; refuse one that does not fit into memory."""
    table: TableSpec = agent.needs.table
    rows = ring.num_rows(table, num_envs=topology.num_envs, rollout_length=agent.needs.rollout_length)
    specs = rollout_specs(agent, spec, topology.num_envs)
    nbytes = topology.num_seeds * arrays.nbytes(jax.tree.leaves(jax.eval_shape(lambda: ring.empty(specs, rows))))
    what = f"{topology.num_seeds * rows * topology.num_envs:,} steps"
    check_fits(nbytes, what=f"a replay of {what}", remedy="lower --replay.capacity")
    if table.config.min_size > rows * topology.num_envs:
        raise ValueError(
            f"--replay.min-size {table.config.min_size}: the replay of each seed holds {rows * topology.num_envs:,} steps; "
            "lower it, or raise --replay.capacity"
        )
    return {
        "replay": f"{what} in {nbytes / 1e6:,.0f} MB on the device, uniform",
        "samples per insert": f"{table.samples_per_insert:g}",
        "policy lag": "as old as the replay",
    }


def _env_of(job: Job) -> JaxEnv:
    """Build the environment that was named, or that a callable of the user's makes."""
    options, env = dict(job.env_options), resolved(job.env)
    if isinstance(env, str) or kind_of(env):
        return build(env, options)
    return build(env(**options))
