"""A worker in a process of its own answers, raises, is lost and ends as the interface says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rookery.runtime.interface import WorkerLost
from rookery.runtime.local import LocalRuntime

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")
        self.two = two


class Worker:
    def __init__(self, start: int) -> None:
        self._sum, self._closed = start, False

    def add(self, *arrays: Any) -> tuple[int, list[Any]]:
        self._sum += int(sum(array.sum() for array in arrays))
        return self._sum, [2 * array for array in arrays]

    def fail(self) -> None:
        raise Odd(1, 2)

    def say(self, words: str) -> None:
        os.write(2, words.encode())

    def sleep(self) -> None:
        time.sleep(60)

    def close(self) -> None:
        pass


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    runtime = LocalRuntime(apart={"far": 1})
    yield runtime
    runtime.close()
    assert not runtime.abandoned


def test_arrays_of_any_stride_go_there_and_come_back_as_the_callers_own(runtime: LocalRuntime) -> None:
    far = runtime.spawn(Worker, 5, name="far-0", role="far")
    assert far.ready.result(60) is None and far._worker.pid != os.getpid()
    large = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    total, (strided, tiny, empty) = far.call(Worker.add, large[:, 10:90:2], np.ones(3, np.int64), np.zeros((0, 4))).result(60)
    assert total == 5 + int(large[:, 10:90:2].sum()) + 3
    np.testing.assert_array_equal(strided, 2 * large[:, 10:90:2])
    assert tiny.dtype == np.int64 and empty.shape == (0, 4)
    again = far.call(Worker.add, np.full((300, 300), 7.0)).result(60)[1][0]  # larger: the mapping grows
    np.testing.assert_array_equal(strided, 2 * large[:, 10:90:2], err_msg="an answer is not overwritten by the next")
    assert again.shape == (300, 300) and (again == 14).all()


def test_what_it_raises_comes_out_as_it_was_raised_and_it_lives_on(runtime: LocalRuntime) -> None:
    far = runtime.spawn(Worker, 0, name="far-0", role="far")
    with pytest.raises(Odd, match="1 2") as error:
        far.call(Worker.fail).result(60)
    assert error.value.two == 2 and "in far-0" in error.value.__notes__[0]
    assert far.call(Worker.add, np.ones(1)).result(60)[0] == 1


def test_one_that_is_killed_is_lost_at_once_with_its_last_words(runtime: LocalRuntime) -> None:
    far = runtime.spawn(Worker, 0, name="far-0", role="far")
    far.call(Worker.say, words="farewell").result(60)
    future = far.call(Worker.sleep)
    time.sleep(0.1)
    os.kill(far._worker.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match=r"far-0 is gone: it was killed by SIGKILL\. Its last words: farewell"):
        future.result(60)
    assert time.monotonic() - begin < 10


def test_it_ends_with_its_runtime_even_in_the_middle_of_a_call() -> None:
    runtime = LocalRuntime(apart={"far": 1}, drain_seconds=0.5)
    far = runtime.spawn(Worker, 0, name="far-0", role="far")
    far.ready.result(60)
    far.call(Worker.sleep)
    pid = far._worker.pid
    runtime.close()
    assert not Path(f"/proc/{pid}").exists() and not runtime.abandoned
    with pytest.raises(RuntimeError, match="after its runtime was closed"):
        runtime.spawn(Worker, 0, name="far-1", role="far")


PARENT = """
import time
from rookery.runtime.local import LocalRuntime
import queue
runtime = LocalRuntime(apart={"far": 1})
far = runtime.spawn(queue.Queue, name="far", role="far")
far.ready.result()
far.call(queue.Queue.get)  # for ever
print(far._worker.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_parent_even_in_the_middle_of_a_call() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    """A zombie has ended; who reaps an orphan is not our business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
