"""Any Gymnasium environment, stepped by worker processes through shared memory.

    pool ──actions, tickets──▶ shared arrays ──▶ worker 0: environments 0-15 of each group
      ◀──observations, rewards, flags, tickets──   worker 1: environments 16-31 of each group ...

Nothing is pickled and nothing is copied between processes at a step: workers write into the arrays that `recv` shows.
Whoever waits, sleeps: bells are eventfds, and the pool waits for bells, letters and deaths at once (epoll).

Tickets. Every request to an environment has a number; a worker writes it back after everything else. An answer without
its ticket does not exist, so the half-written step of a worker that was killed is never read.

Losses. A worker that dies is noticed by its pidfd, one that hangs by the clock, and is killed; only when it is dead is
its memory given to another, so one that was paused and wakes up late writes nowhere. `recv` raises EnvironmentFailed;
after `rebuild`, its environments are made anew in the background, with a new incarnation, while the others go on: until
they are there, their rows show `first` and an earlier first observation, which is no transition.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from rookery import spaces
from rookery.envs.gym_envs import Broken, GymEnvs, MakeEnv, note_key, shorten
from rookery.envs.pools import stalls
from rookery.envs.pools.pool import EnvironmentFailed, OnNan, Tally, derive_seed, env_ids, group_of, not_finite_kind, split
from rookery.envs.processes import fork_server, shared
from rookery.envs.processes.board_server import NOT_FINITE, REBUILD, RESET, STEP, BoardServer
from rookery.envs.processes.memory import resident_mb
from rookery.envs.processes.worker import LOOK_OUT_SECONDS, Mailbox
from rookery.trees import tree_leaves, tree_map
from rookery.types import Array, Episode, PyTree, TimeStep

BACK_OFF = (0.1, 1.0)  # seconds before a lost worker is started again: the first time, and at most. `Restarts` ends a loop
GOOD_LIFE = 1.0  # seconds: who worked so long does not count as one that fails again and again
CLOSE_SECONDS = 2.0
WEIGH_SECONDS = 1.0  # between looks at the memory of workers

STARTING, READY, DEAD, WAITING = "starting", "ready", "dead", "waiting to be started"


class CannotTravel(TypeError):
    """The factory of environments cannot be sent to another process."""


@dataclass(eq=False)
class _Worker:
    index: int
    ids: np.ndarray
    state: str = WAITING
    child: fork_server.Forked | None = None
    born: fork_server.ForkServer | None = None
    mail: Mailbox | None = None
    bells: tuple[int, int] = (-1, -1)  # go, rang
    since: float = 0.0  # of the state
    lived: float = 0.0  # seconds that it worked, when it is dead
    marker: tuple[int, float] = (-1, 0.0)  # which environment it was seen stepping, and since when
    why: str = ""  # it is dead
    board_server: BoardServer | None = None  # no process at all: the pool itself does this share
    losses: int = 0  # in a row, each after a short life
    mb: float = 0.0  # of memory, when it was last weighed

    def shut(self) -> None:
        """Kills it if it lives, and lets go of everything that leads to it."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.child.pidfd, signal.SIGKILL)
            os.close(self.child.pidfd)
            self.child = None
        if self.mail is not None:
            self.mail.close()
            self.mail = None
        for bell in self.bells:
            if bell >= 0:
                os.close(bell)
        self.bells = (-1, -1)


