"""Choose how many worker processes step environments, by what a step costs and what waking a process does: both measured.

Environments that a C++ or numpy pool steps are not asked; this is for those that Python steps one by one.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import time
from contextlib import suppress
from os import getcwd
from typing import Any, NamedTuple

from rookery.envs.gym_envs import MakeEnv
from rookery.envs.pools.pool import EnvironmentFailed
from rookery.envs.probe import Probe
from rookery.envs.processes import fork_server
from rookery.envs.processes.mailbox import Mailbox, pack

ECHOES = 20
PLAY_SECONDS = 0.15


class Measured(NamedTuple):
    probe: Probe
    wake_seconds: float  # to another process and back


class ProcessCount(NamedTuple):
    processes: int  # 0: in this process alone
    here: bool  # and a share of them in this process
    why: str


class CannotMake(Exception):
    """The factory raised in the process that tried it; called here, it raises the same."""


_known: dict[Any, Measured] = {}


def measure(make_env: MakeEnv, id: str, key: Any = None, *, timeout: float = 120.0) -> Measured:
    """Make one environment in a process of its own and play it for a moment; the result is remembered under `key`."""
    if key is not None and key in _known:
        return _known[key]
    packed = pack(make_env, id)
    mine, theirs = socket.socketpair()
    child = fork_server.shared().spawn(theirs)
    theirs.close()
    mail = Mailbox(mine)
    try:
        mail.send("probe", make=packed, name=id, seconds=PLAY_SECONDS, path=sys.path, cwd=getcwd())
        answer = _receive(mail, child, id, timeout)
        if answer["type"] == "failed":
            raise CannotMake(f"{id!r}: {answer['message']}\n{answer['traceback'].rstrip()}")
        found = Measured(answer["result"], min(_echoes(mail, child, id)))  # a busy moment must not decide for a whole run
        mail.send("bye")
    finally:
        with suppress(OSError):
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        mail.close()
    if key is not None:
        _known[key] = found
    return found


def choose(measured: Measured, num_envs: int, groups: int, cores: int) -> ProcessCount:
    """Choose the number of processes: with one group every core steps while the caller waits; with more, one is left to it.

    Where waking is a good part of what there is to do, the caller steps a share itself: it has nobody to wait for then, but an
    environment that exits or hangs there takes the run with it. Longer steps are all left to workers.
    """
    size, step, wake = num_envs // groups, measured.probe.step_seconds, measured.wake_seconds
    alone = size * step
    each = f"{_time(step)} a step, {_time(wake)} to wake a process: {size} steps take {_time(alone)} in process"
    if cores == 1 or size == 1 or alone < 2 * wake:
        return ProcessCount(0, False, f"{each}, too little to be shared" if cores > 1 else f"{each}, and there is one core")
    if groups > 1:
        processes = min(cores - 1, size)
        return ProcessCount(processes, False, f"{each}, and another group is decided on meanwhile")
    shares = min(cores, size)
    if alone / shares < 10 * wake:
        return ProcessCount(shares - 1, True, f"{each}, {_time(alone / shares)} if {shares} share them")
    return ProcessCount(shares, False, f"{each}, {_time(alone / shares + wake)} in {shares} processes")


def _receive(mail: Mailbox, child: fork_server.Forked, id: str, timeout: float) -> dict[str, Any]:
    ready, _, _ = select.select([mail.socket.fileno(), child.pidfd], [], [], timeout)
    if not ready:
        raise EnvironmentFailed(f"{id!r}: making one and playing it for a moment took more than {timeout:g} s", 0)
    try:
        return mail.receive()
    except (EOFError, OSError):
        ended = fork_server.shared().status(child.pid)
        raise EnvironmentFailed(f"{id!r}: the process that tried it {ended}", 0) from None


def _echoes(mail: Mailbox, child: fork_server.Forked, id: str) -> list[float]:
    seconds = []
    for _ in range(ECHOES):
        begin = time.perf_counter()
        mail.send("call")
        _receive(mail, child, id, 10.0)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms"
