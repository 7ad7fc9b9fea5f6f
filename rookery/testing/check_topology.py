"""check_topology: does a Topology account for every step once, whatever the order in which its workers answer?

    check_topology(MyTopology(num_envs=4), losses=("collector",))

It is driven in lock-step (lockstep.py), with environments that can be foretold and an agent whose parameters count each step
that it learned from (agents.py). So what was lost or learned from twice can be named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from rookery.testing.agents import ledger_agent
from rookery.testing.contracts import require
from rookery.testing.lockstep import LockstepRuntime
from rookery.testing.schedules import Dies, Seconds, even, never, shuffled
from rookery.testing.scripted_pool import SPEC, ScriptedPool, Slot
from rookery.testing.snapshots import checkpointed, drive_until
from rookery.topologies.job import Job, Progress, Topology
from rookery.topologies.plan import MAIN
from rookery.types import Agent, PyTree

QUIET_SECONDS = 1.0  # a topology yields at least so often, even when starved
STEPS = 5_000  # of a driver, at most
Step = tuple[int, int, int]  # environment, episode, step


def check_topology(
    topology: Topology,
    *,
    agent: Agent | None = None,
    losses: Collection[str] = (),
    updates: int = 10,
    exact: bool = True,
    partial: bool = False,
    schedules: int = 2,
) -> None:
    """Assert the contracts of a topology: its ledger, its snapshots, its edges, its signs of life.

    agent: instead of ledger_agent(), where that one is refused; losses: roles whose workers it replaces; updates: made before
    and after a snapshot; exact: False where parameters are averaged or steps are
    learned from several times, so that only the counters are held against what was played; partial: a snapshot may hold
    rollouts that are half written; schedules: random ones beside an even one. Raises ContractBroken.
    """
    agent = agent or ledger_agent(envs=16 * topology.num_envs)
    refused = topology.refuses(agent, SPEC)
    require(refused is None, f"the topology refuses the agent that it is checked with: {refused}; give `agent`")
    edges = {edge.name for edge in topology.plan({MAIN: agent}, SPEC).checked().edges}
    check = _Check(topology, agent, updates, exact=exact, partial=partial)
    for seconds in (even(), *map(shuffled, range(schedules))):
        check.ledger_and_snapshots(seconds, edges)
    check.signs_of_life()
    for role in losses:
        check.loss(role)


class _PlayedSteps:
    """The steps that all pools have played. Every pool that is made shows environments of its own."""

    def __init__(self, steps: Counter[Step] | None = None, envs: int = 0) -> None:
        self.steps: Counter[Step] = steps or Counter()
        self.envs = envs

    def make_pool(self, num_envs: int, groups: int) -> ScriptedPool:
        first, self.envs = self.envs, self.envs + num_envs
        return ScriptedPool(num_envs, groups, first_env=first, on_step=self._note)

    def _note(self, slot: Slot) -> None:
        if not slot.ended:  # else it is reset, which is no transition
            self.steps[slot.env, slot.episode, slot.step] += 1

    def copy(self) -> _PlayedSteps:
        return _PlayedSteps(Counter(self.steps), self.envs)


class _Check:
    def __init__(self, topology: Topology, agent: Agent, updates: int, *, exact: bool, partial: bool) -> None:
        self._topology, self._agent, self._updates, self._exact = topology, agent, updates, exact
        self._unwritten = topology.num_envs * agent.needs.rollout_length if partial else 0  # steps that are in no rollout yet

    def _drive(
        self, played: _PlayedSteps, seconds: Seconds, snapshot: PyTree | None = None, *, dies: Dies = never
    ) -> tuple[Any, LockstepRuntime]:
        runtime = LockstepRuntime(seconds, dies=dies)
        job = Job(self._agent, SPEC, played.make_pool, runtime, seed=0)
        return self._watched(self._topology.drive(job, snapshot)), runtime

    def _watched(self, driver: Iterator[Progress]) -> Iterator[Progress]:
        bound = self._topology.max_lag()
        for progress in driver:
            late = f"data was {progress.lag_max} updates old, max_lag() promises {bound}"
            require(progress.lag_max <= bound, late)
            yield progress
        driver.close()  # type: ignore[attr-defined]

    def ledger_and_snapshots(self, seconds: Seconds, edges: Collection[str]) -> None:
        """Drive, take a snapshot, go on; then resume from the snapshot, and go on there."""
        played = _PlayedSteps()
        driver, runtime = self._drive(played, seconds)
        first = _saved(driver, drive_until(driver, self._updates))
        self._balance("at a snapshot", first, played)
        at = played.copy()
        progress = drive_until(driver, int(first["meters"]["updates"]) + self._updates)
        self._check_edges(progress, edges)
        self._balance("after a snapshot, when it goes on", _saved(driver, progress), played)
        self._close(driver, runtime)
        known = at.envs
        driver, runtime = self._drive(at, seconds, first)
        resumed = next(driver)
        for name in ("updates", "env_steps", "trained_steps", "episodes"):
            before, now = int(first["meters"][name]), getattr(resumed, name)
            require(now >= before, f"a resumed run begins with {name} {now}, its snapshot has {before}")
        progress = drive_until(driver, int(first["meters"]["updates"]) + self._updates)
        self._balance("after a resume", _saved(driver, progress), at)
        anew = [env for env, _, _ in at.steps if env >= known]
        require(not (anew and self._exact), "after a resume environments begin anew, though their pool has given a snapshot")
        self._close(driver, runtime)

    def signs_of_life(self) -> None:
        """Let every call take minutes: the driver yields all the same."""
        driver, runtime = self._drive(_PlayedSteps(), even(100.0))
        for _ in range(300):
            before = runtime.clock
            next(driver)
            silent = runtime.clock - before
            require(silent <= QUIET_SECONDS, f"drive() was silent for {silent:g} s: it yields at least once a second")
        self._close(driver, runtime)

    def loss(self, role: str) -> None:
        """Kill each worker of a role once: the run goes on, and what was learned from was learned from once."""
        played, killed = _PlayedSteps(), set[str]()

        def dies(call: Any) -> bool:
            now = call.role == role and call.number == 3
            killed.update([call.worker] if now else [])
            return now

        driver, runtime = self._drive(played, even(), dies=dies)
        progress = drive_until(driver, 2 * self._updates)
        require(killed, f"no worker of the role {role!r} was called three times: is that its name?")
        self._balance(f"after the loss of {', '.join(sorted(killed))}", _saved(driver, progress), played, lost=True)
        self._close(driver, runtime)

    def _balance(self, when: str, saved: PyTree, played: _PlayedSteps, *, lost: bool = False) -> None:
        """Hold the counters and the parameters of a snapshot against what was played."""
        meters, total = saved["meters"], sum(played.steps.values())
        env_steps, trained = int(meters["env_steps"]), int(meters["trained_steps"])
        require(env_steps <= total, f"{when}: env_steps is {env_steps}, but only {total} steps were played")
        missing = total - env_steps
        require(lost or missing <= self._unwritten, f"{when}: {missing} of {total} steps that were played are not in env_steps")
        if not self._exact:
            return
        state = saved["policies"][MAIN]["state"]
        require("params/counts" in state, "the agent keeps no ledger: give check_topology a ledger_agent(), or exact=False")
        rows, counts = int(state["params/rows"]), np.asarray(state["params/counts"])
        learned: dict[Step, int] = {(e, p, s): int(counts[e, p, s]) for e, p, s in np.argwhere(counts).tolist()}
        require(rows == trained, f"{when}: {rows} steps were learned from, trained_steps is {trained}")
        for step, times in learned.items():
            require(times <= 1, f"{when}: {_named(step)} was learned from {times} times")
            require(step in played.steps, f"{when}: {_named(step)} was learned from, but never played")
        require(trained <= env_steps, f"{when}: trained_steps is {trained}, beyond env_steps, {env_steps}")
        require(sum(learned.values()) == rows, "the ledger is full: give check_topology fewer updates")

    def _check_edges(self, progress: Progress, edges: Collection[str]) -> None:
        counted, declared = {*progress.items}, {*edges}  # (meters refuse to count others)
        require(declared <= counted, f"edges are declared and never counted: {sorted(declared - counted)}")

    def _close(self, driver: Any, runtime: LockstepRuntime) -> None:
        driver.close()
        require(runtime.closed, "closing the iterator does not close the runtime: put job.runtime.close() into a finally")


def _saved(driver: Iterator[Progress], progress: Progress) -> PyTree:
    """Take a snapshot as soon as there may be one, as a checkpoint holds it."""
    for _, later in zip(range(STEPS), driver if progress.snapshot is None else ()):
        progress = later
        if progress.snapshot is not None:
            break
    require(progress.snapshot is not None, f"no Progress had a snapshot in {STEPS:,} steps of the driver")
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    policies = saved.get("policies", {}) if isinstance(saved, dict) else {}
    there = "meters" in saved and MAIN in policies and all("state" in policy for policy in policies.values())
    form = "{'policies': {'main': {'state': the flat TrainState}}, 'meters': Meters.snapshot()}"
    require(there, f"a snapshot has {form}, and this has not")
    return saved


def _named(step: Step) -> str:
    return f"step {step[2]} of episode {step[1]} of environment {step[0]}"
