"""Rebuild environments that fail, within a budget: a run survives a crash now and then, but not a crash loop.

The budget is that of `rookery.supervision`. A collector and the evaluator hold a `Restarts` around their pool.
"""

from __future__ import annotations

from typing import NamedTuple

from rookery.envs.pools.pool import EnvironmentFailed, Kind
from rookery.supervision import Budget
from rookery.types import EnvPool, TimeStep

GOOD_STEPS = 50  # of an environment: what they give back is one restart; a whole episode gives back all


class Incident(NamedTuple):
    """A failure that was survived."""

    env_ids: tuple[int, ...]  # those that were rebuilt
    message: str
    kind: Kind = "failed"
    times: int = 1  # how often, of clipped answers


class Restarts:
    """Reset and receive from a pool; rebuild what fails, `allowed` times without progress in between.

    Every environment that is rebuilt is charged, so all of a process that died; progress is counted of each by itself.
    """

    def __init__(self, pool: EnvPool, *, allowed: int) -> None:
        self._pool, self._allowed = pool, allowed
        self._debts: dict[int, Budget] = {}  # of the environments that failed and have not made up for it
        self._incidents: list[Incident] = []
        self._clipped = 0  # answers, as the pool has counted them

    def reset(self, seed: int) -> TimeStep:
        """Reset all environments, rebuilding those that fail to."""
        while True:
            try:
                return self._pool.reset(seed)
            except EnvironmentFailed as error:
                self._rebuild(error)

    def recv(self, group: int = 0) -> TimeStep:
        """Wait for the answers of a group, rebuilding what fails meanwhile."""
        while (answer := self.try_recv(group)) is None:
            pass
        return answer

    def try_recv(self, group: int = 0) -> TimeStep | None:
        """Wait for the answers of a group; None: one failed and is being rebuilt, and the caller may receive again later."""
        try:
            step = self._pool.recv(group)
        except EnvironmentFailed as error:
            self._rebuild(error)
            return None
        if self._debts:
            self._credit(step)
        return step

    def take(self) -> list[Incident]:
        """Return the incidents since the last call."""
        incidents, self._incidents = self._incidents, []
        if (clipped := getattr(self._pool, "clipped", 0)) != self._clipped:
            incidents.append(Incident((), "", "clipped", clipped - self._clipped))
            self._clipped = clipped
        return incidents

    def _credit(self, step: TimeStep) -> None:
        """Credit the steps that were answered to the budgets of environments that failed before."""
        begin, ended = int(step.env_ids[0]), step.terminated | step.truncated
        for env in [env for env in self._debts if begin <= env < begin + len(ended)]:
            debt, row = self._debts[env], env - begin
            if not step.first[row]:
                debt.earn(debt.restarts if ended[row] else 1 / GOOD_STEPS)
            if debt.spent == 0.0:
                del self._debts[env]

    def _rebuild(self, error: EnvironmentFailed) -> None:
        while True:
            self._spend(error)
            self._incidents.append(Incident(error.lost, str(error), error.kind))
            try:
                return self._pool.rebuild(error.env_id)
            except EnvironmentFailed as again:
                error = again

    def _spend(self, error: EnvironmentFailed) -> None:
        if error.kind == "recycled":
            return
        if error.kind == "not finite":
            policies = "--on-nan drop-episode cuts such episodes short, --on-nan clip makes their numbers finite"
            raise EnvironmentFailed(f"{error}\n{policies}", error.env_id, error.lost, error.kind) from error
        left = [self._debts.setdefault(env, Budget(self._allowed)).spend() for env in error.lost]
        if not all(left):
            budget = f"it was rebuilt {self._allowed} times (--env-restarts) without a whole episode, or {GOOD_STEPS} steps "
            budget += "for each time, in between"
            given_up = "it was not to be rebuilt (--env-restarts 0)" if self._allowed == 0 else budget
            raise EnvironmentFailed(f"{error}\n{given_up}", error.env_id, error.lost) from error
