"""Two machines on one: network namespaces with a link between them that can be cut, a Ray node in each, and a driver.

Namespaces share the processes and files of the machine, so everything is ended by what lives in a namespace and nothing
else is touched. Needs root and `ip`; `Machines.missing()` says what is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery_bench import process

HERE = Path(__file__).parent
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
NEAR, FAR = "10.231.7.1", "10.231.7.2"  # seen by nobody but the two


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Machines:
    """`near` has the head and the driver, `far` a node that comes and goes."""

    def __init__(self) -> None:
        self.mark = mark = f"rk{os.getpid()}"
        self.near, self.far, self._links = f"{mark}n", f"{mark}f", (f"{mark}a", f"{mark}b")
        self.directory = Path(tempfile.mkdtemp(prefix="rookery-drill-", dir="/tmp"))  # sockets lie below: a short path
        token = self.directory / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": str(HERE.parents[1]), "NPROC": "1",
            "JAX_PLATFORMS": "cpu", process.MARK: mark,
        }  # fmt: skip
        self._programs: list[subprocess.Popen] = []
        self._log = open(self.directory / "log", "w+")  # noqa: SIM115

    @staticmethod
    def missing() -> str | None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return "network namespaces need root and `ip`"
        try:
            ip("netns", "add", name := f"rk{os.getpid()}t")
            ip("netns", "del", name)
        except subprocess.CalledProcessError as error:
            return f"network namespaces cannot be made here: {error.stderr.strip()}"
        return None

    def __enter__(self) -> Machines:
        for name, link, address in zip((self.near, self.far), self._links, (NEAR, FAR)):
            ip("netns", "add", name)
            if name == self.near:
                ip("-n", name, "link", "add", link, "type", "veth", "peer", "name", self._links[1])
            else:
                ip("-n", self.near, "link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/30", "dev", link)
            for each in ("lo", link):
                ip("-n", name, "link", "set", each, "up")
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 10
        while (left := [*self.pids(self.near), *self.pids(self.far)]) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for program in self._programs:
                program.poll()
            time.sleep(0.05)
        for program in self._programs:
            program.wait()
        for name in (self.near, self.far):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def pids(self, name: str) -> list[int]:
        with contextlib.suppress(subprocess.CalledProcessError):
            return [int(pid) for pid in ip("netns", "pids", name).split()]
        return []

    def start_head(self, *, cpus: int, **environment: str) -> None:
        words = ["--head", f"--node-ip-address={NEAR}", "--port=6379", "--include-dashboard=false"]
        self._start(self.near, [*words, f"--temp-dir={self.directory / 'r'}"], cpus, environment)
        self._reachable()

    def start_node(self, *, cpus: int) -> None:
        self._start(self.far, [f"--address={NEAR}:6379", f"--node-ip-address={FAR}"], cpus, {})

    def _start(self, name: str, words: list[str], cpus: int, more: dict[str, str]) -> None:
        common = ["--disable-usage-stats", "--block", f"--num-cpus={cpus}", "--object-store-memory=80000000"]
        self._run(name, [*RAY, "start", *words, *common], env=self.environment | more, stdout=self._log, stderr=self._log)

    def _run(self, name: str, command: list[str], **how: Any) -> subprocess.Popen:
        program = subprocess.Popen(["ip", "netns", "exec", name, *command], **how)
        self._programs.append(program)
        return program

    def _reachable(self) -> None:
        """Until the head's port is open."""
        ask = f"import socket; socket.create_connection(('{NEAR}', 6379), 1)"
        deadline = time.monotonic() + 60
        while subprocess.run(["ip", "netns", "exec", self.near, sys.executable, "-c", ask], capture_output=True).returncode:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def cut(self) -> None:
        ip("-n", self.near, "link", "set", self._links[0], "down")

    def heal(self) -> None:
        ip("-n", self.near, "link", "set", self._links[0], "up")

    def raylets(self, name: str) -> list[int]:
        named = lambda pid: Path(os.readlink(f"/proc/{pid}/exe")).name if Path(f"/proc/{pid}/exe").exists() else ""
        return [pid for pid in self.pids(name) if named(pid) == "raylet"]

    def drive(self, **options: Any) -> Driver:
        command = [sys.executable, str(HERE / "driven.py"), json.dumps({"address": f"{NEAR}:6379"} | options)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        return Driver(self._run(self.near, command, env=self.environment, **pipes), self.said)

    def said(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-4000:]


class Driver:
    """A program that trains (driven.py); it tells how it stands in lines of JSON."""

    def __init__(self, program: subprocess.Popen, said: Callable[[], str]) -> None:
        self._program, self._said = program, said
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._program.stdout:  # type: ignore[union-attr]
            self._lines.put(line)
        self._lines.put("")

    def until(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> tuple[dict[str, Any], float]:
        """-> what it said when this became true, and the seconds until then."""
        begin, last = time.monotonic(), None
        while (left := begin + seconds - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=left)
                assert line, f"the driver has ended: {last}\n{self._said()}"
                if line.startswith("{") and condition(last := json.loads(line)):
                    return last, time.monotonic() - begin
        raise AssertionError(f"not within {seconds} s: {last}\n{self._said()}")

    def close_the_books(self) -> dict[str, Any]:
        """Drains and ends it. -> its last words."""
        self._program.stdin.write("end\n")  # type: ignore[union-attr]
        self._program.stdin.flush()  # type: ignore[union-attr]
        last, _ = self.until(lambda said: "violations" in said)
        self._program.wait(30)
        return last
