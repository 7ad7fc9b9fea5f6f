"""Tables: what goes in, what comes out, who is removed, whose priorities count."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.data import limiter
from rookery.data.chunks import Store
from rookery.data.items import ItemTable, Mixture, importance_weights
from rookery.trees import ArraySpec


def store() -> Store:
    return Store({"x": ArraySpec((), np.dtype(np.int64))}, num_chunks=100, chunk_rows=10)


def table(max_size: int = 8, **options) -> ItemTable:
    return ItemTable(store(), **{"max_size": max_size, "limiter": limiter.min_size(1)} | options)


def each_once(capacity: int) -> limiter.Limiter:
    """At most so many items wait, and each is sampled once."""
    return limiter.Limiter(samples_per_insert=1.0, min_size=1, min_diff=0.0, max_diff=float(capacity))


def rows_in(subject: ItemTable) -> list[int]:
    return sorted(subject._row[subject._live].tolist())


def test_a_queue_gives_each_item_once_in_order_and_holds_no_more_than_its_limit():
    subject = table(5, selector="fifo", max_times_sampled=1, limiter=each_once(5))
    given, taken, random = 0, [], np.random.default_rng(0)
    while len(taken) < 200:
        count = int(random.integers(1, 4))
        if random.random() < 0.5 and subject.limiter.can_insert(count):
            subject.insert(np.arange(given, given + count))
            given += count
        elif (sample := subject.sample(count)) is not None:
            taken += sample.rows.tolist()
        assert len(subject) == given - len(taken) <= 5
    assert taken == [*range(len(taken))]


def test_a_stack_gives_the_newest_first():
    subject = table(selector="lifo", remover="lifo", max_times_sampled=1, limiter=each_once(8))
    subject.insert(np.arange(4))
    assert subject.sample(2).rows.tolist() == [3, 2]
    subject.insert(np.arange(7, 9))
    assert subject.sample(4).rows.tolist() == [8, 7, 1, 0]
    assert subject.sample(1) is None


def test_an_item_goes_when_it_was_sampled_often_enough():
    subject = table(selector="uniform", max_times_sampled=3)
    subject.insert(np.arange(8))
    drawn = np.concatenate([subject.sample(6).rows for _ in range(4)])
    assert np.bincount(drawn).tolist() == [3] * 8
    assert len(subject) == 0 and subject.sample(1) is None
    assert subject.store._items.sum() == 0


@pytest.mark.parametrize("remover, left", [("fifo", [2, 3, 4, 5]), ("lifo", [0, 1, 2, 5]), ("min_heap", [0, 2, 4, 5])])
def test_the_remover_chooses_who_goes_when_the_table_is_full(remover, left):
    subject = table(4, remover=remover)
    for row, priority in enumerate((5.0, 1.0, 4.0, 2.0, 3.0, 3.5)):
        subject.insert(np.array([row]), np.array([priority]))
    assert rows_in(subject) == left
    assert subject.limiter.deletes == 2


def test_a_prioritized_remover_prefers_the_low():
    gone = np.zeros(4)
    for seed in range(400):
        subject = table(4, remover="prioritized", remover_exponent=-1.0, seed=seed)
        subject.insert(np.arange(4), np.array([1.0, 2.0, 4.0, 8.0]))
        subject.evict(1)
        gone[[row for row in range(4) if row not in rows_in(subject)]] += 1
    expected = 400 * np.array([8, 4, 2, 1]) / 15
    assert (abs(gone - expected) < 4 * np.sqrt(expected)).all()


def test_priorities_of_items_that_are_gone_are_ignored():
    subject = table(4, selector="max_heap")
    keys = subject.insert(np.arange(4), np.ones(4))
    subject.insert(np.array([4]), np.ones(1))  # row 0 went; its slot holds row 4 now
    assert subject.update(keys[:2], np.array([9.0, 5.0])) == 1
    assert subject.ignored_updates == 1
    assert subject.sample(1).rows.tolist() == [1]


def test_a_key_given_twice_keeps_its_last_priority_in_selector_and_remover():
    subject = table(4, selector="max_heap", remover="min_heap")
    keys = subject.insert(np.arange(3), np.array([1.0, 2.0, 3.0]))
    subject.update(keys[[0, 0, 1]], np.array([9.0, 0.5, 0.7]))
    assert subject.sample(1).rows.tolist() == [2]
    subject.evict(1)
    assert rows_in(subject) == [1, 2]


def test_new_items_enter_with_the_highest_priority_ever_seen():
    subject = table(selector="max_heap")
    keys = subject.insert(np.arange(2))
    subject.update(keys, np.array([7.0, 0.1]))
    subject.update(keys, np.array([0.2, 0.1]))
    subject.insert(np.array([5]))
    assert subject.sample(1).rows.tolist() == [5]
    assert subject.max_priority == 7.0


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_priorities_that_cannot_be_are_refused(bad):
    subject = table()
    keys = subject.insert(np.arange(2))
    with pytest.raises(ValueError, match="priority"):
        subject.update(keys, np.array([1.0, bad]))


def test_importance_weights_make_the_weighted_mean_that_of_a_uniform_draw():
    subject = table(selector="prioritized", exponent=1.0)
    values = np.array([1.0, -3.0, 5.0, 2.0])
    subject.insert(np.arange(4), np.array([1.0, 2.0, 3.0, 10.0]))
    sample = subject.sample(4000)
    weights = importance_weights(sample, beta=1.0)
    assert weights.max() == 1.0
    assert abs((weights * values[sample.rows]).sum() / weights.sum() - values.mean()) < 0.1
    np.testing.assert_array_equal(importance_weights(sample, beta=0.0), 1.0)


@pytest.mark.parametrize("selector", ["uniform", "prioritized", "fifo"])
def test_a_restored_table_draws_what_the_saved_one_draws(selector):
    random = np.random.default_rng(0)
    one = table(20, selector=selector, remover="prioritized", seed=4)
    for step in range(30):
        keys = one.insert(np.arange(3 * step, 3 * step + 3))
        one.sample(4)
        one.update(keys, random.random(3))
    one.metrics()  # what is told since then is no part of a snapshot
    other = table(20, selector=selector, remover="prioritized", seed=5)
    other.store.restore(one.store.snapshot())
    other.restore(one.snapshot())
    for step in range(30, 40):
        for subject in (one, other):
            subject.insert(np.arange(3 * step, 3 * step + 3), np.full(3, 0.1 * step))
        mine, theirs = one.sample(7), other.sample(7)
        for a, b in zip(mine, theirs):
            np.testing.assert_array_equal(a, b)
    assert one.limiter == other.limiter and one.metrics() == other.metrics()
    with pytest.raises(ValueError, match="max_size 20"):
        table(21).restore(one.snapshot())


def test_two_tables_share_a_store_and_a_mixture_samples_both_in_proportion():
    shared = store()
    agent = ItemTable(shared, max_size=50, limiter=limiter.min_size(5), selector="prioritized")
    demos = ItemTable(shared, max_size=50, limiter=limiter.min_size(1), selector="prioritized", seed=1)
    mixture = Mixture([agent, demos], [0.75, 0.25])
    rows = np.arange(20)
    agent.insert(rows[:10])
    assert mixture.sample(16) is None  # the demonstrations are missing
    keys = demos.insert(rows[8:20])
    assert shared._items.sum() == 22
    drawn = [mixture.sample(64) for _ in range(200)]
    share = mixture.drawn / mixture.drawn.sum()
    assert mixture.drawn.sum() == 200 * 64
    assert abs(share[1] - 0.25) < 3 * np.sqrt(0.25 * 0.75 / (200 * 64))
    last = drawn[-1]
    assert mixture.update(last.keys, np.full(64, 0.5)) == 64
    assert demos.update(keys, np.ones(12)) == 12
    assert set(last.sizes.tolist()) == {10, 12}
    agent.evict(10)
    assert shared._items.sum() == 12
    with pytest.raises(ValueError, match="add up to 1"):
        Mixture([agent, demos], [0.5, 0.6])


def test_metrics_tell_reuse_and_the_ratio():
    subject = table(10)
    subject.insert(np.arange(3))
    subject.sample(6)
    metrics = subject.metrics()
    assert metrics["size"] == 3 and metrics["samples"] == 6 and metrics["samples_per_insert"] == 3.0
    assert 1.0 <= metrics["reuse"] <= 6.0 and metrics["age"] == 3.0
