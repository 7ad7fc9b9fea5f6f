"""Shared memory: the arrays that a pool and its worker processes both see, in one anonymous mapping.

The memory has no name (`memfd_create`), so nothing can be left behind and the size of /dev/shm does not matter. It is
committed when it is made: if there is too little, that shows here and not as a SIGBUS in the middle of a run. Where
anonymous memory cannot be had, an unlinked file in /dev/shm takes its place, or one in the temporary directory.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import warnings
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from rookery import spaces
from rookery.trees import ArraySpec, tree_leaves, tree_map

ALIGN = 64  # a cache line
SHM = "/dev/shm"
POLL_SECONDS = 300e-6  # of looking at the memory again and again for what should come at once, before falling asleep

STEP, RESET, REBUILD = 0, 1, 2  # Board.order
FAILED, NOT_FINITE = 1, 2  # Board.failed


class NoSharedMemory(OSError):
    """There is too little memory to share with environment processes; the message says how much and what to do."""

    exit_code = 2


class Board(NamedTuple):
    """The arrays: all that the pool's process and its workers tell each other at each step. One row per environment."""

    observation: Any  # [N, ...] tree; written by workers, as are reward, terminated, truncated and first
    reward: Any
    terminated: Any
    truncated: Any
    first: Any
    action: Any  # [N, ...] tree, as the environments take it; written by the pool, as are want, order, incarnation and seed
    want: Any  # [N] int64: the ticket of the last request
    done: Any  # [N] int64: the ticket of the last answer that is whole. A worker writes it after everything else
    order: Any  # [N] uint8: what is asked for, STEP, RESET or REBUILD
    incarnation: Any  # [N] int64
    seed: Any  # [N] int64: of the reset that is ordered
    failed: Any  # [N] uint8: FAILED or NOT_FINITE where the answer is none; the reason is in the worker's mail
    steps: Any  # [N] int64: within the episode
    now: Any  # [N] int32: in row w, which environment worker w is stepping


def describe(observation: Space, action: Space, num_envs: int) -> Board:
    """Return the Board as ArraySpecs: a function of the spaces alone, so that every process computes the same."""
    N = num_envs
    row = lambda dtype: ArraySpec((N,), np.dtype(dtype))

    def rows(space: Space) -> Any:
        return spaces.map_space(lambda leaf: ArraySpec((N, *(leaf.shape or ())), np.dtype(leaf.dtype)), space)

    seen = tree_map(lambda spec: ArraySpec((N, *spec.shape), spec.dtype), spaces.array_specs(observation))
    flags = [row(bool) for _ in range(3)]
    kinds = ("int64", "int64", "uint8", "int64", "int64", "uint8", "int64", "int32")
    return Board._make([seen, row("float32"), *flags, rows(action), *map(row, kinds)])


def nbytes(board: Board) -> int:
    """Return the size of the mapping that holds a Board of ArraySpecs."""
    return sum(_room(spec) for spec in tree_leaves(board))


def attach(fd: int, board: Board) -> Board:
    """Map the memory that `allocate` made, as arrays. The mapping lives as long as one of them does."""
    memory, offset = np.frombuffer(mmap.mmap(fd, nbytes(board)), np.uint8), 0

    def view(spec: ArraySpec) -> np.ndarray:
        nonlocal offset
        array = memory[offset : offset + spec.nbytes].view(spec.dtype).reshape(spec.shape)
        offset += _room(spec)
        return array

    return tree_map(view, board)


def _room(spec: ArraySpec) -> int:
    return max(ALIGN, -(-spec.nbytes // ALIGN) * ALIGN)


# ------------------------------------------------------------------------------------------------- allocation


def allocate(size: int) -> int:
    """Return a file descriptor of `size` committed bytes that no path leads to."""
    free = available_bytes()
    if size > free:
        raise NoSharedMemory(
            errno.ENOMEM,
            f"the environments need {_mb(size)} of shared memory, but only {_mb(free)} are free: "
            "use fewer environments or smaller observations, or step them in process (--env-processes 0)",
        )
    try:
        return _committed(os.memfd_create("rookery", os.MFD_CLOEXEC), size)
    except (OSError, AttributeError):
        pass
    room = _room_in(SHM)
    if room >= size:
        return _committed(_unlinked(SHM), size)
    where = tempfile.gettempdir()
    warnings.warn(
        f"{SHM} has {_mb(room)} free, but the environments need {_mb(size)}: a file in {where} is used instead, which may be "
        f"slower. In a container, --shm-size={-(-size // 2**20) + 16}m gives more",
        stacklevel=3,
    )
    if _room_in(where) < size:
        raise NoSharedMemory(
            errno.ENOSPC,
            f"neither {SHM} ({_mb(room)} free) nor {where} ({_mb(_room_in(where))} free) has room for {_mb(size)} of shared "
            f"memory: start the container with --shm-size={-(-size // 2**20) + 16}m, or use --env-processes 0",
        )
    return _committed(_unlinked(where), size)


def available_bytes() -> int:
    """Return how much memory the machine and the control group still have."""
    free = [_meminfo("MemAvailable")]
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as a, open(f"/sys/fs/cgroup/{used}") as b:
                free.append(int(a.read()) - int(b.read()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return max(0, min(free))


def _meminfo(name: str) -> int:
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
    except (OSError, StopIteration):
        return 1 << 62


def _committed(fd: int, size: int) -> int:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unlinked(folder: str) -> int:
    fd, path = tempfile.mkstemp(prefix="rookery-", dir=folder)
    os.unlink(path)
    return fd


def _room_in(folder: str) -> int:
    try:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    except OSError:
        return 0


def _mb(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"
