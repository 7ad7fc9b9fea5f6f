"""Which environments of this process do not answer. Nobody can interrupt them: whoever looks can only say so, or leave.

Worker processes are watched, and killed, by their pool; what is stepped in process is looked at here, by another thread.
"""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

from rookery.envs.host import Host

_hosts: weakref.WeakSet[Host] = weakref.WeakSet()
_lock = threading.Lock()


class Stall(NamedTuple):
    """An environment that has not come back from a call."""

    env_id: int
    what: str  # which one, and which call
    seconds: float


def watch(host: Host) -> None:
    """Lets everyone who looks see this host, for as long as there is one."""
    with _lock:
        _hosts.add(host)


class Stalls:
    """Remembers since when each host has been in the call that it is in: `look` is to be called again and again."""

    def __init__(self) -> None:
        self._since: weakref.WeakKeyDictionary[Host, tuple[tuple[int, int], float]] = weakref.WeakKeyDictionary()

    def look(self, now: float) -> Stall | None:
        """The call that has taken longest so far, as far as was seen; None: nobody is in one."""
        longest = None
        with _lock:
            hosts = list(_hosts)
        for host in hosts:
            if not host.busy:
                self._since.pop(host, None)
                continue
            mark = (host.calls, int(host.now[0]))
            if self._since.get(host, (None, now))[0] != mark:
                self._since[host] = (mark, now)
            seconds = now - self._since[host][1]
            if longest is None or seconds > longest.seconds:
                longest = Stall(mark[1], f"{host.place(mark[1])}: {host.doing(mark[1])} has not returned", seconds)
        return longest
