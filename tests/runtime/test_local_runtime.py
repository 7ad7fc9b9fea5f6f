"""The local runtime: threads that run calls in order, say what went wrong and end when told to."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from rookery.runtime.local import LocalRuntime


class Worker:
    """Records what it is asked; `block` holds its thread until `gate` opens."""

    def __init__(self, label: str = "") -> None:
        self.label, self.log, self.closed = label, [], 0  # type: str, list[object], int
        self.gate, self.entered = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def note(self, value: object) -> object:
        self.thread = threading.current_thread()
        self.log.append(value)
        return value

    def block(self) -> str:
        self.entered.set()
        assert self.gate.wait(10)
        return "released"

    def fail(self, error: BaseException) -> None:
        raise error

    def me(self) -> Worker:
        return self

    def close(self) -> None:
        self.closed += 1


class Other:
    def no_such_method(self) -> None: ...


class Weakly:
    """Something big that a call carries."""


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    before = set(threading.enumerate())
    runtime = LocalRuntime(drain_seconds=5.0)
    yield runtime
    runtime.close()
    assert set(threading.enumerate()) <= before, "a thread is left"


def test_calls_to_a_worker_run_in_their_order_in_one_thread_of_its_own(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="w")
    futures = [handle.call(Worker.note, i) for i in range(200)]
    assert [future.result(5) for future in futures] == list(range(200))
    worker = handle.now(Worker.me)
    assert worker.log == list(range(200))
    assert worker.thread is not threading.main_thread() and worker.thread.name == "w"


def test_workers_do_not_wait_for_each_other(runtime: LocalRuntime) -> None:
    slow, quick = runtime.spawn(Worker, name="slow"), runtime.spawn(Worker, name="quick")
    held = slow.call(Worker.block)
    assert quick.call(Worker.note, 1).result(5) == 1 and not held.done()
    slow.now(Worker.me).gate.set()
    assert held.result(5) == "released"


def test_now_runs_at_once_beside_a_call_that_is_running(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="w")
    held = handle.call(Worker.block)
    worker = handle.now(Worker.me)
    assert worker.entered.wait(5)
    assert handle.now(Worker.note, "published") == "published" and not held.done()
    assert worker.thread is threading.current_thread()
    worker.gate.set()
    held.result(5)


def test_an_exception_travels_to_the_caller_and_the_worker_lives_on(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="w")
    for error in (ValueError("wrong"), KeyboardInterrupt(), SystemExit(3)):
        future = handle.call(Worker.fail, error)
        with pytest.raises(type(error)) as caught:
            future.result(5)
        assert caught.value is error
        assert "fail" in [entry.name for entry in caught.traceback], "the place in the worker is in the traceback"
    with pytest.raises(AttributeError):
        handle.call(Other.no_such_method).result(5)
    assert handle.call(Worker.note, "alive").result(5) == "alive"


def test_what_runs_is_the_method_of_that_name_of_the_worker_that_lives_there(runtime: LocalRuntime) -> None:
    class Standing:
        """In the place of a Worker, with its face."""

        def note(self, value: object) -> object:
            return "noted", value

        def close(self) -> None: ...

    handle = runtime.spawn(Standing, name="w")
    assert handle.call(Worker.note, 1).result(5) == handle.now(Worker.note, value=1) == ("noted", 1)  # type: ignore[arg-type]
    assert handle.call(Standing.note, value=2).result(5) == handle.keep(Standing.note, value=2).result(5) == ("noted", 2)
    for ask in (handle.call, handle.now, handle.keep, handle.fill):
        with pytest.raises(AttributeError, match="__name__"):
            ask("note", 1)  # type: ignore[arg-type]


def test_a_worker_that_cannot_be_made_answers_every_call_with_the_reason(runtime: LocalRuntime) -> None:
    def broken() -> Worker:
        raise OSError("no such environment")

    handle = runtime.spawn(broken, name="w")
    for _ in range(2):
        with pytest.raises(OSError, match="no such environment"):
            handle.call(Worker.note, 1).result(5)
        with pytest.raises(OSError, match="no such environment"):
            handle.now(Worker.note, 1)


def test_wait_returns_what_is_ready_in_the_order_asked_and_leaves_the_rest(runtime: LocalRuntime) -> None:
    slow, quick = runtime.spawn(Worker, name="slow"), runtime.spawn(Worker, name="quick")
    held, one, two = slow.call(Worker.block), quick.call(Worker.note, 1), quick.call(Worker.note, 2)
    two.result(5)
    ready, pending = runtime.wait([two, held, one], 5)
    assert ready == [two, one] and pending == [held]
    begin = time.monotonic()
    assert runtime.wait([held], 0.05) == ([], [held])
    assert 0.04 <= time.monotonic() - begin < 2
    slow.now(Worker.me).gate.set()
    assert runtime.wait([held], 5) == ([held], [])


def test_closing_cancels_the_calls_that_have_not_started_and_ends_the_one_that_has(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="w")
    held = handle.call(Worker.block)
    worker = handle.now(Worker.me)
    assert worker.entered.wait(5)
    queued = [handle.call(Worker.note, i) for i in range(3)]
    threading.Timer(0.1, worker.gate.set).start()
    runtime.close()
    assert held.result(0) == "released" and worker.closed == 1 and worker.log == []
    for future in queued:
        assert future.cancelled()
        with pytest.raises(CancelledError):
            future.result(0)
    assert runtime.wait(queued, 0.5)[0] == queued, "whoever waits for a cancelled call is woken"
    assert runtime.abandoned == []


def test_a_call_to_a_worker_that_was_closed_is_refused_and_never_waits_for_ever(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="collector-3")
    runtime.close()
    with pytest.raises(RuntimeError, match="collector-3"):
        handle.call(Worker.note, 1).result(1)


def test_closing_twice_does_no_harm_even_when_the_first_was_interrupted(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = runtime.spawn(Worker, name="w")
    held = handle.call(Worker.block)
    worker = handle.now(Worker.me)
    assert worker.entered.wait(5)
    with monkeypatch.context() as patch:  # Ctrl-C while the threads are joined
        patch.setattr(type(handle), "join", lambda self, timeout: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            runtime.close()
    threading.Timer(0.1, worker.gate.set).start()
    runtime.close()
    runtime.close()
    assert held.result(0) == "released" and worker.closed == 1


def test_a_thread_that_does_not_end_in_time_is_named_and_the_others_still_close() -> None:
    runtime = LocalRuntime(drain_seconds=0.2)
    stuck, free = runtime.spawn(Worker, name="stuck-one"), runtime.spawn(Worker, name="free-one")
    held = stuck.call(Worker.block)
    worker, other = stuck.now(Worker.me), free.now(Worker.me)
    assert worker.entered.wait(5)
    begin = time.monotonic()
    runtime.close()
    assert 0.15 <= time.monotonic() - begin < 2.0
    assert runtime.abandoned == ["stuck-one"] and other.closed == 1 and worker.closed == 0
    worker.gate.set()
    assert held.result(5) == "released"
    assert stuck.join(5) and worker.closed == 1, "it closes its worker when it comes back after all"


def test_an_idle_worker_holds_on_to_nothing_of_the_last_call(runtime: LocalRuntime) -> None:
    handle = runtime.spawn(Worker, name="w")
    worker = handle.now(Worker.me)

    def ask() -> tuple[weakref.ref, weakref.ref]:
        big = Weakly()
        future: Future = handle.call(Worker.note, big)
        future.result(5)
        worker.log.clear()
        return weakref.ref(big), weakref.ref(future)

    big, future = ask()
    deadline = time.monotonic() + 2
    while (big() or future()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert big() is None and future() is None


def test_nothing_listens(runtime: LocalRuntime) -> None:
    def sockets() -> set[str]:
        """This process's own: what it holds open, whoever else is on the machine."""
        mine = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
        return {name for name in mine if name.startswith("socket:")}

    def listening() -> set[str]:
        lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()]
        return {f"socket:[{line[9]}]" for line in lines if line[3] == "0A"} & sockets()

    before = sockets(), listening()
    handles = [runtime.spawn(Worker, name=f"w{i}") for i in range(3)]
    assert [handle.call(Worker.note, 1).result(5) for handle in handles] == [1, 1, 1]
    assert (sockets(), listening()) == before
