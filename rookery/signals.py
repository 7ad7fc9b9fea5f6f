"""What SIGINT, SIGTERM and SIGHUP mean to the `rookery` command, to its processes and to `rookery.train`: decided here alone.

    the command has begun       there is nothing to save: it leaves at once
    inside `Saving(run)`        the run is told to stop; it saves and ends by itself. After GRACE_SECONDS, or at a second
                                signal, the command leaves with the checkpoint that is there
    a process of a run          never leaves by itself: the command decides, and ends it

Nothing is raised, whatever the main thread is at: an exception in the middle of an import or of a call that XLA makes ends in a
traceback, or in a crash. The kernel's handler writes the number into a pipe, which a thread reads; so a signal is
answered even while the main thread hangs. What was ignored when the command began (`nohup`, a shell's `&`) stays ignored.

Imported before anything else, so it imports nothing that takes time. A status after a signal is 128 + its number.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Saved(Protocol):
        """A run that can be told to end; both are called by another thread than the one it runs in."""

        def interrupt(self, name: str) -> bool:
            """Ask it to save and end soon; False where it has nothing that is not saved."""
            ...

        def leave(self, name: str) -> str:
            """Write how it ended, without waiting for what it is at; return a sentence on what is left of it."""
            ...


NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 14.0  # for a run to save and end; with the next, less than the 20 that are promised
LAST_SECONDS = 3.0  # to write how it ended, and to end what would outlive this process
ONE_SECONDS = 0.3  # signals closer than that are one: `timeout` sends each to its child and to its child's group


class Interrupted(Exception):
    """Raised by work that looked whether it is still wanted, and was not: nothing of it is kept."""


class _Watch:
    """The command's state, between the thread that listens and the one that works."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the first signal
        self.run: Saved | None = None
        self.leaving = False
        self.before: dict[int, Any] = {}
        self.writer = -1
        self.farewells: list[Callable[[], None]] = []


_watch = _Watch()


def watch() -> None:
    """Take the signals from here on; in the main thread, as the first thing that a command does."""
    global _watch
    unwatch()
    _watch = mine = _Watch()
    reader, mine.writer = os.pipe()
    os.set_blocking(mine.writer, False)
    signal.set_wakeup_fd(mine.writer, warn_on_full_buffer=False)
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            mine.before[number] = signal.signal(number, _wake)
    _thread.start_new_thread(_listen, (mine, reader))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)  # what whoever started this process held back comes now


def unwatch() -> None:
    """Give the signals back to whoever had them; for programs that call the command as a function."""
    if _watch.writer >= 0:
        signal.set_wakeup_fd(-1)
        for number, handler in _watch.before.items():
            signal.signal(number, handler)
        os.close(_watch.writer)
        _watch.writer = -1


def received() -> int | None:
    """Return the first signal since the command began; None where none came."""
    return _watch.number


class Saving:
    """While a run is driven: signals are its to answer, until its time is over."""

    def __init__(self, run: Saved) -> None:
        self._run = run

    def __enter__(self) -> None:
        _watch.run = self._run

    def __exit__(self, *error: object) -> None:
        hold()
        _watch.run = None


def hold() -> None:
    """Block for good where the command is being left: the status is that of the signal, not of what came of leaving."""
    while _watch.leaving:
        time.sleep(1)


def before_leaving(farewell: Callable[[], None]) -> None:
    """Register a call that ends what would outlive a process which leaves at once."""
    _watch.farewells.append(farewell)


def _wake(number: int, frame: Any) -> None:
    """Do nothing: the kernel's handler has written to the pipe."""


def _listen(mine: _Watch, reader: int) -> None:
    first = 0.0
    while True:
        patience = None if mine.number is None else max(0.0, first + GRACE_SECONDS - time.monotonic())
        if not select.select([reader], [], [], patience)[0]:
            _leave(mine, mine.number or 0, mine.run)
        told = os.read(reader, 64)
        if not told:  # closed by `unwatch`
            os.close(reader)
            return
        for number in told:
            if number not in mine.before:
                continue
            if mine.number is None:
                mine.number, first = number, time.monotonic()
                if mine.run is None or not mine.run.interrupt(_name(number)):
                    _leave(mine, number, mine.run)
            elif time.monotonic() - first > ONE_SECONDS:
                _leave(mine, number, None)


def _leave(mine: _Watch, number: int, run: Saved | None) -> None:
    """End this process within LAST_SECONDS, whatever its threads are at; what they hold is not waited for."""
    mine.leaving = True
    left: list[str] = []
    tasks = [_ThreadCall(farewell) for farewell in mine.farewells]
    if run is not None:
        tasks.append(_ThreadCall(lambda: left.append(f": {run.leave(_name(number))}")))
    deadline = time.monotonic() + LAST_SECONDS
    for task in tasks:
        task.wait(deadline - time.monotonic())
    _ThreadCall(lambda: _say(number, "".join(left))).wait(0.5)  # a reader that has stopped would hold it up
    os._exit(128 + number)


class _ThreadCall:
    """A call in a thread of its own, without the modules that the main thread may just be importing."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call, self._running = call, _thread.allocate_lock()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._call()
        except BaseException:  # it was the last attempt
            pass
        finally:
            self._running.release()

    def wait(self, seconds: float) -> None:
        self._running.acquire(timeout=max(0.0, seconds))


def _say(number: int, more: str) -> None:
    """Write one line, past every buffer and lock; give a terminal its cursor back."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{cursor}rookery: stopped by {_name(number)}{more}\n".encode())


def _name(number: int) -> str:
    return signal.Signals(number).name


# ------------------------------------------------------------------------------------------------- in a program


class Interruptible:
    """While a program of the user's drives a run: the first SIGINT asks it to save and end, the next is Python's again.

    Only where SIGINT is Python's, in the main thread; elsewhere whoever took it answers. `came`: whether there was one.
    """

    def __init__(self, run: Saved) -> None:
        self._run, self._mine, self.came = run, False, False

    def __enter__(self) -> Interruptible:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, self._answer)
                self._mine = True
            except ValueError:  # not the main thread
                pass
        return self

    def _answer(self, number: int, frame: Any) -> None:
        self._give_back()
        if not self._run.interrupt(_name(number)):  # there is nothing to save
            raise KeyboardInterrupt
        self.came = True

    def _give_back(self) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._mine = False

    def __exit__(self, *error: object) -> None:
        self._give_back()


# -------------------------------------------------------------------------------------------- processes of a run


class Shielded:
    """While a process is started: it is born with the signals held back, until it has come to `watch` or `ignore`.

    A terminal's Ctrl-C goes to all of its processes, and an interpreter that is just starting would end with a traceback.
    """

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def __exit__(self, *error: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def ignore() -> None:
    """Ignore the signals, in a process of a run: its owner decides, who may have something to save first."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
