"""End all processes of a Ray that a run started: the run itself does when it closes, and whoever outlives it when it cannot.

    python cleanup.py DIRECTORY PID   # sleeps until the process PID is dead, then ends that Ray, removes it and leaves

A driver that is killed takes the head of its Ray with it, but not all of its agents. So a small process waits for the
driver's death beside it, by the kernel's word (a pidfd), in a session of its own where no signal for the run reaches it.
It imports the standard library alone: it costs 10 MB and starts in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "ROOKERY_RAY"  # in the environment of all processes of a Ray that we start: its directory. Titles must not overwrite it
END_SECONDS = 5.0


def watch_over(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends the Ray of `directory` when this one dies."""
    command = [sys.executable, "-I", "-S", __file__, str(directory), str(os.getpid())]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def end(directory: Path) -> None:
    """End all processes of a Ray that we started and waits for their death: a worker that is just starting would make its
    directories anew. They are known by what they inherited, so that those are found, too, whose parent died before them."""
    deadline = time.monotonic() + END_SECONDS
    while (left := processes(directory)) and time.monotonic() < deadline:
        for pid in left:
            await_death(pid, deadline - time.monotonic(), kill=True)


def processes(directory: Path) -> list[int]:
    """Find the processes with the mark of this Ray in their environment; of dead ones nothing can be read."""
    mark, found = f"{MARK}={directory}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found += [int(path.parent.name)] if mark in path.read_bytes().split(b"\0") else []
    return [pid for pid in found if pid != os.getpid()]


def await_death(pid: int, seconds: float | None = None, *, kill: bool = False) -> bool:
    """Wait until a process is dead. False: it still lives when the time is over. kill: send SIGKILL first."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if kill:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        death = select.poll()
        death.register(process, select.POLLIN)
        return bool(death.poll(None if seconds is None else max(0.0, seconds) * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(process)


def main(directory: Path, driver: int) -> None:
    await_death(driver)
    end(directory)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
