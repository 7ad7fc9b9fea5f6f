"""A worker in a process of its own: a fresh interpreter that is asked over a socket and dies with its parent.

    parent ──call, over a socket; large arrays through memory that both see──▶ child, one worker
           ◀──its answer, or what it raised─────────────────────────────────

The process that holds JAX is not forked. Both ends of the socket are ours alone and have no name. The child ends when its
parent does, however that happens: a thread of it watches the socket. A child that is gone shows at once, as the end of the
socket: WorkerLost, with its last words.
"""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from rookery import references, signals
from rookery.runtime.interface import WorkerLost
from rookery.runtime.remote_error import RemoteError, remote_error
from rookery.trees import tree_map

LARGE, ALIGN = 4096, 64  # bytes
CLOSE_SECONDS = 2.0
WORDS = 2000  # characters of what a child said last


class ArrayPipe:
    """Messages over a socket; arrays from LARGE on lie in a mapping that the other end sees, one for each direction.

    An array that was received is a view of that mapping, valid until the next message is received.
    """

    def __init__(self, fd: int, out: int, into: int) -> None:
        self.connection = Connection(fd)
        self._out, self._into = _ArrayMemory(out), _ArrayMemory(into)

    def send(self, message: Any) -> None:
        packer = _Packer(file := io.BytesIO())
        packer.dump(message)
        self._out.reach(packer.size)
        for offset, array in packer.arrays:
            np.copyto(self._out.view(offset, array.shape, array.dtype), array)
        self.connection.send_bytes(packer.size.to_bytes(8, "little") + file.getbuffer())

    def receive(self) -> Any:
        data = self.connection.recv_bytes()
        self._into.reach(int.from_bytes(data[:8], "little"))
        return _Unpacker(io.BytesIO(data[8:]), self._into).load()


class _ArrayMemory:
    def __init__(self, fd: int) -> None:
        self._fd, self._memory = fd, np.zeros(0, np.uint8)

    def reach(self, size: int) -> None:
        """Grow to `size` bytes; views of the mapping before keep that one alive."""
        if size > len(self._memory):
            if os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, size)
            self._memory = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return self._memory[offset : offset + count * dtype.itemsize].view(dtype).reshape(shape)


class _Packer(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[tuple[int, np.ndarray]] = []
        self.size = 0

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not np.ndarray or obj.nbytes < LARGE or obj.dtype.hasobject:
            return None
        offset = self.size
        self.arrays.append((offset, obj))
        self.size += -(-obj.nbytes // ALIGN) * ALIGN
        return offset, obj.shape, obj.dtype.str


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: _ArrayMemory) -> None:
        super().__init__(file)
        self._memory = memory

    def persistent_load(self, pid: Any) -> np.ndarray:
        return self._memory.view(*pid)


# ------------------------------------------------------------------------------------------------ the parent's side


class Child:
    """The worker as its parent sees it: any method is a call that waits for the answer."""

    def __init__(self, name: str, make: tuple[Any, ...], variables: Mapping[str, str]) -> None:
        """make: prepare, called first of all, the worker's class and its args and kwargs."""
        if not hasattr(os, "memfd_create"):
            raise ValueError("workers in processes of their own need Linux: use --runtime ray")
        for module in references.by_value():
            cloudpickle.register_pickle_by_value(module)
        self._name = name
        mine, theirs = socket.socketpair()
        memories = [os.memfd_create("rookery") for _ in range(2)]
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # of its stdout and stderr: read when it is gone
        path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        fds = [theirs.fileno(), *memories]
        with signals.Shielded():
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from rookery.runtime.child import main; main{(*fds,)}"],
                pass_fds=fds, stdin=subprocess.DEVNULL, stdout=self._words, stderr=self._words,
                env={**os.environ, **variables, "PYTHONPATH": path},
            )  # fmt: skip
        theirs.close()
        self.pid = self._process.pid
        self._pipe = ArrayPipe(mine.detach(), out=memories[0], into=memories[1])
        self._make = make

    def made(self) -> Child:
        """Construct the worker and wait until it is made."""
        self._ask("", *self._make)
        return self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return functools.partial(self._ask, method)

    def _ask(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        try:
            self._pipe.send((method, args, kwargs))
            answer = self._pipe.receive()
        except (EOFError, OSError) as error:
            raise WorkerLost(f"{self._name} is gone: {self._how()}") from error
        if isinstance(answer, RemoteError):
            raise answer.unpacked(f"{self._name}, a process of its own")
        return _kept(answer)

    def _how(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.returncode
        how = "it does not answer" if code is None else f"it exited with status {code}"
        how = f"it was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else how
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").strip()
        return f"{how}. Its last words: {words[-WORDS:]}" if words else how

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Let the worker close, and kill the process either way."""
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send(("close", (), {}))
            self._pipe.connection.poll(CLOSE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._pipe.connection.close()
        self._words.close()


def _kept(answer: Any) -> Any:
    """Copy arrays out of the mapping, which the next answer overwrites."""
    return tree_map(lambda x: np.copy(x) if isinstance(x, np.ndarray) and not x.flags.owndata else x, answer)


# ------------------------------------------------------------------------------------------------- the child's side


def main(fd: int, into: int, out: int) -> None:
    signals.ignore()
    threading.Thread(target=_die_with, args=(fd,), daemon=True).start()
    pipe, worker = ArrayPipe(fd, out=out, into=into), None
    while True:
        try:
            method, args, kwargs = pipe.receive()
        except EOFError:
            return
        except Exception as error:  # what was sent cannot be unpacked here
            pipe.send(remote_error(error))
            continue
        try:
            if worker is None:
                prepare, kind, its_args, its_kwargs = args
                prepare()
                worker, answer = kind(*its_args, **its_kwargs), None
            else:
                answer = getattr(worker, method)(*args, **kwargs)
        except BaseException as error:
            answer = remote_error(error)
        pipe.send(answer)
        del args, kwargs, answer  # views of the mapping
        if method == "close":
            return


def _die_with(fd: int) -> None:
    """Exit when the other end of the socket is closed, whatever other threads are at."""
    poll = select.poll()
    poll.register(fd, 0)
    poll.poll()
    os._exit(1)
