"""The command as a terminal or a service manager runs it, a signal to it, and all that it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rookery_bench import process

SECONDS = 20.0  # that a signal may take
HERE = Path(__file__).parent
ENDLESS = ("--total-steps", "1000000000", "--run", "r")
CARTPOLE = ("train", "ppo", "--env", "CartPole-v1", "--checkpoint-every", "3", "--eval-every", "2", *ENDLESS)


STARTED: list[Program] = []


def end_all() -> None:
    """Of a test that failed before it ended its own."""
    while STARTED:
        STARTED.pop().end()


class Ended(NamedTuple):
    status: int
    seconds: float  # since the signal
    begun: bool  # had the command come to its first line? Before it, a signal is Python's
    out: str
    err: str


class Program:
    """The command in a session of its own, as a terminal or a service manager has it."""

    def __init__(self, directory: Path, *words: str, start: str = "", nohup: bool = False) -> None:
        self.mark = f"signals-{os.getpid()}-{time.monotonic_ns()}"
        self.files = directory / "tmp"
        self.files.mkdir()
        path = os.pathsep.join([str(HERE), *(entry for entry in sys.path if entry)])
        env = os.environ | {process.MARK: self.mark, "PYTHONPATH": path, "TMPDIR": str(self.files)}
        self.out, self.err = directory / "out", directory / "err"
        self.before = process.shared_memory()
        # what a test imports before the command takes time, too
        early = f"from rookery import signals; signals.watch(); {start}; " if start else ""
        ours = f"{early}from rookery.cli import main; main()"
        command = [*(["nohup"] if nohup else []), sys.executable, "-c", ours, *words]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored, for children too
        with self.out.open("w") as out, self.err.open("w") as err:
            how: Any = dict(cwd=directory, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
            self.popen = subprocess.Popen(command, stdout=out, stderr=err, **how)
        signal.signal(signal.SIGINT, before)
        STARTED.append(self)

    def watches(self) -> bool:
        """Python itself never catches SIGTERM."""
        try:
            caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{self.popen.pid}/status").read_text())
        except OSError:
            return False
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    def has_begun(self) -> bool:
        """Watches for signals, or does something that takes time and should."""
        try:
            return self.watches() or "numpy" in Path(f"/proc/{self.popen.pid}/maps").read_text()
        except OSError:
            return False

    def send(self, number: int) -> Ended:
        """Ctrl-C goes to everyone in the terminal, other signals to the process."""
        begun, begin = self.has_begun(), time.monotonic()
        (os.killpg if number == signal.SIGINT else os.kill)(self.popen.pid, number)
        return self.ended(begin, begun)

    def ended(self, begin: float, begun: bool) -> Ended:
        try:
            status = self.popen.wait(60)
        finally:
            seconds = time.monotonic() - begin
            self.end()
        return Ended(status, seconds, begun, self.out.read_text(), self.err.read_text())

    def end(self) -> None:
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()

    def left(self) -> list[Any]:
        """All that outlives it, after a moment in which what it owned may notice."""
        deadline = time.monotonic() + 3
        while process.marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        segments = process.unused(process.shared_memory() - self.before)
        rays = [*Path(tempfile.gettempdir()).glob(f"rookery-ray-{self.popen.pid}-*")]
        return [*process.marked(self.mark), *segments, *rays, *self.files.iterdir()]


def steps(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(lines[-1])["env_steps"] if lines else 0
