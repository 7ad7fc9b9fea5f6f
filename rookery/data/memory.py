"""How much memory this process may use: what the machine has left, and what its control group allows."""

from __future__ import annotations

from pathlib import Path

SHARE = 0.8  # of what is available that a table may take: the learner and the environments need some, too


def available_bytes(root: Path = Path("/")) -> int | None:
    """The least of what the host has available and what the control groups of this process leave; None: not known."""
    found = [limit for limit in (_host(root), *_groups(root)) if limit is not None]
    return min(found) if found else None


def check_fits(nbytes: int, *, what: str, remedy: str) -> None:
    """Refuses what would not fit into memory, before any of it is allocated."""
    available = available_bytes()
    if available is not None and nbytes > SHARE * available:
        raise ValueError(
            f"{what} needs {nbytes / 1e9:.1f} GB of memory, and {SHARE:.0%} of the {available / 1e9:.1f} GB that are available "
            f"here is {SHARE * available / 1e9:.1f} GB: {remedy}"
        )


def _host(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _groups(root: Path) -> list[int | None]:
    """Limit minus use, for version 2 and version 1 of control groups, as seen from the top of this namespace."""
    group = root / "sys/fs/cgroup"
    places = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    own = [group]
    try:
        path = next(line for line in (root / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        own.append(group / path[3:].lstrip("/"))
    except (OSError, StopIteration):
        pass
    return [_left(at / limit, at / used) for at in own for limit, used in places]


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # "max": no limit
        return None
