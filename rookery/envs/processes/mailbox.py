"""Messages between a pool and a worker process: a Unix socket for all that is rare, file descriptors included.

Pickled, which is safe between a process and the child that it started, and needed for factories and spaces.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from rookery import references
from rookery.envs.gym_envs import MakeEnv


class CannotTravel(TypeError):
    """The factory of environments cannot be sent to another process."""


class Mailbox:
    """One end of the socket between a pool and one worker. A message is a dictionary with a "type"."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._connection = Connection(os.dup(end.fileno()))
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)

    def send(self, type: str, *, fds: tuple[int, ...] = (), **content: Any) -> None:
        """Send a message, and file descriptors with it (SCM_RIGHTS)."""
        self._connection.send_bytes(cloudpickle.dumps({"type": type, "fds": len(fds), **content}))
        if fds:
            self.socket.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])

    def receive(self) -> dict[str, Any]:
        """Wait for a message; EOFError or OSError where the other end is gone."""
        message = pickle.loads(self._connection.recv_bytes())
        if message["fds"]:
            message["fds"] = socket.recv_fds(self.socket, 1, message["fds"])[1]
        return message

    def waiting(self, timeout: float = 0.0) -> bool:
        """Return whether a message is there, after waiting for one at most so many seconds."""
        return bool(self._poll.poll(1000 * timeout))

    def close(self) -> None:
        self._connection.close()
        self.socket.close()


def pack(make_env: MakeEnv, id: str) -> bytes:
    """Pickle a factory; CannotTravel, with the reason, if it holds something that belongs to this process."""
    for module in references.by_value():
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(make_env)
    except Exception as error:
        raise CannotTravel(
            f"{id!r} cannot be made in another process, because its factory cannot be sent there ({error}): "
            "make it a function without open files, locks or devices in its closure, or step it in process (--env-processes 0)"
        ) from error
