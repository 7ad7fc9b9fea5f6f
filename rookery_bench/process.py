"""Programs run as a user would run them, timed from outside, and what they leave behind (Linux's /proc)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

T = TypeVar("T")

MARK = "ROOKERY_BENCH"  # in the environment of everything that a bench starts: finds what outlives it
_running: set[subprocess.Popen] = set()
DIRECTORIES = re.compile(r"(?<![\w.~])~?(?:/[^\s/\"':,]+)*/(?=[^\s/\"':,])")  # of a path; its last part stays


class Finished(NamedTuple):
    """A program that ended."""

    seconds: float  # of the clock, from the start of the process to its exit
    answer: dict[str, Any]  # the last JSON object that it printed on a line of its own; empty where it failed
    failure: str | None  # why there is no answer


def run(
    command: Sequence[str],
    *,
    timeout: float,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
    watch_seconds: float = 5.0,
) -> Finished:
    """Run a program to its end; `watch` is called with its pid now and then. After `timeout` it is ended."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.perf_counter()
        try:
            program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=env)
        except OSError as error:
            return Finished(0.0, {}, f"{command[0]} cannot be started: {error.strerror}")
        _running.add(program)
        timed_out = False
        try:
            period = watch_seconds if watch else timeout
            while not _exited(program, min(period, begin + timeout - time.perf_counter())):
                if time.perf_counter() - begin >= timeout:
                    timed_out = True
                    break
                if watch:
                    watch(program.pid)
            seconds = time.perf_counter() - begin
        finally:
            end(program)
            _running.discard(program)
        answer = last_json(_content(out))
        if timed_out:
            return Finished(seconds, {}, f"did not end within {timeout:g} s: {tail(_content(err))}")
        if program.returncode != 0:
            return Finished(seconds, {}, f"left with status {program.returncode}: {tail(_content(err))}")
        if answer is None:
            return Finished(seconds, {}, f"printed no JSON line: {tail(_content(err))}")
        return Finished(seconds, answer, None)


def rookery(words: Sequence[str], *, runs: Path, timeout: float, cache: Path | None = None, **how: Any) -> Finished:
    """Run `rookery WORDS --runs RUNS` as a process of its own; `cache`: in place of the user's cache directory."""
    env = environment(how.pop("mark", "1")) | ({"XDG_CACHE_HOME": str(cache)} if cache else {})
    return run([sys.executable, "-m", "rookery", *words, "--runs", str(runs)], timeout=timeout, env=env, **how)


def environment(mark: str = "1") -> dict[str, str]:
    """Make a program's environment variables: ours, its mark, and the source tree, which need not be installed."""
    root = str(Path(__file__).parents[1])  # holds both packages
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path, MARK: mark}


def last_json(output: str) -> dict[str, Any] | None:
    """Parse the last line that is a JSON object; a program may chatter before and after."""
    for line in reversed(output.splitlines()):
        if line.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
    return None


def tail(output: str, lines: int = 3) -> str:
    """Return the last lines that are not empty, without the directories of this machine."""
    words = [line.strip() for line in output.splitlines() if line.strip()][-lines:]
    return DIRECTORIES.sub("", " / ".join(words))[-400:] or "(it said nothing)"


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _exited(program: subprocess.Popen, seconds: float) -> bool:
    """Wait for the exit, woken by it at once: Popen.wait polls only twenty times a second."""
    if hasattr(os, "pidfd_open") and program.poll() is None:
        handle = os.pidfd_open(program.pid)
        try:
            select.select([handle], [], [], max(0.0, seconds))
        finally:
            os.close(handle)
        return program.poll() is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(max(0.0, seconds))
    return program.poll() is not None


def end(program: subprocess.Popen, patience: float = 10.0) -> None:
    """End a program that still runs, and what it started."""
    if program.poll() is not None:
        return
    children = tree(program.pid)
    program.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(patience)
    for pid in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    program.wait()


def side_by_side(calls: Mapping[str, Sequence[Callable[[], T]]], *, jobs: int) -> Iterator[tuple[str, list[T]]]:
    """Make all calls, `jobs` at a time, and yield those of a name together, in the order of names and calls."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {name: [pool.submit(call) for call in each] for name, each in calls.items()}
        try:
            for name, each in futures.items():
                yield name, [future.result() for future in each]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()  # else leaving the pool would wait for what still runs
            raise


def end_all() -> None:
    """End whatever `run` started and has not ended, in whatever thread."""
    for program in [*_running]:
        end(program)


# -------------------------------------------------------------------------------------------------------- /proc


def tree(root: int) -> list[int]:
    """List a process and its descendants."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def resident_mb(root: int) -> float:
    """Sum the resident memory of a process and its descendants."""
    pages = 0
    for pid in tree(root):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def threads(root: int) -> int:
    count = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def cpu_seconds() -> float:
    """Sum the CPU time of this process, with all its threads, and of its live descendants."""
    total = time.process_time()
    for pid in tree(os.getpid())[1:]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += sum(int(ticks) for ticks in _stat(pid)[11:13]) / os.sysconf("SC_CLK_TCK")
    return total


def listening(pids: Sequence[int]) -> list[int]:
    """Find the TCP ports on which some of these processes listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{handle}"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            ports |= listening_ports(Path(table).read_text(), inodes)
    return sorted(ports)


def listening_ports(table: str, inodes: set[str]) -> set[int]:
    """Parse the text of /proc/net/tcp: ports of sockets in state 0A (listen) among `inodes` ("socket:[123]")."""
    lines = [fields for line in table.splitlines()[1:] if len(fields := line.split()) > 9]
    mine = [fields for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes]
    return {int(fields[1].rpartition(":")[2], 16) for fields in mine}


def marked(mark: str) -> list[int]:
    """Find live processes that were started, by whatever way, from one with this mark in its environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def shared_memory() -> set[str]:
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


def unused(segments: set[str]) -> set[str]:
    """Find the segments that no live process maps: what is in use belongs to someone."""
    used = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            used |= {name for name in segments if f"/dev/shm/{name}" in maps}
    return segments - used


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    """Read the fields of /proc/PID/stat after the name, which may hold spaces: state, parent ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
