"""Fork, wake, listen to and kill the worker processes of a pool: the I/O around `supervisor.Supervisor`, which decides.

Whoever waits, sleeps: a worker is woken by its `go` bell and rings its `rang` bell (eventfds), its socket is readable when
it has sent a message, and its pidfd when it has ended. One epoll waits for all three, of all workers.

A worker is replaced only when it is dead: SIGKILL also ends one that is paused, and until its pidfd says so, nothing that it
can write to is given to another.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.envs.gym_envs import note_key
from rookery.envs.pools.pool import split
from rookery.envs.processes import fork_server
from rookery.envs.processes.mailbox import Mailbox
from rookery.envs.processes.memory import resident_mb
from rookery.envs.processes.supervisor import KillWorker, Supervisor

CLOSE_SECONDS = 2.0
DEATH_SECONDS = 10.0  # for SIGKILL to take effect


@dataclass(eq=False)
class WorkerProcess:
    """The pool's end of one place: the process that fills it now, if any, and what leads to it."""

    index: int
    ids: np.ndarray  # the environments that it hosts
    child: fork_server.Forked | None = None
    forked_by: fork_server.ForkServer | None = None
    mail: Mailbox | None = None
    bells: tuple[int, int] = (-1, -1)  # eventfds: go, rang
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last of each type, of this process
    why: str = ""  # it is dead

    @property
    def hosted(self) -> str:
        """Name the environments that it hosts."""
        return f"environments {as_ranges(self.ids)}"

    def post(self, type: str, **content: Any) -> None:
        """Send it a message. Where it has just died nobody reads it, and its pidfd says so."""
        if self.mail is not None:
            with suppress(ConnectionError):
                self.mail.send(type, **content)

    def ring(self) -> None:
        """Wake it."""
        if self.bells[0] >= 0:
            os.eventfd_write(self.bells[0], 1)

    def shut(self) -> None:
        """Kill it if it lives, and close everything that leads to it."""
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


