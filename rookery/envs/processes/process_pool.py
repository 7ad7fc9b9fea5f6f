"""Step any Gymnasium environment in worker processes, through shared memory.

    pool ──actions, tickets──▶ shared arrays ──▶ worker 0: environments 0-15 of each group
      ◀──observations, rewards, flags, tickets──   worker 1: environments 16-31 of each group ...

Nothing is pickled and nothing is copied between processes at a step: workers write into the arrays that `recv` shows. The
pool has four parts, each in a file: `requests` (tickets; which environments owe an answer), `supervisor` (decides who is
started, killed and replaced), `worker_processes` (forks, wakes, listens, kills) and, in the workers, `step_server`.

A worker that dies is noticed by its pidfd, one that hangs by the clock, and is killed. `recv` raises EnvironmentFailed; after
`rebuild`, its environments are made anew in the background, with a new incarnation, while the others go on: until they are
there, their rows show `first` and an earlier first observation, which is no transition.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import numpy as np

from rookery import spaces
from rookery.envs.gym_envs import Broken, GymEnvs, MakeEnv
from rookery.envs.pools import stalls
from rookery.envs.pools.pool import EnvironmentFailed, OnNan, Tally, env_ids, group_of, not_finite_kind, split
from rookery.envs.processes import shared_memory
from rookery.envs.processes.mailbox import pack
from rookery.envs.processes.requests import Requests
from rookery.envs.processes.shared_memory import NOT_FINITE, REBUILD, STEP
from rookery.envs.processes.step_server import StepServer
from rookery.envs.processes.supervisor import Supervisor
from rookery.envs.processes.worker_processes import WorkerProcess, WorkerProcesses, share_out
from rookery.trees import tree_leaves
from rookery.types import Episode, PyTree, TimeStep


class ProcessPool:
    """`make_env()` gives a gymnasium.Env; it is called in the workers."""

    stack_axis: int | None = None

    def __init__(
        self,
        make_env: MakeEnv,
        num_envs: int,
        *,
        id: str,
        processes: int,
        here: bool = False,
        apart: bool = False,
        seed: int = 0,
        groups: int = 1,
        step_seconds: float = 60.0,
        start_seconds: float = 120.0,
        on_nan: OnNan = "stop",
        max_mb: float | None = None,
    ) -> None:
        """here: this process steps a share of its own, while it would wait for the others.

        apart: each group lives in processes of its own, instead of a part of it in every process. For a caller that takes
        whichever group is ready (`ready_group`): a slow core then holds up its own group only.

        step_seconds: an environment that takes longer to answer hangs; start_seconds: and to be made. max_mb: a worker
        that has grown beyond is replaced when an episode of its environments ends.
        """
        if processes < 1:
            raise ValueError(f"a pool needs at least 1 process, got {processes}")
        self.id, self.num_envs, self.groups = id, num_envs, split(num_envs, groups)
        self._step_seconds, self._on_nan, self._max_mb = step_seconds, on_nan, max_mb
        self._patience = 0.25 * step_seconds  # how often to look whether a silent worker makes progress
        shares = share_out(self.groups, processes + here, apart)
        mine = shares.pop() if here else []
        request = {"make": pack(make_env, id), "num_envs": num_envs, "name": id, "clip": on_nan == "clip"}
        self._supervisor = Supervisor(len(shares), start_seconds=start_seconds, step_seconds=step_seconds, max_mb=max_mb)
        self._processes = WorkerProcesses(shares, self._supervisor, request)
        self._workers = self._processes.workers
        self._memory, self._here = -1, None  # type: int, StepServer | None
        try:
            self._start_all(make_env, mine)
        except BaseException:
            self.close()
            raise
        self._owner = np.full(num_envs, len(shares), np.int32)  # the worker of each environment; a number that none has: here
        for worker in self._workers:
            self._owner[worker.ids] = worker.index
        self._is_here = self._owner == len(shares)
        self._in_group = [self._owners(group) for group in self.groups]
        self._ids = [env_ids(group) for group in self.groups]
        self._encode = [spaces.action_encoder(self._spaces["action"], len(ids)) for ids in self._ids]
        self._tally, self._is_reset = Tally(self.groups), False
        self._requests = Requests(self._board, num_envs, seed)
        self._shown = [self._requests.view(group, ids) for group, ids in zip(self.groups, self._ids)]

    def _start_all(self, make_env: MakeEnv, mine: list[int]) -> None:
        """Make all environments, in the workers and those of our own share, then the memory to share with the workers."""
        self._processes.start_due()
        gym_envs = None
        if mine:
            try:
                gym_envs = GymEnvs(make_env, mine, self.num_envs, name=self.id, clip=self._on_nan == "clip")
            except Broken as broken:
                raise EnvironmentFailed(f"{self.id!r}: {broken}", mine[0]) from broken
        while not all(self._supervisor.is_working(worker.index) for worker in self._workers):
            self._processes.listen(0.25)
            self._processes.take_made()
            for worker in self._workers:
                if self._supervisor.is_lost(worker.index):
                    raise EnvironmentFailed(f"{self.id!r} cannot be made: {worker.why}", int(worker.ids[0]))
        made = self._workers[0].messages["made"] if gym_envs is None else vars(gym_envs)
        self._spaces = {role: made[role] for role in ("observation", "action")}
        self.spec = spaces.spec_of(self._spaces["observation"], self._spaces["action"], self.id)
        described = shared_memory.describe(self._spaces["observation"], self._spaces["action"], self.num_envs)
        self._memory = shared_memory.allocate(shared_memory.nbytes(described))
        self._board = shared_memory.attach(self._memory, described)
        for worker in self._workers:
            self._attach(worker)
        if gym_envs is not None:
            stalls.watch(gym_envs)
            self._here = StepServer(
                gym_envs, self._board, len(self._workers), tell_failure=self._processes.reports.__setitem__,
                tell_note=self._processes.note, tell_clipped=self._processes.count_clipped,
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ stepping

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._settle()
        self._requests.order_resets(self._requests.seed if seed is None else seed)
        self._tally.start_all()
        everyone = slice(0, self.num_envs)
        self._request(everyone, self._workers)
        self._await(everyone, self._workers)
        self._requests.in_flight[:] = False
        self._is_reset = True
        self._requests.keep_firsts()
        return self._requests.copy()

    def send(self, action: PyTree, group: int = 0) -> None:
        """Write the actions of a group and wake its workers; they step while the caller goes on."""
        part = self.groups[group]
        if not self._is_reset:
            raise RuntimeError("send() before reset(): the environments have no state yet")
        if self._requests.in_flight[part].any():
            raise RuntimeError(f"send() twice to group {group}: recv() comes between")
        encoded = self._encode[group](action)
        for to, source in zip(tree_leaves(self._board.action), tree_leaves(encoded)):
            to[part] = source
        self._request(part, self._in_group[group])

    def recv(self, group: int = 0) -> TimeStep:
        """Wait for the answers of a group; EnvironmentFailed where an environment or its worker failed."""
        part = self.groups[group]
        if not self._requests.in_flight[part].all():
            raise RuntimeError(f"recv() from group {group} without a send() to it")
        self._await(part, self._in_group[group])
        if self._max_mb is not None:
            self._retire_the_large(part, self._in_group[group])
        self._requests.in_flight[part] = False
        step = self._shown[group]
        self._tally.add(group, step.reward, step.terminated | step.truncated)
        if not self._requests.plain:
            for env in np.flatnonzero(~self._requests.present[part]).tolist():
                self._tally.abort(part.start + env)  # the blank row that it shows belongs to no episode
        return step

    def ready_group(self) -> int:
        """Wait for the first group that was sent to and can be received without a wait (or fails at once)."""
        return self.ready_groups()[0]

    def ready_groups(self, timeout: float | None = None) -> list[int]:
        """Wait for such groups: all that there are, once there is one or the time is over."""
        until = None if timeout is None else time.monotonic() + timeout
        sent = [(group, part) for group, part in enumerate(self.groups) if self._requests.in_flight[part].all()]
        if not sent:
            raise RuntimeError("ready_group() without a send() to any group")
        while True:
            ready = []
            for group, part in sent:
                answered = self._requests.answered(part) | self._is_here[part]
                if answered.all() or any(self._supervisor.is_lost(worker.index) for worker in self._in_group[group]):
                    ready.append(group)
            left = self._patience if until is None else min(self._patience, until - time.monotonic())
            if ready or left <= 0.0:
                return ready
            if not self._processes.listen(left):
                self._kill_the_hung(self._workers)

    @property
    def clipped(self) -> int:
        """Count the answers whose numbers were made finite."""
        return self._processes.clipped

    def rebuild(self, env_id: int) -> None:
        """Put a fresh environment into that slot; if its worker is gone, start another with all its environments."""
        group_of(self.groups, env_id)  # an IndexError that says what there is
        owners = self._owners([env_id])
        for worker in owners:
            if self._supervisor.is_lost(worker.index):
                self._replace(worker)
                return
            if not self._supervisor.is_working(worker.index):
                return  # it is being replaced already
        self._tally.abort(env_id)
        self._requests.reincarnate(env_id, REBUILD)
        self._processes.reports.pop(env_id, None)
        if self._requests.in_flight[env_id] and self._board.failed[env_id]:
            self._board.failed[env_id] = 0
            self._request(np.array([env_id]), owners)

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    # ---------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> PyTree | None:
        """Save all environments, as SerialPool does: None unless they have `get_state()` and `set_state(state)`."""
        if not self._is_reset or self._requests.in_flight.any():
            raise RuntimeError("snapshot() before reset(), or while environments are stepping: recv() from them first")
        self._settle()
        parts = [part["saved"] for part in self._ask_all("snapshot", [{} for _ in self._workers], answer="snapshot")]
        if self._here is not None:
            parts.append(self._here.gym_envs.snapshot())
        if any(part is None for part in parts):
            return None
        order = np.argsort(np.concatenate([*(worker.ids for worker in self._workers), np.flatnonzero(self._is_here)]))
        joined = {name: np.concatenate([part[name] for part in parts])[order]
                  for name in ("ended", "reseed", "incarnation", "steps")}  # fmt: skip
        for env in np.flatnonzero(self._requests.orders != STEP):  # what is ordered but not done yet
            joined["ended"][env], joined["reseed"][env] = True, self._board.seed[env]
            joined["incarnation"][env], joined["steps"][env] = self._board.incarnation[env], 0
        states = [state for part in parts for state in part["envs"]]
        last = dict(zip(TimeStep._fields, self._requests.copy()))
        return {"envs": tuple(states[i] for i in order), **joined, "last": last,
                "seed": np.array(self._requests.seed, np.int64), "tally": self._tally.snapshot()}  # fmt: skip

    def restore(self, snapshot: PyTree) -> TimeStep:
        """Continue from a snapshot, of any pool that steps the same environments one by one."""
        if len(snapshot["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot has {len(snapshot['envs'])} environments, this pool {self.num_envs}")
        self._settle()

        def part(ids: Any) -> dict[str, Any]:
            columns = {name: snapshot[name][ids] for name in ("ended", "reseed", "incarnation", "steps")}
            return {"envs": [snapshot["envs"][i] for i in ids], **columns}

        self._ask_all("restore", [{"saved": part(worker.ids)} for worker in self._workers], answer="restored")
        if self._here is not None:
            self._here.gym_envs.restore(part(np.flatnonzero(self._is_here)))
        self._tally.restore(snapshot["tally"])
        self._requests.restore(int(snapshot["seed"]), snapshot["incarnation"], snapshot["last"])
        self._is_reset = True
        return self._requests.copy()

    def close(self) -> None:
        """Let the environments close themselves; workers in which that takes too long are killed."""
        self._processes.close()
        if self._here is not None:
            self._here.gym_envs.close()
            self._here = None
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _ask_all(self, type: str, contents: list[dict[str, Any]], *, answer: str) -> list[dict[str, Any]]:
        """Send a message to every worker and wait for their answers."""
        self._processes.send_all(type, contents, answer=answer)
        until = time.monotonic() + self._step_seconds
        while not all(answer in worker.messages for worker in self._workers):
            self._processes.listen(0.25)
            self._raise_if_lost()
            if time.monotonic() > until:
                raise EnvironmentFailed(f"{self.id!r}: no {type} within {self._step_seconds:g} s", 0)
        return [worker.messages[answer] for worker in self._workers]

    # ------------------------------------------------------------------------------------------------ waiting

    def _request(self, rows: Any, workers: list[WorkerProcess]) -> None:
        """Ask some environments for their next answer, and wake their workers."""
        if not self._requests.plain:
            self._bring_back()
        self._requests.issue(rows)
        now = time.monotonic()
        for worker in workers:
            if self._supervisor.asked(worker.index, now):
                worker.ring()

    def _await(self, rows: Any, workers: list[WorkerProcess]) -> None:
        """Wait until every environment has answered; EnvironmentFailed if one did not, or not well."""
        board, requests = self._board, self._requests
        if self._here is not None:  # a share of our own, before we wait for others
            while (~requests.answered(rows))[self._is_here[rows]].any():
                self._here.serve()
        if requests.answered(rows).all():
            self._processes.listen(0.0)  # nothing to wait for, but a bell orders what two cores see of memory
        else:
            while not requests.poll(rows):
                for worker in workers:
                    if self._supervisor.is_lost(worker.index) and not requests.answered(worker.ids).all():
                        raise self._loss_in_step(worker)
                if not self._processes.listen(self._patience):
                    self._kill_the_hung(workers)
        if board.failed[rows].any():
            env = int(np.arange(self.num_envs)[rows][board.failed[rows].nonzero()[0][0]])
            reports = self._processes.reports
            while env not in reports and any(self._supervisor.is_working(worker.index) for worker in self._owners([env])):
                self._processes.listen(0.1)  # the message was sent before the ticket was written
            kind = not_finite_kind(self._on_nan) if board.failed[env] == NOT_FINITE else "failed"
            raise EnvironmentFailed(reports.get(env, f"{self.id!r}, environment {env} failed"), env, kind=kind)

    def _settle(self) -> None:
        """Wait for what is in flight and for workers that are starting."""
        for env in np.flatnonzero(self._requests.in_flight & self._requests.present):
            with suppress(EnvironmentFailed):
                self._await(np.array([env]), self._owners([env]))
        self._requests.in_flight[:] = False
        while True:
            self._bring_back()
            self._raise_if_lost()
            if self._requests.present.all():
                return
            time.sleep(0.01)

    # -------------------------------------------------------------------------------------------- lost workers

    def _bring_back(self) -> None:
        """Start the workers whose back-off is over, and use those whose environments are made again."""
        if self._requests.present.all():
            return
        self._processes.start_due()
        self._processes.listen(0.0)
        for worker in self._processes.take_made():
            self._attach(worker)
        for worker in self._workers:
            if self._supervisor.is_working(worker.index):
                self._requests.regain(worker.ids)
            if self._supervisor.is_lost(worker.index) and not self._requests.present[worker.ids].any():
                self._requests.void(worker.ids)  # it died before it was there: the next recv says so

    def _attach(self, worker: WorkerProcess) -> None:
        self._processes.attach(worker, self._memory, promised=self._spaces, num_envs=self.num_envs)

    def _replace(self, worker: WorkerProcess) -> None:
        """Give up the environments of a lost worker; another makes new ones while the others go on."""
        self._supervisor.replace(worker.index, time.monotonic())
        for env in worker.ids[~self._requests.in_flight[worker.ids]].tolist():
            self._tally.abort(env)  # those in flight when the blank row is received
        self._requests.lose(worker.ids)

    def _kill_the_hung(self, workers: list[WorkerProcess]) -> None:
        owing = [worker for worker in workers if not self._requests.answered(worker.ids).all()]
        self._processes.kill_hung({worker.index: int(self._board.now[worker.index]) for worker in owing})

    def _retire_the_large(self, rows: slice, workers: list[WorkerProcess]) -> None:
        """End a worker that leaks, when an episode has just ended there: its answers are whole, and nothing is charged."""
        self._processes.weigh(workers)
        ended = self._board.terminated[rows] | self._board.truncated[rows]
        for worker in workers if ended.any() else ():
            mine = worker.ids[(worker.ids >= rows.start) & (worker.ids < rows.stop)]
            if ended[mine - rows.start].any() and (kill := self._supervisor.outgrown(worker.index)) is not None:
                self._processes.kill(kill)
                env = int(mine[ended[mine - rows.start]][0])
                message = f"{self.id!r}, environment {env}: {worker.why} ({worker.hosted} lived there)"
                raise EnvironmentFailed(message, env, tuple(worker.ids.tolist()), "recycled")

    def _raise_if_lost(self) -> None:
        for worker in self._workers:
            if self._supervisor.is_lost(worker.index):
                where = f"{self.id!r}, {worker.hosted}"
                raise EnvironmentFailed(f"{where}: {worker.why}", int(worker.ids[0]), tuple(worker.ids.tolist()))

    def _loss_in_step(self, worker: WorkerProcess) -> EnvironmentFailed:
        """Return the error that says which environment a dead worker was stepping, and what went with it."""
        env, doing = self._requests.under_way(worker.ids, int(self._board.now[worker.index]))
        message = f"{self.id!r}, {doing}: {worker.why} ({worker.hosted} lived there)"
        return EnvironmentFailed(message, env, tuple(worker.ids.tolist()))

    def _owners(self, ids: Any) -> list[WorkerProcess]:
        """Return the workers that host some environments; none where they are our own share."""
        return [self._workers[i] for i in dict.fromkeys(self._owner[ids].tolist()) if i < len(self._workers)]
