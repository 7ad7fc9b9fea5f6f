"""The contract of topologies: what one is given (Job), what it declares (its plan), what it tells of each step (Progress)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from rookery.data.demonstrations import Demonstrations
from rookery.envs import Incident
from rookery.runtime.interface import Runtime
from rookery.topologies.plan import MAIN, Plan
from rookery.types import Agent, EnvPool, Episode, PyTree, Spec

TICK_SECONDS = 0.5  # a topology yields at least this often, even when starved


@dataclass(frozen=True)
class Job:
    agent: Agent  # of the main policy
    spec: Spec
    make_pool: Callable[[int, int], EnvPool]  # (num_envs, groups)
    runtime: Runtime
    seed: int
    devices: int = 1  # of the learner; of each, where there are several
    learners: int | None = None  # processes that share each batch; None: one learner that lives with the driver
    env_restarts: int = 10  # of an environment, without progress in between
    env: Any = None  # what the user named, for a topology that compiles environments into its own program
    env_options: Mapping[str, Any] = field(default_factory=dict)
    shown: Demonstrations | None = None  # to be learned from beside what is collected, or instead of it
    others: Mapping[str, Agent] = field(default_factory=dict)  # those of the other policies, by name

    @property
    def agents(self) -> dict[str, Agent]:
        return {MAIN: self.agent, **self.others}


class Published(NamedTuple):
    """A policy of a job, as it was published last."""

    params: PyTree
    version: int


@dataclass(frozen=True, repr=False)
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
    policies: Mapping[str, Published]  # as they were published last, the main one first
    lag_mean: float  # of the updates since the last Progress
    lag_max: int
    seconds: dict[str, float]  # cumulative per phase: env, inference, transfer (over collectors), learn, learner_idle
    items: dict[str, int]  # per edge of the plan, cumulative
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
    tune: Callable[[Mapping[str, float]], None] | None = None
    #   sets hyper-parameters of the main policy that are leaves of its state (params["hyper"]), from the next update on;
    #   nothing is compiled again. None: this topology cannot

    def __repr__(self) -> str:
        """Show in one line what is looked for first: parameters would fill the screen."""
        held_up = f", {self.waiting}" if self.waiting else ""
        return (
            f"Progress({self.env_steps:,} steps, {self.updates:,} updates, {self.episodes:,} episodes, "
            f"policy lag {self.lag_mean:.1f}{held_up})"
        )

    @property
    def params(self) -> PyTree:
        """Parameters of the main policy."""
        return self.policies[MAIN].params

    @property
    def version(self) -> int:
        return self.policies[MAIN].version


class Topology(Protocol):
    """A frozen dataclass of counts and periods.

    Its snapshot is a tree of arrays with at least {"policies": {name: {"state": a flat TrainState, "version": ...}}, "meters":
    Meters.snapshot()}: evaluation and resuming read these two, whatever the topology.
    """

    overlaps: ClassVar[bool]  # do collectors work while the learner learns?
    num_envs: int  # environments in all

    def refuses(self, agent: Agent, spec: Spec) -> str | None: ...
    #   why this agent cannot be driven, and what can ("..., use Sync"); None where it can
    def steps_per_update(self, algorithm: Any) -> float: ...  # environment steps, planned
    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan: ...
    #   the wiring: all that is launched, and all edges that Progress.items counts. Refuses counts that do not fit (ValueError)
    def max_lag(self) -> int: ...  # of the data that is learned from, in updates
    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]: ...


def policies_of(topology: Any) -> tuple[str, ...]:
    """List the policies that a topology trains, the main one first: those that it names as `policies`, else one."""
    return tuple(getattr(topology, "policies", (MAIN,)))
