"""Copies of rows: the same, whether one thread makes them or two."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from rookery.data import copies

ROWS = {"few": 3, "just below a piece": 1023, "many": 3000}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def column(rng):
    return rng.integers(0, 255, (5000, 1024), np.uint8)  # a thousand rows are a piece


@pytest.mark.parametrize("count", ROWS.values(), ids=ROWS)
def test_rows_are_taken_and_put_back_in_their_order(column, count, rng):
    rows = rng.permutation(5000)[: count // 3 * 3].reshape(3, -1)
    to = np.zeros((*rows.shape, 1024), np.uint8)
    copies.take(column, rows, to)
    np.testing.assert_array_equal(to, column[rows])
    changed, expected = column.copy(), column.copy()
    expected[rows] = to + 1
    copies.put(changed, rows, to + 1)
    np.testing.assert_array_equal(changed, expected)


def test_a_large_copy_is_made_by_two_threads_and_a_small_one_by_the_caller():
    seen, both = set(), threading.Barrier(2)

    def copy(piece):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            if piece != slice(None):
                both.wait(30)  # neither can do all of it before the other has come

    copies._shared(copy, 100, copies.LARGE_BYTES - 1)
    assert seen == {threading.get_ident()}
    seen.clear()
    copies._shared(copy, 100, 100 * copies.PIECE_BYTES)
    assert len(seen) == 2


def test_nobody_waits_for_a_helper_that_has_other_work():
    """Two copies at once have one helper: the second is made by its caller alone, while the helper is held by the first."""
    held, go = threading.Event(), threading.Event()
    busy = copies._helper().submit(lambda: (held.set(), go.wait(30)))
    held.wait(30)
    done = []
    copies._shared(done.append, 4, 4 * copies.PIECE_BYTES)
    assert len(done) == 4 and not busy.done()
    go.set()


def test_what_goes_wrong_in_either_thread_reaches_the_caller(column):
    with pytest.raises(IndexError):
        copies.put(column, np.arange(3000, 6000), np.zeros((3000, 1024), np.uint8))


FORKED = """
import os, numpy as np
from rookery.data import copies
column = np.ones((5000, 1024), np.uint8)
copies.take(column, np.arange(5000), np.empty_like(column))
child = os.fork()
if not child:
    os._exit(copies._helper().submit(int).result(10))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_a_helper_of_its_own():
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=60).returncode == 0
