"""How much memory this process may use: what the machine has left, and what its control group allows."""

from __future__ import annotations

from pathlib import Path

VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
SHARE = 0.8  # of what is available that a table may take: the learner and the environments need some, too


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the least of what the host has available and what this process's control groups leave; None: not known."""
    found = [limit for limit in (_host(root), *_groups(root)) if limit is not None]
    return min(found) if found else None


def check_fits(nbytes: int, *, what: str, remedy: str) -> None:
    """Refuse an allocation that would not fit into memory, before any of it is made."""
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
    """Return limit minus use of this process's control groups, and of those above them, in either cgroup version."""
    top = root / "sys/fs/cgroup"
    places = {(top, "memory.max", "memory.current"), (top / "memory", *VERSION_1)}  # as a container sees its own
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "memory" not in controllers.split(","):
            continue
        above, names = (top / "memory", VERSION_1) if controllers else (top, ("memory.max", "memory.current"))
        for part in Path(path.lstrip("/")).parts:
            above /= part
            places.add((above, *names))
    return [_left(at, limit, used) for at, limit, used in places]


def _left(group: Path, limit: str, used: str) -> int | None:
    """Return the bytes that a control group leaves, None without a limit; file cache counts as free: the kernel evicts it."""
    try:
        return max(0, int((group / limit).read_text()) - int((group / used).read_text()) + _cached(group))
    except (OSError, ValueError):  # "max": no limit
        return None


def _cached(group: Path) -> int:
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
