"""A pool whose environments live in a fleet of hosts.

    HostedPool ──actions of a group──▶ host 0: groups 0, 1
      ◀──what it answered──            host 1: groups 2, 3 ...

Every group is sent to and received from on its own; `ready_groups` tells who has answered, so a slow host holds up nobody.
Each request is one call, answered at most once: what an earlier life of a host still says is dropped by the fleet.

Losses. The groups of a host that is gone answer EnvironmentFailed, naming all its slots. After `rebuild` its next life is
reset with a seed of its own, and that is what they answer then: first observations. Until it is there they are not ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Concatenate, Literal, Protocol

from rookery.envs.pools.pool import EnvironmentFailed, derive_seed, env_ids, join, split
from rookery.envs.pools.restarts import GOOD_STEPS
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle, P, Runtime, WorkerLost
from rookery.runtime.roster import Life, Roster, Terms
from rookery.trees import tree_map
from rookery.types import Episode, PyTree, Spec, TimeStep

SERVE_SECONDS = 0.5  # between looks at who is overdue


class HostsLost(RuntimeError):
    """A host was lost too often; the message has its last words."""

    exit_code = 7


class EnvironmentHost(Protocol):
    """Step environments elsewhere: an EnvHost (workers/acting/env_host.py), which the runtime may not import."""

    def reset(self, seed: int) -> TimeStep: ...
    def step(self, group: int, action: PyTree) -> Any: ...  # a host.HostStep
    def rebuild(self, env_id: int, group: int) -> Any: ...  # a host.HostStep


class HostedPool:
    def __init__(
        self, runtime: Runtime, start: Callable[[Life], Handle[EnvironmentHost]], spec: Spec, *, hosts: int,
        envs_per_host: int, groups: int,
    ) -> None:  # fmt: skip
        """start: spawns the host of a life; groups: of each host."""
        self.spec, self.num_envs, self.groups = spec, hosts * envs_per_host, split(hosts * envs_per_host, hosts * groups)
        self._runtime, self._envs, self._per_host = runtime, envs_per_host, groups
        patience = runtime.patience
        terms = Terms(
            least=hosts, most=hosts, in_flight=groups, call_deadline=patience, start_deadline=patience, good_calls=GOOD_STEPS
        )  # fmt: skip
        self._fleet = Fleet(runtime, "host", Roster(terms), start)
        self._states: list[Literal["new", "resetting", "here", "gone"]] = ["new"] * hosts
        self._seed, self._incarnation = 0, [0] * hosts
        self._flying: set[int] = set()
        self._answers: dict[int, TimeStep | EnvironmentFailed] = {}  # not received yet
        self._fresh: dict[int, TimeStep] = {}  # first observations for groups that will be sent to
        self._raised = 0  # the group whose answer was a failure, last
        self._episodes: list[Episode] = []
        self._fleet.tend()

    def reset(self, seed: int) -> TimeStep:
        self._seed, self._answers, self._fresh = seed, {}, {}
        self._states = ["new"] * len(self._states)
        self._flying = set(range(len(self.groups)))
        return join([self.recv(group) for group in range(len(self.groups))])

    def send(self, action: PyTree, group: int = 0) -> None:
        if group in self._flying:
            raise RuntimeError(f"send() twice to group {group}: recv({group}) comes between")
        host = group // self._per_host
        self._flying.add(group)
        if group in self._fresh:  # the action is for an environment that is no more
            self._answers[group] = self._fresh.pop(group)
        elif self._states[host] == "here":
            self._call(host, group, EnvironmentHost.step, group % self._per_host, action)
        elif self._states[host] == "gone":
            self._answers[group] = self._loss(host)

    def recv(self, group: int = 0) -> TimeStep:
        if group not in self._flying:
            raise RuntimeError(f"recv() from group {group} without a send() to it")
        while group not in self._answers:
            self._serve(SERVE_SECONDS)
        answer = self._answers.pop(group)
        if isinstance(answer, EnvironmentFailed):
            self._raised = group  # it still owes an answer
            raise answer
        self._flying.discard(group)
        return answer

    def ready_groups(self, timeout: float | None = None) -> list[int]:
        """Return the groups that can be received without a wait (or fail at once), once there is one or the time is over."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            self._serve(0.0 if self._answers else max(0.0, min(SERVE_SECONDS, left)))
            if self._answers or left <= 0.0:
                return sorted(self._answers)

    def rebuild(self, env_id: int) -> None:
        """Replace the environment in that slot; if its host is gone, the host with all its environments."""
        host, local = divmod(env_id, self._envs)
        if self._states[host] == "here":
            self._call(host, self._raised, EnvironmentHost.rebuild, local, self._raised % self._per_host)
        elif self._states[host] == "gone":
            self._states[host] = "new"
            self._incarnation[host] += 1
            for group in self._groups_of(host):
                self._fresh.pop(group, None)
                if isinstance(self._answers.get(group), EnvironmentFailed):
                    del self._answers[group]

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def workers(self) -> dict[str, int]:
        roster = self._fleet.roster
        return {"hosts": roster.count("working"), "hosts_lost": roster.lost_workers}

    def snapshot(self) -> None:
        """Save nothing: a resumed run starts new episodes on its hosts."""
        return None

    def restore(self, snapshot: PyTree) -> TimeStep:
        raise NotImplementedError("environments on hosts are not saved")

    def close(self) -> None:
        """Do nothing: hosts belong to the runtime, which closes them."""

    # ---------------------------------------------------------------------------------------------------- hosts

    def _call(
        self, host: int, group: int, method: Callable[Concatenate[EnvironmentHost, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        if (life := self._fleet.next_of([host])) is None:  # it was lost while nothing was asked of it
            self._lose(host, None)
        else:
            self._fleet.call(life, (host, group), method, *args, **kwargs)

    def _serve(self, seconds: float) -> None:
        """Replace lost hosts, reset new ones, and process the replies that come within that time."""
        try:
            self._fleet.tend()
            for host, state in enumerate(self._states):
                if state == "new" and (life := self._fleet.next_of([host])) is not None:
                    self._states[host] = "resetting"
                    seed = derive_seed(self._seed, host, self._incarnation[host])
                    self._fleet.call(life, (host, None), EnvironmentHost.reset, seed)
            ready, _ = self._runtime.wait(self._fleet.waiting(), self._fleet.within(seconds))
            for (host, group), answer in self._fleet.take(ready):
                if answer is None:
                    self._lose(host, group)
                elif group is None:
                    self._begin(host, answer)
                else:
                    self._take(host, group, answer)
        except WorkerLost as error:  # one host too many: whoever called did not get lost
            raise HostsLost(str(error)) from error

    def _take(self, host: int, group: int, answer: Any) -> None:
        offset = host * self._envs
        self._episodes += [episode._replace(env_id=episode.env_id + offset) for episode in answer.episodes]
        if answer.failure is not None:
            error = answer.failure
            lost = tuple(env + offset for env in error.lost)
            self._answers[group] = EnvironmentFailed(f"host {host}: {error}", error.env_id + offset, lost, error.kind)
        else:
            self._answers[group] = answer.step._replace(env_ids=env_ids(self.groups[group]))

    def _begin(self, host: int, whole: TimeStep) -> None:
        """Take the first observations of a host that has reset its environments."""
        self._states[host] = "here"
        for group in self._groups_of(host):
            part, offset = self.groups[group], host * self._envs
            local = slice(part.start - offset, part.stop - offset)
            step = tree_map(lambda leaf, local=local: leaf[local], whole)._replace(env_ids=env_ids(part))
            to = self._answers if group in self._flying and group not in self._answers else self._fresh
            to[group] = step

    def _lose(self, host: int, group: int | None) -> None:
        """Fail the groups of a lost host. group: the one whose answer is waited for; None: nobody waits."""
        if self._states[host] in ("new", "resetting"):
            self._states[host] = "new"  # the next life tries again
            return
        self._states[host] = "gone"
        for owed in self._groups_of(host):
            if owed in self._flying and owed not in self._answers:
                self._answers[owed] = self._loss(host)

    def _loss(self, host: int) -> EnvironmentFailed:
        slots = tuple(range(host * self._envs, (host + 1) * self._envs))
        said = f"host {host} of {self.spec.id!r} is gone (environments {slots[0]}-{slots[-1]} lived there)"
        return EnvironmentFailed(said, slots[0], slots)

    def _groups_of(self, host: int) -> range:
        return range(host * self._per_host, (host + 1) * self._per_host)
