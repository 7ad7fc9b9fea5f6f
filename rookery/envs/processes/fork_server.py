"""The fork server: a small process that forks the workers of environments, quickly and safely.

    this process (jax, threads) ──socket──▶ fork server (numpy, gymnasium; one thread) ──fork──▶ worker, worker, ...

A process that holds JAX must not be forked, and a fresh interpreter takes half a second to import what an environment
needs. So one fresh interpreter imports it once, and workers are forked from there in milliseconds.

Who outlives whom: the fork server ends when its owner does, however that happens (it watches the owner's pidfd and its
socket), and the kernel kills every worker when the fork server ends (PR_SET_PDEATHSIG, which is safe here because the server
has one thread). So nothing is left behind, even if a worker hangs in C code, and without a thread in any of them.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from rookery import signals

PR_SET_PDEATHSIG = 1
MESSAGE = 4096  # bytes; they are small
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # many processes, one thread each


def supported() -> bool:
    """Return whether the system has all that is needed, as Linux does: pidfds, eventfds, file descriptors over sockets."""
    return all(hasattr(os, name) for name in ("pidfd_open", "eventfd")) and hasattr(socket, "send_fds")


# --------------------------------------------------------------------------------------------- the owner's side


class Forked(NamedTuple):
    pid: int
    pidfd: int  # readable when it has ended; it is never another process, whatever becomes of the number


class ForkServer:
    """The owner's end of a fork server. One per process is enough, see `shared()`; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(30)
        self._ended: dict[int, int] = {}  # pid -> wait status
        path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        program = f"from rookery.envs.processes.fork_server import main; main({theirs.fileno()}, {os.getpid()})"
        with signals.Shielded():
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **{name: os.environ.get(name, "1") for name in SINGLE}, "PYTHONPATH": path},
            )
        theirs.close()
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def spawn(self, control: socket.socket) -> Forked:
        """Fork a worker that serves `control`; the caller closes its own copy of that end."""
        with self._lock:
            try:
                socket.send_fds(self._socket, [b"spawn"], [control.fileno()])
                while True:
                    message, fds = self._receive()
                    if message["event"] == "born":
                        return Forked(message["pid"], fds[0])
            except (OSError, EOFError) as error:
                raise ConnectionError(f"the process that starts environment workers is gone: {error}") from error

    def status(self, pid: int, timeout: float = 2.0) -> str:
        """Return how a worker has ended: "killed by SIGKILL", "exited with status 1"."""
        with self._lock, suppress(OSError, EOFError):
            self._socket.settimeout(timeout)
            try:
                while pid not in self._ended:
                    self._receive()
            finally:
                self._socket.settimeout(30)
        ended = self._ended.pop(pid, None)
        if ended is None:
            return "ended"
        if os.WIFSIGNALED(ended):
            return f"was killed by {signal.Signals(os.WTERMSIG(ended)).name}"
        return f"exited with status {os.WEXITSTATUS(ended)}"

    def close(self) -> None:
        """End the fork server and every worker that is left."""
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE, 1)
        if not data:
            raise EOFError("it ended")
        message = json.loads(data)
        if message["event"] == "died":
            self._ended[message["pid"]] = message["status"]
        return message, fds


_shared: ForkServer | None = None
_owner = 0
_shared_lock = threading.Lock()


def shared() -> ForkServer:
    """Return the fork server of this process: started when first asked for, and anew if it was lost; it ends with us."""
    global _shared, _owner
    with _shared_lock:
        if _shared is None or _owner != os.getpid() or not _shared.alive:
            _shared, _owner = ForkServer(), os.getpid()
            atexit.register(_close, _shared, os.getpid())
        return _shared


def _close(fork_server: ForkServer, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        fork_server.close()


# ---------------------------------------------------------------------------------------- the fork server's side


def main(fd: int, owner: int) -> None:
    """Fork a worker per message until the owner is gone."""
    signals.ignore()
    from rookery.envs.processes import worker  # with numpy and gymnasium: what a fork then has for nothing

    try:
        owner_fd = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    if os.getppid() != owner:
        return
    waker, wakened = socket.socketpair()
    waker.setblocking(False)
    wakened.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    commands = socket.socket(fileno=fd)
    poll = select.poll()
    for watched in (commands.fileno(), owner_fd, wakened.fileno()):
        poll.register(watched, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if owner_fd in ready:
            return
        if wakened.fileno() in ready:
            with suppress(BlockingIOError):
                wakened.recv(4096)
            _reap(commands)
        if commands.fileno() in ready:
            try:
                data, fds, _, _ = socket.recv_fds(commands, MESSAGE, 1)
            except ConnectionResetError:  # closed with news of deaths unread
                return
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for mine in (commands, waker, wakened):
                    mine.close()
                os.close(owner_fd)
                _be_worker(worker, fds[0], os.getppid())
            os.close(fds[0])
            pidfd = os.pidfd_open(pid)  # only this process reaps it, so the number is still its own
            socket.send_fds(commands, [json.dumps({"event": "born", "pid": pid}).encode()], [pidfd])
            os.close(pidfd)


def _reap(commands: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        with suppress(OSError):
            commands.send(json.dumps({"event": "died", "pid": pid, "status": status}).encode(), socket.MSG_DONTWAIT)


def _be_worker(worker: Any, fd: int, fork_server: int) -> None:
    """Run the worker in the forked process: it dies with the fork server, and ends without the server's exit handlers."""
    status = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == fork_server:  # else it had died before prctl
            worker.serve(socket.socket(fileno=fd))
            status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
