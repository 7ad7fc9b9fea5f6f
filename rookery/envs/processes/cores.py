"""Count the cores that this process may use: by its affinity, and by the quota of its control group and of those above it."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(*, proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores there are for us, at least 1. A container with `--cpus 2` on a machine of 64 cores has 2."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([mine, *_quotas(proc, mount)])))


def _quotas(proc: Path, mount: Path) -> list[float]:
    """Return the cores granted by each control group on the way from ours to the root."""
    found = []
    for line in _read(proc).splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0":  # version 2: one hierarchy
            roots, read = [mount], _quota_v2
        elif "cpu" in controllers.split(","):
            roots, read = [mount / controllers, mount / "cpu"], _quota_v1
        else:
            continue
        for root in roots:
            group = root / path.lstrip("/")
            # Inside a container the path is that of the host, and the mount shows only our own part of it.
            found += [quota for where in (group, *group.parents) if where == root or root in where.parents
                      if (quota := read(where)) is not None]  # fmt: skip
    return found


def _quota_v2(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _quota_v1(group: Path) -> float | None:
    quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
