"""A worker process: hosts some environments of a ProcessPool and steps them when told.

What travels at each step is in shared memory (`shared.Board`): the pool writes actions and, per environment, the ticket
of its request (`want`), then rings the `go` bell; the worker steps, writes its answers, then the tickets (`done`), and
rings the `done` bell. A worker that dies in between has not written its tickets, so nobody reads what it left half
done. Everything rare (making environments, failures, notes, snapshots) goes through the mail, a socket.
"""

from __future__ import annotations

import array
import gc
import os
import pickle
import select
import socket
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from rookery.envs import shared
from rookery.envs.host import Answer, Broken, Host, each
from rookery.envs.probe import probe
from rookery.trees import tree_map

STEP, RESET, REBUILD = 0, 1, 2  # Board.order
LOOK_OUT_SECONDS = 300e-6


class Mail:
    """Messages between a pool and one worker: dictionaries with a "type", and file descriptors with some of them.

    Pickled, which is safe between a process and the child that it started, and needed for factories and spaces.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._connection = Connection(os.dup(end.fileno()))
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)

    def send(self, type: str, *, fds: tuple[int, ...] = (), **content: Any) -> None:
        self._connection.send_bytes(cloudpickle.dumps({"type": type, "fds": len(fds), **content}))
        if fds:
            self.socket.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])

    def receive(self) -> dict[str, Any]:
        message = pickle.loads(self._connection.recv_bytes())
        if message["fds"]:
            message["fds"] = socket.recv_fds(self.socket, 1, message["fds"])[1]
        return message

    def waiting(self, timeout: float = 0.0) -> bool:
        return bool(self._poll.poll(1000 * timeout))

    def close(self) -> None:
        self._connection.close()
        self.socket.close()


def serve(end: socket.socket) -> None:
    """The life of a worker, from its first letter to the end of the pool."""
    mail = Mail(end)
    request = mail.receive()
    try:
        sys.path[:] = request["path"]
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        make_env = pickle.loads(request["make"])
        if request["type"] == "probe":
            mail.send("probed", result=probe(make_env, request["name"], seconds=request["seconds"]))
            while mail.waiting(60):  # how long a bell takes to wake somebody, by echo
                if mail.receive()["type"] == "bye":
                    return
                mail.send("echo")
            return
        host = Host(make_env, request["ids"], request["num_envs"], name=request["name"])
    except BaseException as error:
        mail.send("failed", message=_said(error), traceback=traceback.format_exc())
        return
    gc.collect()
    gc.freeze()  # what exists now stays: the collector need not look at it again
    mail.send("made", observation=host.observation, action=host.action, jax="jax" in sys.modules)
    with suppress(EOFError, ConnectionError):  # the pool is gone
        attached = mail.receive()
        if attached["type"] == "attach":
            _Loop(mail, host, attached).run()


def _said(error: BaseException) -> str:
    text = str(error)
    return text if isinstance(error, Broken) else f"{type(error).__name__}: {text}"


class _Loop:
    """Waits for the bell, steps what is wanted, answers."""

    def __init__(self, mail: Mail, host: Host, attached: dict[str, Any]) -> None:
        self.mail, self.host = mail, host
        memory, self.go, self.rang = attached["fds"]
        self.board = shared.attach(memory, shared.describe(host.observation, host.action, attached["num_envs"]))
        os.close(memory)
        board, self.ids = self.board, np.array(host.ids)
        self.answer = Answer(
            host.observation, board.observation, board.reward, board.terminated, board.truncated, board.first, start=0
        )
        self.gap = 1.0  # seconds of the last wait
        self.want, self.done = _part(board.want, self.ids), _part(board.done, self.ids)
        self.parts: dict[tuple[int, int, int], tuple[list[int], Any]] = {}
        self.failed = False  # was there a failure in the last answers?
        index = attached["index"]
        host.now = memoryview(board.now)[index : index + 1]
        host.steps = memoryview(board.steps)

    def run(self) -> None:
        while True:
            want = self.want()
            pending = (want != self.done()).nonzero()[0]
            if len(pending):
                tickets = want[pending]
                ticket = int(tickets.min())  # who asked first is served first
                if ticket != tickets.max():
                    pending = pending[tickets == ticket]
                self.answer_to(*self.part(pending), ticket)
                os.eventfd_write(self.rang, 1)
            elif self.wait():
                while self.mail.waiting():
                    if not self.read_mail():
                        return

    def wait(self) -> bool:
        """Until there is something to do; True if it was asleep. It is, unless the last wait was so short that falling
        asleep costs more.

        Waking a core that sleeps takes 50 to 100 µs. Who is asked again at once, as in a tight loop over quick
        environments, looks out for a moment, giving way to whoever wants the core; who waits longer sleeps.
        """
        begin, want, done = time.perf_counter(), self.want, self.done
        if self.gap < LOOK_OUT_SECONDS:
            while (now := time.perf_counter()) - begin < LOOK_OUT_SECONDS:
                if (want() != done()).any():
                    self.gap = now - begin
                    return False
                os.sched_yield()
        os.eventfd_read(self.go)
        self.gap = time.perf_counter() - begin
        return True

    def part(self, pending: np.ndarray) -> tuple[list[int], Any]:
        """(environments, the rows that they have on the board); the usual ones are remembered."""
        key = (int(pending[0]), int(pending[-1]), len(pending))
        if key in self.parts:
            return self.parts[key]
        rows = self.ids[pending]
        ids = rows.tolist()
        if ids[-1] - ids[0] + 1 != len(ids):
            return ids, rows
        self.parts[key] = ids, slice(ids[0], ids[-1] + 1)
        return self.parts[key]

    def answer_to(self, ids: list[int], where: Any, ticket: int) -> None:
        board = self.board
        asked = ids
        failures: list[tuple[int, str]] = []
        if board.order[where].any():
            asked, failures = self._prepare(ids)
        if asked:
            mine = where if asked is ids else np.array(asked)
            actions = each(tree_map(lambda leaf: leaf[mine].copy(), board.action), range(len(asked)))
            failures += [(f.env_id, f.report()) for f in self.host.advance(asked, actions, self.answer)]
        if failures or self.failed:
            self.failed = bool(failures)
            board.failed[where] = 0
            for env, report in failures:
                board.failed[env] = 1
                self.mail.send("failure", env=env, ticket=ticket, message=report)
        while self.host.notes:
            self.mail.send("note", text=self.host.notes.pop(0))
        board.done[where] = ticket  # last: from here on the answer counts

    def _prepare(self, ids: list[int]) -> tuple[list[int], list[tuple[int, str]]]:
        """Reseeds and rebuilds what was ordered; those that could not be made are failures."""
        made: list[int] = []
        failures: list[tuple[int, str]] = []
        host = self.host
        for env in ids:
            order, what = self.board.order[env], (env, int(self.board.incarnation[env]), int(self.board.seed[env]))
            host.now[0] = env
            try:
                if order == RESET:
                    host.reseed(*what)
                elif order == REBUILD:
                    host.rebuild(*what)
                made.append(env)
            except (Exception, SystemExit) as error:
                failures.append((env, f"{host.place(env)}: it cannot be made: {_said(error)}\n{traceback.format_exc()}"))
        return made, failures

    def read_mail(self) -> bool:
        """False: it is over."""
        message = self.mail.receive()
        if message["type"] == "snapshot":
            self.mail.send("snapshot", saved=self.host.snapshot())
        elif message["type"] == "restore":
            self.host.restore(message["saved"])
            self.mail.send("restored")
        else:
            self.host.close()
            return False
        return True


def _part(column: np.ndarray, ids: np.ndarray) -> Any:
    """A function that reads the rows of a column: a view where they lie side by side, else a copy each time."""
    if ids[-1] - ids[0] + 1 == len(ids):
        view = column[ids[0] : ids[-1] + 1]
        return lambda: view
    return lambda: column[ids]
