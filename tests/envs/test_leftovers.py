"""Whatever is killed, nothing is left: no process and no shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery.envs.processes import fork_server

pytestmark = pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")

HERE = Path(__file__).parent
MARK = "ROOKERY_TEST_MARK"
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background deaf to it
sys.path.insert(0, {here!r})
import numpy as np
from bad_envs import {env}
from rookery.envs.processes.process_pool import ProcessPool
from rookery.envs.processes import fork_server

def main():
    pool = ProcessPool({env}, 4, id="left", processes=2, groups=2)
    pool.reset(0)
    print(fork_server.shared().pid, *(worker.child.pid for worker in pool._workers), flush=True)
    {then}
    while True:
        for group in (0, 1):
            pool.send(np.zeros(2, int), group)
        for group in (0, 1):
            pool.recv(group)

main()
"""


@pytest.fixture
def start():
    """Starts programs, and ends them whatever the test found."""
    started = []
    yield lambda **options: started.append(Started(**options)) or started[-1]
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


class Started:
    """A program with a pool in it; every process that it starts inherits a mark in its environment."""

    def __init__(self, *, env="Slow", then="pass"):
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.shm = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(here=str(HERE), env=env, then=then)],
            env={**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.fork_server, *self.workers = map(int, self.process.stdout.readline().split())

    def alive(self):
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def assert_nothing_is_left(self):
        until = time.monotonic() + 3
        while left := self.alive():
            assert time.monotonic() < until, f"still there: {left}"
            time.sleep(0.02)
        assert set(os.listdir("/dev/shm")) <= self.shm


def test_the_mark_finds_every_process(start):
    started = start()
    assert set(started.alive()) == {started.process.pid, started.fork_server, *started.workers} and len(started.workers) == 2
    os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()
    started.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_parent_alone(start, number):
    started = start()
    os.kill(started.process.pid, number)
    started.process.wait(5)
    started.assert_nothing_is_left()


def test_the_parent_while_its_workers_hang(start):
    """An environment that ignores everything, in a worker that waits for nobody."""
    started = start(env="HangsAtOnce")
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait(5)
    started.assert_nothing_is_left()


@pytest.mark.parametrize("then", ["raise ValueError()", "return", "__import__('os')._exit(3)", "pool.close(); return"])
def test_it_ends_by_itself(start, then):
    started = start(then=then)
    started.process.wait(5)
    started.assert_nothing_is_left()


def test_workers_ignore_the_signals_that_are_for_the_whole_group(start):
    """Ctrl-C reaches every process of the terminal: the parent decides, and may have something to save first."""
    started = start()
    for pid in started.workers:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    time.sleep(0.3)
    assert set(started.workers) <= set(started.alive())
    started.process.kill()
    started.process.wait(5)
    started.assert_nothing_is_left()
