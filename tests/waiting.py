"""Waiting in tests, and never for ever: for a driver to come so far, and for something to become true."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from rookery.topologies.job import Progress


def until(driver: Iterator[Progress], condition: Callable[[Progress], bool], seconds: float = 90.0) -> Progress:
    """Drives until this is true of its progress."""
    deadline = time.monotonic() + seconds
    for progress in driver:
        if condition(progress):
            return progress
        stands = f"{progress.updates} updates, {progress.workers}, {progress.report}"
        assert time.monotonic() < deadline, f"not after {seconds:g} s: {stands}"
    raise AssertionError("the driver has ended")


def until_updates(driver: Iterator[Progress], updates: int) -> Progress:
    return until(driver, lambda progress: progress.updates >= updates)


def wait_for(what: Callable[[], Any], seconds: float = 90.0, *, program: subprocess.Popen | None = None) -> Any:
    """-> what it finds. With a program, only for as long as that runs."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert program is None or program.poll() is None, program.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found