def _shut_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.shut()


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
        self.id, self.num_envs, self.groups, self._seed = id, num_envs, split(num_envs, groups), seed
        self._make = pack(make_env, id)
        self._step_seconds, self._start_seconds = step_seconds, start_seconds
        self._on_nan: OnNan = on_nan
        self._max_mb, self._weighed = max_mb, 0.0
        self.clipped = 0  # answers whose numbers were made finite
        self._patience = 0.25 * step_seconds  # how often to look whether a silent worker makes progress
        self._epoll, self._watched = select.epoll(), {}  # type: ignore[var-annotated]
        self._workers = [_Worker(i, np.array(ids)) for i, ids in enumerate(_shares(self.groups, processes + here, apart))]
        self._finalizer = weakref.finalize(self, _shut_all, self._workers)
        self._letters: dict[int, dict[str, Any]] = {}  # of each worker, the last of each type
        self._reports: dict[int, str] = {}  # why the last answer of an environment is none
        self._told: set[str] = set()
        self._board: Any = None
        self._memory = -1
        try:
            self._start_all(make_env if here else None)
        except BaseException:
            self.close()
            raise
        self._owner = np.empty(num_envs, np.int32)
        for worker in self._workers:
            self._owner[worker.ids] = worker.index
        self._is_here = np.zeros(num_envs, bool)
        if self._workers[-1].board_server is not None:
            self._is_here[self._workers[-1].ids] = True
        self._in_group = [self._owners(group) for group in self.groups]
        self._ids = [env_ids(group) for group in self.groups]
        self._encode = [spaces.action_encoder(self._action, len(ids)) for ids in self._ids]
        self._tally = Tally(self.groups)
        self._present = np.ones(num_envs, bool)  # its worker is there
        self._blank = np.zeros(num_envs, bool)  # it shows what stands for an answer while its worker is not there
        self._flying = np.zeros(num_envs, bool)  # sent to, and not yet received from
        self._orders = np.zeros(num_envs, np.uint8)  # for the next request
        self._usual = False  # every environment is there and has only to step
        self._ticket, self._is_reset = 0, False
        self._firsts: PyTree = None  # a first observation of each, in case its worker is lost
        self._shown = [self._rows(group, ids) for group, ids in zip(self.groups, self._ids)]

    # ------------------------------------------------------------------------------------------------ stepping

    def reset(self, seed: int | None = None) -> TimeStep:
        """All environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._settle()
        self._seed = self._seed if seed is None else seed
        self._board.incarnation[:] = 0
        for env in range(self.num_envs):
            self._order(env, RESET)
        self._tally.start_all()
        everyone = np.arange(self.num_envs)
        self._request(slice(0, self.num_envs), self._workers)
        self._await(slice(0, self.num_envs), self._workers)
        self._flying[:] = False
        self._is_reset = True
        whole = self._copy(everyone)
        self._firsts = tree_map(np.copy, whole.observation)
        return whole

    def send(self, action: PyTree, group: int = 0) -> None:
        self._require_idle(self.groups[group], f"group {group}")
        encoded = self._encode[group](action)
        part = self.groups[group]
        for to, source in zip(tree_leaves(self._board.action), tree_leaves(encoded)):
            to[part] = source
        self._request(part, self._in_group[group])

    def recv(self, group: int = 0) -> TimeStep:
        part = self.groups[group]
        if not self._flying[part].all():
            raise RuntimeError(f"recv() from group {group} without a send() to it")
        self._await(part, self._in_group[group])
        if self._max_mb is not None:
            self._retire_the_large(part, self._in_group[group])
        self._flying[part] = False
        step = self._shown[group]
        self._tally.add(group, step.reward, step.terminated | step.truncated)
        if not self._usual:
            self._abort_the_lost(np.arange(part.start, part.stop))
        return step

    def ready_group(self) -> int:
        """A group that was sent to and can be received without a wait (or fails at once); waits for the first."""
        return self.ready_groups()[0]

    def ready_groups(self, timeout: float | None = None) -> list[int]:
        """All such groups, once there is one or the time is over."""
        board, until = self._board, None if timeout is None else time.monotonic() + timeout
        flying = [(group, part) for group, part in enumerate(self.groups) if self._flying[part].all()]
        if not flying:
            raise RuntimeError("ready_group() without a send() to any group")
        while True:
            ready = []
            for group, part in flying:
                answered = (board.done[part] == board.want[part]) | self._is_here[part]
                if answered.all() or any(worker.state == DEAD for worker in self._in_group[group]):
                    ready.append(group)
            left = self._patience if until is None else min(self._patience, until - time.monotonic())
            if ready or left <= 0.0:
                return ready
            if not self._pump(left):
                self._kill_the_late(self._workers)

    def rebuild(self, env_id: int) -> None:
        """A fresh environment in that slot; if its worker is gone, another worker with all its environments."""
        group_of(self.groups, env_id)  # an IndexError that says what there is
        worker = self._workers[self._owner[env_id]]
        if worker.state == DEAD:
            self._replace(worker)
            return
        if worker.state != READY:
            return  # it is being replaced already
        self._tally.abort(env_id)
        self._reincarnate(env_id, REBUILD)
        self._reports.pop(env_id, None)
        if self._flying[env_id] and self._board.failed[env_id]:
            self._board.failed[env_id] = 0
            self._request(np.array([env_id]), [worker])

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    # ---------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> PyTree | None:
        """As that of SerialPool: None unless the environments have `get_state()` and `set_state(state)`."""
        if not self._is_reset or self._flying.any():
            raise RuntimeError("snapshot() before reset(), or while environments are stepping: recv() from them first")
        self._settle()
        parts = self._ask_all("snapshot", [{} for _ in self._workers])
        if any(part["saved"] is None for part in parts):
            return None
        order = np.argsort(np.concatenate([worker.ids for worker in self._workers]))
        joined = {name: np.concatenate([part["saved"][name] for part in parts])[order]
                  for name in ("ended", "reseed", "incarnation", "steps")}  # fmt: skip
        for env in np.flatnonzero(self._orders != STEP):  # what is ordered but not done yet
            joined["ended"][env], joined["reseed"][env] = True, self._board.seed[env]
            joined["incarnation"][env], joined["steps"][env] = self._board.incarnation[env], 0
        states = [state for part in parts for state in part["saved"]["envs"]]
        last = dict(zip(TimeStep._fields, self._copy(np.arange(self.num_envs))))
        return {"envs": tuple(states[i] for i in order), **joined, "last": last,
                "seed": np.array(self._seed, np.int64), "tally": self._tally.snapshot()}  # fmt: skip

    def restore(self, snapshot: PyTree) -> TimeStep:
        if len(snapshot["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot has {len(snapshot['envs'])} environments, this pool {self.num_envs}")
        self._settle()
        parts = [{"envs": [snapshot["envs"][i] for i in worker.ids],
                  **{name: snapshot[name][worker.ids] for name in ("ended", "reseed", "incarnation", "steps")}}
                 for worker in self._workers]  # fmt: skip
        self._ask_all("restore", [{"saved": part} for part in parts])
        self._seed = int(snapshot["seed"])
        self._board.incarnation[:] = snapshot["incarnation"]
        self._tally.restore(snapshot["tally"])
        self._orders[:], self._flying[:], self._is_reset, self._usual = STEP, False, True, False
        everyone = self._rows(slice(0, self.num_envs), np.arange(self.num_envs))
        tree_map(np.copyto, tuple(everyone)[1:], tuple(snapshot["last"][name] for name in TimeStep._fields[1:]))
        whole = self._copy(np.arange(self.num_envs))
        self._firsts = tree_map(np.copy, whole.observation)
        return whole

    def close(self) -> None:
        """Lets the environments close themselves; what takes longer than CLOSE_SECONDS is killed."""
        leaving = [worker for worker in self._workers if worker.child is not None and worker.mail is not None]
        for worker in leaving:
            with suppress(OSError):
                worker.mail.send("close")  # type: ignore[union-attr]
                if worker.bells[0] >= 0:
                    os.eventfd_write(worker.bells[0], 1)
        until = time.monotonic() + CLOSE_SECONDS
        for worker in leaving:
            select.select([worker.child.pidfd], [], [], max(0.0, until - time.monotonic()))  # type: ignore[union-attr]
        if self._workers[-1].board_server is not None:
            self._workers[-1].board_server.gym_envs.close()
            self._workers[-1].board_server = None
        self._finalizer()
        self._epoll.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    # ----------------------------------------------------------------------------------------------- requests

    def _request(self, rows: Any, workers: list[_Worker]) -> None:
        """A new ticket for some environments: their next answer, or what stands for it where the worker is gone."""
        if not self._usual:
            self._start_the_due()
        self._ticket += 1
        self._flying[rows] = True
        if self._usual:
            self._board.want[rows] = self._ticket
        else:
            self._request_unusual(np.arange(self.num_envs)[rows])
        now = time.monotonic()
        for worker in workers:
            if worker.state == READY and worker.board_server is None:
                worker.marker = (-1, now)
                os.eventfd_write(worker.bells[0], 1)

    def _request_unusual(self, ids: np.ndarray) -> None:
        """Some are to be reset or rebuilt, or are not there, or were so the last time."""
        board = self._board
        board.order[ids] = self._orders[ids]
        there, absent = ids[self._present[ids]], ids[~self._present[ids]]
        self._orders[there] = STEP
        board.want[there] = self._ticket
        self._show_blank(absent)
        self._usual = not (self._orders.any() or board.order.any()) and bool(self._present.all())

    def _await(self, rows: Any, workers: list[_Worker]) -> None:
        """Until every environment has answered; EnvironmentFailed if one did not, or not well."""
        board = self._board
        if (board_server := self._workers[-1].board_server) is not None:  # a share of our own, before we wait for others
            while (board.done[rows] != board.want[rows])[self._is_here[rows]].any():
                board_server.serve()
        if (board.done[rows] == board.want[rows]).all():
            self._pump(0.0)  # nothing to wait for, but a bell orders what two cores see of memory
        else:
            while not self._look_out(rows):
                for worker in workers:
                    if worker.state == DEAD and (board.done[worker.ids] != board.want[worker.ids]).any():
                        raise self._loss(worker)
                if not self._pump(self._patience):
                    self._kill_the_late(workers)
        if board.failed[rows].any():
            env = int(np.arange(self.num_envs)[rows][board.failed[rows].nonzero()[0][0]])
            while env not in self._reports and self._workers[self._owner[env]].state == READY:
                self._pump(0.1)  # the letter was posted before the ticket was written
            kind = not_finite_kind(self._on_nan) if board.failed[env] == NOT_FINITE else "failed"
            raise EnvironmentFailed(self._reports.get(env, f"{self.id!r}, environment {env} failed"), env, kind=kind)

    def _look_out(self, rows: Any) -> bool:
        """Are all answers there? If only some are, the others are near: not to fall asleep is cheaper than to be woken."""
        board, until = self._board, 0.0
        while True:
            missing = board.done[rows] != board.want[rows]
            if not missing.any():
                return True
            now = time.perf_counter()
            if until == 0.0:
                until = now if missing.all() else now + LOOK_OUT_SECONDS
            if now >= until:
                return False
            os.sched_yield()

    def _kill_the_late(self, workers: list[_Worker]) -> None:
        now = time.monotonic()
        for worker in workers:
            if worker.state != READY or worker.board_server is not None:
                continue
            if (self._board.done[worker.ids] == self._board.want[worker.ids]).all():
                continue
            stepping = int(self._board.now[worker.index])
            if stepping != worker.marker[0]:
                worker.marker = (stepping, now)
            elif now - worker.marker[1] >= self._step_seconds:
                self._kill(worker, f"has not answered for {self._step_seconds:g} s and was killed")

    def _retire_the_large(self, rows: slice, workers: list[_Worker]) -> None:
        """Ends a worker that leaks, when an episode has just ended there: its answers are whole, and nothing is charged."""
        now = time.monotonic()
        if now - self._weighed >= WEIGH_SECONDS:
            self._weighed = now
            for worker in workers:
                if worker.state == READY and worker.child is not None:
                    worker.mb = resident_mb(worker.child.pid)
        ended = self._board.terminated[rows] | self._board.truncated[rows]
        for worker in workers if ended.any() else ():
            mine = worker.ids[(worker.ids >= rows.start) & (worker.ids < rows.stop)]
            if worker.state == READY and worker.mb > (self._max_mb or 0) and ended[mine - rows.start].any():
                self._kill(worker, f"has grown to {worker.mb:.0f} MB (--env-max-mb {self._max_mb:g}) and was replaced")
                worker.mb, env = 0.0, int(mine[ended[mine - rows.start]][0])
                message = f"{self.id!r}, environment {env}: {worker.why} (environments {_ranges(worker.ids)} lived there)"
                raise EnvironmentFailed(message, env, tuple(worker.ids.tolist()), "recycled")

    def _kill(self, worker: _Worker, why: str) -> None:
        """SIGKILL, and wait: the memory is not given to another before this one can no longer write."""
        assert worker.child is not None
        signal.pidfd_send_signal(worker.child.pidfd, signal.SIGKILL)
        select.select([worker.child.pidfd], [], [], 10.0)
        self._bury(worker, why)

    def _loss(self, worker: _Worker) -> EnvironmentFailed:
        board, ids = self._board, worker.ids
        undone = ids[board.done[ids] != board.want[ids]]
        now = int(board.now[worker.index])
        env = now if now in undone else int(undone[0])
        action = shorten(str(tree_map(lambda leaf: leaf[env], board.action)))
        lives = f"environments {_ranges(ids)} lived there"
        step = board.steps[env] + (env != now)  # counted when it begins
        place = f"{self.id!r}, environment {env} (incarnation {board.incarnation[env]}), step {step}"
        return EnvironmentFailed(f"{place}, action {action}: {worker.why} ({lives})", env, tuple(ids.tolist()))

    # ------------------------------------------------------------------------------------------------ workers

    def _start_all(self, make_here: MakeEnv | None) -> None:
        remote = self._workers if make_here is None else self._workers[:-1]
        for worker in remote:
            self._start(worker)
        gym_envs = None
        if make_here is not None:
            try:
                ids, clip = self._workers[-1].ids.tolist(), self._on_nan == "clip"
                gym_envs = GymEnvs(make_here, ids, self.num_envs, name=self.id, clip=clip)
            except Broken as broken:
                raise EnvironmentFailed(f"{self.id!r}: {broken}", int(self._workers[-1].ids[0])) from broken
        while any("made" not in self._letter(worker) for worker in remote):
            self._pump(0.25)
            self._check_starting()
            for worker in self._workers:
                if worker.state == DEAD:
                    raise EnvironmentFailed(f"{self.id!r} cannot be made: {worker.why}", int(worker.ids[0]))
        if gym_envs is not None:
            self._observation, self._action = gym_envs.observation, gym_envs.action
        else:
            made = self._letter(self._workers[0])["made"]
            self._observation, self._action = made["observation"], made["action"]
        self.spec = spaces.spec_of(self._observation, self._action, self.id)
        described = shared.describe(self._observation, self._action, self.num_envs)
        self._memory = shared.allocate(shared.nbytes(described))
        self._board = shared.attach(self._memory, described)
        for worker in remote:
            self._attach(worker)
        if gym_envs is not None:
            stalls.watch(gym_envs)
            mine = self._workers[-1]
            mine.board_server = BoardServer(
                gym_envs, self._board, mine.index, tell_failure=self._reports.__setitem__, tell_note=self._tell,
                tell_clipped=self._count_clipped,
            )  # fmt: skip
            mine.state = READY

    def _start(self, worker: _Worker) -> None:
        mine, theirs = socket.socketpair()
        try:
            worker.born = fork_server.shared()
            worker.child = worker.born.spawn(theirs)
        finally:
            theirs.close()
        worker.mail, worker.bells = Mailbox(mine), (os.eventfd(0), os.eventfd(0))
        worker.state, worker.since, worker.why = STARTING, time.monotonic(), ""
        self._letters[worker.index] = {}
        for fd, kind in ((worker.child.pidfd, "death"), (mine.fileno(), "mail"), (worker.bells[1], "bell")):
            # A bell is heard once and not read: its count may grow. Letters and deaths are there until they are taken in.
            self._epoll.register(fd, select.EPOLLIN | (select.EPOLLET if kind == "bell" else 0))
            self._watched[fd] = (worker, kind)
        worker.mail.send("make", make=self._make, ids=worker.ids.tolist(), num_envs=self.num_envs, name=self.id,
                         path=sys.path, cwd=os.getcwd(), clip=self._on_nan == "clip")  # fmt: skip

    def _attach(self, worker: _Worker) -> None:
        """The worker has made its environments: from now on it listens to its bell."""
        made = self._letter(worker)["made"]
        for role, promised in (("observation", self._observation), ("action", self._action)):
            if made[role] != promised:
                self._kill(worker, f"made environments with another {role} space, {made[role]} instead of {promised},")
                return
        assert worker.mail is not None
        worker.mail.send("attach", fds=(self._memory, *worker.bells), num_envs=self.num_envs, index=worker.index)
        worker.state, worker.since = READY, time.monotonic()

    def _replace(self, worker: _Worker) -> None:
        """Its environments are lost; another worker makes new ones while the others go on."""
        now = time.monotonic()
        worker.losses = 1 if worker.lived >= GOOD_LIFE else worker.losses + 1
        worker.state = WAITING
        worker.since = now + min(BACK_OFF[1], BACK_OFF[0] * 2 ** (worker.losses - 1))
        ids = worker.ids
        self._present[ids], self._usual = False, False
        lost = ids[self._board.done[ids] != self._board.want[ids]]
        self._board.failed[ids] = 0
        self._show_blank(lost)  # the others have an answer that is whole and may still be received
        self._board.done[lost] = self._board.want[lost]
        for env in ids.tolist():
            if not self._flying[env]:
                self._tally.abort(env)  # else when what it shows now is received
            self._reincarnate(env, RESET)

    def _start_the_due(self) -> None:
        if self._present.all():
            return
        now = time.monotonic()
        for worker in self._workers:
            if worker.state == WAITING and now >= worker.since:
                self._start(worker)
        self._pump(0.0)
        self._check_starting()
        for worker in self._workers:
            if worker.state == STARTING and "made" in self._letter(worker):
                self._attach(worker)
            if worker.state == READY:
                back = worker.ids[~self._flying[worker.ids]]  # what flies is received as it is: no answer
                self._present[back], self._blank[back] = True, False
            if worker.state == DEAD and not self._present[worker.ids].any():
                self._board.done[worker.ids] = -1  # it died before it was there: the next recv says so

    def _check_starting(self) -> None:
        for worker in self._workers:
            failed = self._letter(worker).get("failed")
            if worker.state == STARTING and failed is not None:
                self._kill(worker, "")  # the letter says why
            elif worker.state == STARTING and time.monotonic() - worker.since > self._start_seconds:
                self._kill(worker, f"its environments were not made within {self._start_seconds:g} s; it was killed")

    def _settle(self) -> None:
        """Waits for what is in flight and for workers that are starting."""
        for env in np.flatnonzero(self._flying & self._present):
            with suppress(EnvironmentFailed):
                self._await(np.array([env]), self._owners([env]))
        self._flying[:] = False
        while True:
            self._start_the_due()
            for worker in self._workers:
                if worker.state == DEAD:
                    raise self._loss_of_all(worker)
            if self._present.all():
                return
            time.sleep(0.01)

    def _loss_of_all(self, worker: _Worker) -> EnvironmentFailed:
        where = f"{self.id!r}, environments {_ranges(worker.ids)}"
        return EnvironmentFailed(f"{where}: {worker.why}", int(worker.ids[0]), tuple(worker.ids.tolist()))

    def _pump(self, timeout: float) -> bool:
        """Takes in what has come: bells, letters, deaths. False if nothing came."""
        came = self._epoll.poll(timeout)
        for fd, _ in came:
            worker, kind = self._watched.get(fd, (None, "bell"))
            if kind == "mail":
                self._read_mail(worker)
            elif kind == "death":
                self._bury(worker, "")
        return bool(came)

    def _read_mail(self, worker: _Worker) -> None:
        while worker.mail is not None and worker.mail.waiting():
            try:
                letter = worker.mail.receive()
            except (EOFError, OSError):
                self._forget(worker.mail.socket.fileno())  # it is dying: its pidfd says when
                return
            if letter["type"] == "failure":
                self._reports[letter["env"]] = letter["message"]
            elif letter["type"] == "clipped":
                self._count_clipped(letter["count"])
            elif letter["type"] == "note":
                self._tell(letter["text"])
            else:
                self._letter(worker)[letter["type"]] = letter

    def _count_clipped(self, count: int) -> None:
        self.clipped += count

    def _bury(self, worker: _Worker, why: str) -> None:
        """The worker is dead: keeps what it said last, and how it ended."""
        assert worker.child is not None and worker.born is not None
        self._read_mail(worker)
        failed = self._letter(worker).get("failed")
        pid = worker.child.pid
        if not why and failed is not None:
            why = f"{failed['message']}\n{failed['traceback'].rstrip()}\n"
        worker.why = f"worker process {pid} {why or worker.born.status(pid)}"
        for fd in (worker.child.pidfd, worker.mail.socket.fileno() if worker.mail else -1, worker.bells[1]):
            self._forget(fd)
        worker.shut()
        worker.lived = time.monotonic() - worker.since if worker.state == READY else 0.0
        worker.state, worker.since = DEAD, time.monotonic()

    def _forget(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _ask_all(self, type: str, contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A letter to every worker, and their answers."""
        answer = {"snapshot": "snapshot", "restore": "restored"}[type]
        for worker, content in zip(self._workers, contents):
            if worker.board_server is not None:
                if type == "restore":
                    worker.board_server.gym_envs.restore(**content)
                saved = worker.board_server.gym_envs.snapshot() if type == "snapshot" else None
                self._letter(worker)[answer] = {"saved": saved}
                continue
            self._letter(worker).pop(answer, None)
            worker.mail.send(type, **content)  # type: ignore[union-attr]
            os.eventfd_write(worker.bells[0], 1)
        until = time.monotonic() + self._step_seconds
        while not all(answer in self._letter(worker) for worker in self._workers):
            self._pump(0.25)
            for worker in self._workers:
                if worker.state == DEAD:
                    raise self._loss_of_all(worker)
            if time.monotonic() > until:
                raise EnvironmentFailed(f"{self.id!r}: no {type} within {self._step_seconds:g} s", 0)
        return [self._letter(worker)[answer] for worker in self._workers]

    # ---------------------------------------------------------------------------------------------- small parts

    def _letter(self, worker: _Worker) -> dict[str, Any]:
        return self._letters.setdefault(worker.index, {})

    def _tell(self, text: str) -> None:
        """Once, although every worker says it."""
        if note_key(text) not in self._told:
            self._told.add(note_key(text))
            warnings.warn(text, stacklevel=5)

    def _reincarnate(self, env: int, order: int) -> None:
        self._board.incarnation[env] += 1
        self._order(env, order)

    def _order(self, env: int, order: int) -> None:
        """For the next request to it, with the seed that belongs to its incarnation."""
        self._board.seed[env] = derive_seed(self._seed, env, int(self._board.incarnation[env]))
        self._orders[env], self._usual = order, False

    def _show_blank(self, ids: np.ndarray) -> None:
        """`first`, no reward and an earlier first observation: a row that no transition leads to."""
        fresh = ids[~self._blank[ids]]
        if not len(fresh):
            return
        self._blank[fresh] = True
        board = self._board
        board.reward[fresh], board.terminated[fresh], board.truncated[fresh], board.first[fresh] = 0, False, False, True
        for to, source in zip(tree_leaves(board.observation), tree_leaves(self._firsts)):
            to[fresh] = source[fresh]

    def _abort_the_lost(self, ids: np.ndarray) -> None:
        """Their episodes are cut short, and what stands for an answer meanwhile belongs to none."""
        for env in ids[~self._present[ids]].tolist():
            self._tally.abort(env)

    def _rows(self, part: slice, ids: Array) -> TimeStep:
        board = self._board
        view = tree_map(lambda leaf: leaf[part], board.observation)
        return TimeStep(ids, view, board.reward[part], board.terminated[part], board.truncated[part], board.first[part])

    def _copy(self, ids: np.ndarray) -> TimeStep:
        board = self._board
        columns = (board.observation, board.reward, board.terminated, board.truncated, board.first)
        return TimeStep(ids.astype(np.int32), *tree_map(lambda leaf: leaf[ids], columns))

    def _owners(self, ids: Any) -> list[_Worker]:
        return [self._workers[i] for i in dict.fromkeys(self._owner[ids].tolist())]

    def _require_idle(self, rows: Any, what: str) -> None:
        if not self._is_reset:
            raise RuntimeError("send() before reset(): the environments have no state yet")
        if self._flying[rows].any():
            raise RuntimeError(f"send() twice to {what}: recv() comes between")


def pack(make_env: MakeEnv, id: str) -> bytes:
    """The factory as bytes; CannotTravel, with the reason, if it holds something that belongs to this process."""
    try:
        return cloudpickle.dumps(make_env)
    except Exception as error:
        raise CannotTravel(
            f"{id!r} cannot be made in another process, because its factory cannot be sent there ({error}): "
            "make it a function without open files, locks or devices in its closure, or step it in process (--env-processes 0)"
        ) from error


def _shares(groups: tuple[slice, ...], processes: int, apart: bool) -> list[list[int]]:
    """Which environments each worker hosts: a part of every group, so that all work on whichever group is asked."""
    processes = min(processes, groups[-1].stop)
    if apart:
        return [list(range(part.start, part.stop)) for part in split(groups[-1].stop, processes)]
    shares: list[list[int]] = [[] for _ in range(processes)]
    turn = 0
    for group in groups:
        size = group.stop - group.start
        for part in split(size, min(processes, size)):
            shares[turn % processes] += range(group.start + part.start, group.start + part.stop)
            turn += 1
    return [sorted(share) for share in shares if share]


def _ranges(ids: np.ndarray) -> str:
    """[0, 1, 2, 7] -> "0-2, 7"."""
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
