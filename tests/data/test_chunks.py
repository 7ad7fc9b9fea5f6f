"""The chunk store: what is written is found again across chunks, and memory is given back exactly when nobody needs it."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.data import limiter
from rookery.data.chunks import INCARNATIONS, Full, Store
from rookery.data.items import ItemTable
from rookery.trees import ArraySpec

INT = ArraySpec((), np.dtype(np.int64))


def store(**options) -> Store:
    return Store({"x": INT}, **{"num_chunks": 20, "chunk_rows": 5, "num_lanes": 2} | options)


def numbers(stream: np.ndarray, step: np.ndarray, T: int) -> np.ndarray:
    """[T, B]: a number that tells stream and step."""
    return 1000 * stream + step + np.arange(T)[:, None]


def append(subject: Store, stream, step, T):
    stream, step = np.array(stream) * INCARNATIONS, np.array(step)
    wanted = numbers(stream, step, T)
    return subject.append(stream, step, {"x": wanted}, {"x": numbers(stream, step + T, 1)[0]}), wanted


def test_rows_and_what_follows_and_precedes_them_are_found_across_chunks():
    subject = store(ahead=12, behind=4)
    rows, values = [], []
    step = np.zeros(2, np.int64)
    for T in (3, 7, 1, 4, 6, 2):
        appended, wanted = append(subject, [3, 1], step, T)
        rows.append(appended.rows)
        values.append(wanted)
        np.testing.assert_array_equal(appended.length, step)
        step += T
    rows, values = np.concatenate(rows), np.concatenate(values)
    x = subject.columns["x"]
    np.testing.assert_array_equal(x[rows], values)
    np.testing.assert_array_equal(x[subject.sequence(rows[2], 13)], values[2:15])
    for k in range(5):
        np.testing.assert_array_equal(x[subject.later(rows[: -k or None], k)], values[k:])
        np.testing.assert_array_equal(x[subject.earlier(rows[k:], np.full(rows[k:].shape, k))], values[: len(values) - k])
    stream, at = subject.origin(rows[9])
    np.testing.assert_array_equal(1000 * stream + at, values[9])


def test_the_row_after_the_last_holds_what_is_known_of_it_already():
    subject = store()
    appended, _ = append(subject, [0, 1], [0, 0], 5)  # it lies in the next chunk
    after = subject.later(appended.rows[-1], 1)
    np.testing.assert_array_equal(subject.columns["x"][after], numbers(np.arange(2) * INCARNATIONS, np.array([5, 5]), 1)[0])


def test_a_lost_rollout_or_a_new_incarnation_starts_a_new_chain():
    subject = store()
    append(subject, [0, 1], [0, 0], 3)
    appended, wanted = append(subject, [0, 1], [3, 7], 4)
    np.testing.assert_array_equal(appended.length, [3, 0])
    np.testing.assert_array_equal(subject.columns["x"][appended.rows], wanted)
    stream = np.array([0, INCARNATIONS + 1])
    appended = subject.append(stream, np.array([7, 0]), {"x": numbers(stream, np.zeros(2, int), 2)}, {})
    np.testing.assert_array_equal(appended.length, [7, 0])
    assert subject.broken == 2


def test_chunks_are_free_again_only_when_no_item_can_reach_them():
    subject = store(num_chunks=8, chunk_rows=4, ahead=4, num_lanes=1)
    first, _ = append(subject, [0], [0], 12)
    subject.hold(first.rows[[1, 6], 0])
    assert subject.sweep() == 0  # 0-3 and 4-7 hold items, 8-11 may be reached, 12- is open
    subject.drop(first.rows[[1], 0])
    assert subject.sweep() == 1
    append(subject, [0], [12], 8)
    assert subject.sweep() == 1  # 12-15; 4-7 holds an item that reaches into 8-11, and items may yet start in 16-19
    subject.drop(first.rows[[6], 0])
    assert subject.sweep() == 2


def test_a_frame_stack_keeps_the_chunk_before_it():
    subject = store(num_chunks=8, chunk_rows=4, ahead=1, behind=3, num_lanes=1)
    appended, _ = append(subject, [0], [0], 20)
    subject.hold(appended.rows[[8], 0])
    assert subject.sweep() == 1  # 0-3: what starts at 8 looks back to 5, and ahead into 12-15
    assert subject.columns["x"][subject.earlier(appended.rows[8], np.array([3]))] == 5


def test_a_full_store_refuses_and_changes_nothing():
    subject = store(num_chunks=2, chunk_rows=4, num_lanes=1)
    appended, _ = append(subject, [0], [0], 6)
    before = subject.columns["x"].copy()
    with pytest.raises(Full):
        append(subject, [0], [6], 2)
    np.testing.assert_array_equal(subject.columns["x"], before)
    assert subject.shortage(appended.lanes, np.array([0]), np.array([6]), 2) == 1


def test_memory_of_overlapping_sequences_is_bounded_and_zero_after_a_reset():
    """10,000 steps, items of 80 rows every 40, at most 100 of them."""
    subject = Store({"x": INT}, num_chunks=400, chunk_rows=40, ahead=80, num_lanes=1)
    table = ItemTable(subject, max_size=100, limiter=limiter.min_size(1))
    starts: list[int] = []
    for step in range(0, 10_000, 40):
        appended, _ = append(subject, [0], [step], 40)
        starts.append(int(appended.rows[0, 0]))
        if len(starts) > 1:
            table.insert(np.array(starts[-2:-1]))
        subject.sweep()
        ideal = 40 * (len(table) + 1)
        assert subject.used_chunks * 40 <= ideal + 3 * 40  # one of them is the open one
    assert len(table) == 100
    table.evict(100)
    append(subject, [0], [0], 40)  # the chain is broken: nothing can start in the old one
    subject.sweep()
    assert subject.used_chunks <= 3


def test_a_snapshot_brings_everything_back():
    one, other = store(), store()
    appended, _ = append(one, [4, 2], [0, 0], 7)
    one.hold(appended.rows[:, 0])
    other.restore(one.snapshot())
    for subject in (one, other):
        more, _ = append(subject, [4, 2], [7, 7], 7)
        np.testing.assert_array_equal(more.length, [7, 7])
    np.testing.assert_array_equal(one.columns["x"], other.columns["x"])
    assert one.sweep() == other.sweep()
    with pytest.raises(ValueError, match="20 chunks"):
        store(num_chunks=21).restore(one.snapshot())


def test_a_lane_that_is_begun_anew_again_and_again_still_gives_its_chunks_back():
    subject = store(num_chunks=40, num_lanes=1, ahead=1)
    kept = append(subject, [0], [0], 3)[0].rows[0]  # an item in the first chain stays for long
    subject.hold(kept)
    for number in range(1, 11):
        stream = np.array([number])  # another incarnation of the same environment
        subject.append(stream, np.array([0]), {"x": np.zeros((3, 1), np.int64)}, {})
        subject.sweep()
        assert subject.used_chunks == 2, f"the open chunk and the one that is held, after {number} incarnations"
    subject.drop(kept)
    assert subject.sweep() == 1
