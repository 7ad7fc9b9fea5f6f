"""Rows copied out of columns and into them. A large copy is shared with a second thread: one core alone cannot use all of the
memory's bandwidth. Both take the next piece until none is left, so where the second core has other work, nobody waits for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LARGE_BYTES, PIECE_BYTES = 2 << 20, 1 << 20


def take(column: np.ndarray, rows: np.ndarray, to: np.ndarray) -> None:
    """Copy rows of column [N, ...] into `to`, whose first axes are those of rows. `clip` writes straight into it."""
    rows, to = rows.reshape(-1), to.reshape(-1, *column.shape[1:])
    _shared(lambda piece: column.take(rows[piece], axis=0, out=to[piece], mode="clip"), len(rows), to.nbytes)


def put(column: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Copy values, whose first axes are those of rows, into rows of column [N, ...]; no row stands there twice."""

    def copy(piece: slice) -> None:
        column[rows[piece]] = values[piece]

    _shared(copy, len(rows), values.nbytes)


def _shared(copy: Callable[[slice], object], count: int, nbytes: int) -> None:
    """Run `copy` on slices that cover `count` entries, in two threads where they are many bytes."""
    if nbytes < LARGE_BYTES:
        copy(slice(None))
        return
    size = max(1, count * PIECE_BYTES // nbytes)
    pieces = iter([slice(begin, begin + size) for begin in range(0, count, size)])

    def some() -> None:
        for piece in pieces:
            copy(piece)

    helper = _helper().submit(some)
    try:
        some()
    finally:  # also after an error: nobody writes any more when this returns
        if not helper.cancel():  # it had begun: what it holds is its last piece
            helper.result()


@functools.cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "copies")


os.register_at_fork(after_in_child=_helper.cache_clear)  # threads stay behind