def _shut_all(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.shut()


class WorkerProcesses:
    """The worker processes of a pool, each for a share of its environments."""

    def __init__(self, shares: list[list[int]], supervisor: Supervisor, request: dict[str, Any]) -> None:
        """request: what a new worker is told, beside the environments that it hosts: how to make them."""
        self._supervisor, self._request = supervisor, request
        self.workers = [WorkerProcess(index, np.array(ids)) for index, ids in enumerate(shares)]
        self.reports: dict[int, str] = {}  # of each environment, why its last answer is none
        self.clipped = 0  # answers whose numbers were made finite
        self._noted: set[str] = set()
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[WorkerProcess, str]] = {}  # file descriptor -> whose, and what it tells
        self._finalizer = weakref.finalize(self, _shut_all, self.workers)

    # ---------------------------------------------------------------------------------------- starting and killing

    def start_due(self) -> None:
        """Start the workers that the supervisor wants started."""
        for start in self._supervisor.due(time.monotonic()):
            self._start(self.workers[start.life.place])

    def take_made(self) -> list[WorkerProcess]:
        """Return the workers whose environments are made; kill those that could not make them, or not in time."""
        starting = [worker for worker in self.workers if self._supervisor.is_starting(worker.index)]
        for worker in starting:
            if "made" in worker.messages:
                self._supervisor.ready(worker.index, time.monotonic())
            elif "failed" in worker.messages:
                self.kill(KillWorker(worker.index, ""))  # the message says why
        for late in self._supervisor.late(time.monotonic()):
            self.kill(late)
        return [worker for worker in starting if self._supervisor.is_working(worker.index)]

    def attach(self, worker: WorkerProcess, memory: int, *, promised: Mapping[str, Any], num_envs: int) -> None:
        """Give a worker the shared memory and its bells. One whose environments have other spaces than promised is killed."""
        for role, space in promised.items():
            if (made := worker.messages["made"][role]) != space:
                self.kill(KillWorker(worker.index, f"made environments with another {role} space, {made} instead of {space},"))
                return
        worker.post("attach", fds=(memory, *worker.bells), num_envs=num_envs, index=worker.index)

    def kill_hung(self, stepping: Mapping[int, int]) -> None:
        """Kill the workers that hang. stepping: of each that owes an answer, which environment it is stepping."""
        for hung in self._supervisor.hung(time.monotonic(), stepping):
            self.kill(hung)

    def weigh(self, workers: list[WorkerProcess]) -> None:
        """Tell the supervisor now and then how much memory workers hold."""
        if self._supervisor.weighs(time.monotonic()):
            for worker in workers:
                if worker.child is not None:
                    self._supervisor.weighed(worker.index, resident_mb(worker.child.pid))

    def kill(self, kill: KillWorker) -> None:
        """Send SIGKILL, and wait: the memory is not given to another before this one can no longer write."""
        worker = self.workers[kill.place]
        assert worker.child is not None
        with suppress(ProcessLookupError):  # it has ended by itself meanwhile
            signal.pidfd_send_signal(worker.child.pidfd, signal.SIGKILL)
        select.select([worker.child.pidfd], [], [], DEATH_SECONDS)
        self._bury(worker, kill.why)

    def close(self) -> None:
        """Let the environments close themselves; what takes longer than CLOSE_SECONDS is killed."""
        leaving = [worker for worker in self.workers if worker.child is not None and worker.mail is not None]
        for worker in leaving:
            worker.post("close")
            worker.ring()
        until = time.monotonic() + CLOSE_SECONDS
        for worker in leaving:
            select.select([worker.child.pidfd], [], [], max(0.0, until - time.monotonic()))  # type: ignore[union-attr]
        self._finalizer()
        self._epoll.close()

    def _start(self, worker: WorkerProcess) -> None:
        mine, theirs = socket.socketpair()
        try:
            worker.forked_by = fork_server.shared()
            worker.child = worker.forked_by.spawn(theirs)
        except OSError as error:  # no fork server can be had
            mine.close()
            worker.why = str(error)
            self._supervisor.died(worker.index, time.monotonic())
            raise
        finally:
            theirs.close()
        worker.mail, worker.bells = Mailbox(mine), (os.eventfd(0), os.eventfd(0))
        worker.messages, worker.why = {}, ""
        for fd, kind in ((worker.child.pidfd, "death"), (mine.fileno(), "mail"), (worker.bells[1], "bell")):
            # A bell is heard once and not read: its count may grow. Messages and deaths are there until they are taken in.
            self._epoll.register(fd, select.EPOLLIN | (select.EPOLLET if kind == "bell" else 0))
            self._watched[fd] = (worker, kind)
        worker.post("make", ids=worker.ids.tolist(), path=sys.path, cwd=os.getcwd(), **self._request)

    def _bury(self, worker: WorkerProcess, why: str) -> None:
        """Note the death of a worker, with what it said last and how it ended."""
        assert worker.child is not None and worker.forked_by is not None
        self._read_mail(worker)
        failed = worker.messages.get("failed")
        pid = worker.child.pid
        if not why and failed is not None:
            why = f"{failed['message']}\n{failed['traceback'].rstrip()}\n"
        worker.why = f"worker process {pid} {why or worker.forked_by.status(pid)}"
        for fd in (worker.child.pidfd, worker.mail.socket.fileno() if worker.mail else -1, worker.bells[1]):
            self._unwatch(fd)
        worker.shut()
        self._supervisor.died(worker.index, time.monotonic())

    # -------------------------------------------------------------------------------------------------- messages

    def listen(self, timeout: float) -> bool:
        """Wait for bells, messages and deaths, and take in what has come. False if nothing came."""
        came = self._epoll.poll(timeout)
        for fd, _ in came:
            worker, kind = self._watched.get(fd, (None, "bell"))
            if worker is None or kind == "bell":
                continue
            if kind == "mail":
                self._read_mail(worker)
            else:
                self._bury(worker, "")
        return bool(came)

    def send_all(self, type: str, contents: list[dict[str, Any]], *, answer: str) -> None:
        """Send a message to every worker, and forget the earlier answers to such a one."""
        for worker, content in zip(self.workers, contents):
            worker.messages.pop(answer, None)
            worker.post(type, **content)
            worker.ring()

    def note(self, text: str) -> None:
        """Warn of something once, although every worker says it."""
        if note_key(text) not in self._noted:
            self._noted.add(note_key(text))
            warnings.warn(text, stacklevel=5)

    def count_clipped(self, count: int) -> None:
        self.clipped += count

    def _read_mail(self, worker: WorkerProcess) -> None:
        while worker.mail is not None and worker.mail.waiting():
            try:
                message = worker.mail.receive()
            except (EOFError, OSError):
                self._unwatch(worker.mail.socket.fileno())  # it is dying: its pidfd says when
                return
            if message["type"] == "failure":
                self.reports[message["env"]] = message["message"]
            elif message["type"] == "clipped":
                self.count_clipped(message["count"])
            elif message["type"] == "note":
                self.note(message["text"])
            else:
                worker.messages[message["type"]] = message

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def share_out(groups: tuple[slice, ...], processes: int, apart: bool) -> list[list[int]]:
    """Choose the environments of each process: a part of every group, so that all work on whichever group is asked."""
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


def as_ranges(ids: np.ndarray) -> str:
    """Write numbers as ranges: [0, 1, 2, 7] -> "0-2, 7"."""
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
