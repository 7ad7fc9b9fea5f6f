"""Which machines can be reached: a connection to a port of each is opened and closed, again and again.

A link that is cut says nothing: whoever waits at its end waits for as long as he likes. Opening a connection needs an
answer from the other side's kernel, so a cut is seen in either direction, and a machine that is merely busy is not taken
for one that is gone: its kernel answers, whatever its processes do. A port that refuses has lost its process and counts
as silent, too. Only a machine that was reached before can be silent: one behind a firewall is left to others.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Mapping

Address = tuple[str, int]
LOOK_SECONDS = 1.0  # between looks, and for an answer to one
SILENT_SECONDS = 6.0


class Reachability:
    """Remembers when each machine last answered. `look` takes at most LOOK_SECONDS."""

    def __init__(
        self,
        *,
        reached: Callable[[Mapping[str, Address], float], set[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._reached, self._clock, self._silent_seconds = reached or connected, clock, silent_seconds
        self._heard: dict[str, float] = {}
        self._looked = clock()

    def look(self, machines: Mapping[str, Address]) -> set[str]:
        """Probe all machines once. -> those (by name) that have been silent for too long."""
        heard = self._reached(machines, LOOK_SECONDS)
        before, self._looked = self._looked, self._clock()
        stopped = self._looked - before > self._silent_seconds / 2  # it is we who slept: that says nothing of the others
        known = {machine: when for machine, when in self._heard.items() if machine in machines}
        self._heard = known | dict.fromkeys((*heard, *known) if stopped else heard, self._looked)
        return {machine for machine, when in self._heard.items() if self._looked - when > self._silent_seconds}


def connected(machines: Mapping[str, Address], seconds: float) -> set[str]:
    """Connect to all at once. -> those that accept in time."""
    poll = select.poll()
    asked: dict[int, tuple[str, socket.socket]] = {}
    answered: set[str] = set()
    try:
        for machine, (host, port) in machines.items():
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            asked[sock.fileno()] = (machine, sock)
            if sock.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                poll.register(sock, select.POLLOUT)
        deadline, waiting = time.monotonic() + seconds, len(asked)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                machine, sock = asked[fd]
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    answered.add(machine)
                poll.unregister(fd)
                waiting -= 1
    finally:
        for _, sock in asked.values():
            sock.close()
    return answered
