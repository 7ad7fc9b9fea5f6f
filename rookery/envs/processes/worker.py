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

from rookery.envs.gym_envs import GymEnvs
from rookery.envs.probe import probe
from rookery.envs.processes import shared
from rookery.envs.processes.board_server import BoardServer, said

LOOK_OUT_SECONDS = 300e-6


class Mailbox:
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
    mail = Mailbox(end)
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
        gym_envs = GymEnvs(make_env, request["ids"], request["num_envs"], name=request["name"], clip=request["clip"])
    except BaseException as error:
        mail.send("failed", message=said(error), traceback=traceback.format_exc())
        return
    gc.collect()
    gc.freeze()  # what exists now stays: the collector need not look at it again
    mail.send("made", observation=gym_envs.observation, action=gym_envs.action, jax="jax" in sys.modules)
    with suppress(EOFError, ConnectionError):  # the pool is gone
        attached = mail.receive()
        if attached["type"] == "attach":
            _Loop(mail, gym_envs, attached).run()


class _Loop:
    """Waits for the bell, lets the board server answer, rings."""

    def __init__(self, mail: Mailbox, gym_envs: GymEnvs, attached: dict[str, Any]) -> None:
        self.mail, self.gym_envs = mail, gym_envs
        memory, self.go, self.rang = attached["fds"]
        board = shared.attach(memory, shared.describe(gym_envs.observation, gym_envs.action, attached["num_envs"]))
        os.close(memory)
        tell_failure = lambda env, message: mail.send("failure", env=env, message=message)
        tell_note = lambda text: mail.send("note", text=text)
        tell_clipped = lambda count: mail.send("clipped", count=count)
        self.board_server = BoardServer(
            gym_envs, board, attached["index"], tell_failure=tell_failure, tell_note=tell_note, tell_clipped=tell_clipped
        )
        self.gap = 1.0  # seconds of the last wait

    def run(self) -> None:
        while True:
            if self.board_server.serve():
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
        begin = time.perf_counter()
        if self.gap < LOOK_OUT_SECONDS:
            while (now := time.perf_counter()) - begin < LOOK_OUT_SECONDS:
                if self.board_server.is_wanted():
                    self.gap = now - begin
                    return False
                os.sched_yield()
        os.eventfd_read(self.go)
        self.gap = time.perf_counter() - begin
        return True

    def read_mail(self) -> bool:
        """False: it is over."""
        message = self.mail.receive()
        if message["type"] == "snapshot":
            self.mail.send("snapshot", saved=self.gym_envs.snapshot())
        elif message["type"] == "restore":
            self.gym_envs.restore(message["saved"])
            self.mail.send("restored")
        else:
            self.gym_envs.close()
            return False
        return True
