"""Measure the resident memory of processes: this one, its descendants, a worker."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 where it is gone. Pages that it shares with others count in each."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they did."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("[0-9]*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except (OSError, ValueError):
                continue
            found += children
            todo += children
    return found


def sizes_mb() -> dict[str, float]:
    """Return `rss_mb`, of this process and all its descendants; `rss_mb/driver`, of this one; `rss_mb/PID`, of each other."""
    sizes = {"rss_mb/driver": resident_mb(os.getpid())}
    sizes |= {f"rss_mb/{pid}": size for pid in descendants(os.getpid()) if (size := resident_mb(pid))}
    return {"rss_mb": sum(sizes.values())} | sizes
