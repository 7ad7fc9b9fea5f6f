"""Selectors choose as they say: distributions by chi-square, order exactly, the sum tree against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.data import selectors
from rookery.data.tree import Tree

CAPACITY = 64


def churned(kind: str, rounds: int = 400, seed: int = 0, **options: float):
    """A selector after many inserts, updates and removals in bulk, and the priorities of what is in it."""
    subject, random = selectors.make(kind, CAPACITY, **options), np.random.default_rng(seed)
    there: dict[int, float] = {}
    order: list[int] = []
    for _ in range(rounds):
        free = [slot for slot in range(CAPACITY) if slot not in there]
        new = random.permutation(free)[: random.integers(0, 9)].astype(np.int64)
        given = random.random(len(new)) * 3
        subject.insert(new, given)
        there |= dict(zip(new.tolist(), given.tolist()))
        order += new.tolist()
        some = random.permutation([*there])[: random.integers(0, 9)].astype(np.int64)
        given = random.random(len(some)) * (random.random(len(some)) < 0.8)
        subject.update(some, given)
        there |= dict(zip(some.tolist(), given.tolist()))
        gone = random.permutation([*there])[: random.integers(0, 9)].astype(np.int64)
        subject.remove(gone)
        for slot in gone.tolist():
            del there[slot]
            order.remove(slot)
    if not there:
        return churned(kind, rounds, seed + 1, **options)
    return subject, there, order


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """In standard deviations from its mean."""
    kept = expected > 0
    value = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    degrees = kept.sum() - 1
    return float((value - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize(
    "kind, exponent", [("uniform", 0.0), ("prioritized", 0.6), ("prioritized", 1.0), ("prioritized", -0.4)]
)
def test_draws_have_the_distribution_that_is_promised(kind, exponent):
    subject, there, _ = churned(kind, exponent=exponent)
    weights = np.zeros(CAPACITY)
    for slot, priority in there.items():
        weights[slot] = priority**exponent if priority > 0 or kind == "uniform" else 0.0
    expected, random, num = weights / weights.sum(), np.random.default_rng(1), 20_000
    slots, probabilities = subject.select(num, random) if kind == "uniform" else independent(subject, num, random)
    counts = np.bincount(slots, minlength=CAPACITY)
    assert counts[weights == 0].sum() == 0
    np.testing.assert_allclose(probabilities, expected[slots], rtol=1e-9)
    assert abs(chi_square(counts, num * expected)) < 4.0


def independent(subject, num, random):
    """Stratified draws are too even for a chi-square test; draws of one are not."""
    return tuple(np.concatenate(column) for column in zip(*(subject.select(1, random) for _ in range(num))))


def test_stratified_draws_take_every_item_within_one_of_its_share():
    subject, there, _ = churned("prioritized", exponent=1.0)
    total, num = sum(there.values()), 1000
    slots, _ = subject.select(num, np.random.default_rng(0))
    for slot, priority in there.items():
        assert abs((slots == slot).sum() - num * priority / total) < 2.0


def test_all_zero_priorities_are_drawn_uniformly_and_one_above_zero_alone():
    subject = selectors.make("prioritized", 8, exponent=0.0)
    slots = np.arange(4)
    subject.insert(slots, np.zeros(4))
    counts = np.bincount(subject.select(4000, np.random.default_rng(0))[0], minlength=4)
    assert (abs(counts - 1000) < 150).all()
    subject.update(slots[2:3], np.array([1e-9]))
    assert (subject.select(50, np.random.default_rng(0))[0] == 2).all()


@pytest.mark.parametrize("kind", ["fifo", "lifo"])
def test_order_is_that_of_insertion(kind):
    subject, _, order = churned(kind)
    expected = order if kind == "fifo" else order[::-1]
    assert subject.oldest(5).tolist() == expected[:5]
    while expected:
        slots, probabilities = subject.select(2, np.random.default_rng(0))
        assert slots.tolist() == [expected[0]] * 2 and (probabilities == 1).all()
        subject.remove(slots[:1])
        expected = expected[1:]


@pytest.mark.parametrize("kind, best", [("min_heap", min), ("max_heap", max)])
def test_heaps_give_the_extreme(kind, best):
    subject, there, _ = churned(kind)
    while there:
        slot = int(subject.select(1, np.random.default_rng(0))[0][0])
        assert there[slot] == best(there.values())
        subject.remove(np.array([slot]))
        del there[slot]


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap"])
def test_a_restored_selector_goes_on_as_the_saved_one(kind):
    subject, there, _ = churned(kind)
    slots = np.array(sorted(there))
    copy = selectors.make(kind, CAPACITY)
    copy.restore(subject.snapshot(), slots, np.array([there[s] for s in slots.tolist()]))
    mine, theirs = (x.select(500, np.random.default_rng(3)) for x in (subject, copy))
    np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20_000), st.integers(0, 2**31))
def test_the_sum_tree_finds_what_a_cumulative_sum_finds(capacity, seed):
    random = np.random.default_rng(seed)
    tree, leaves = Tree(capacity), np.zeros(capacity)
    for _ in range(3):
        slots = random.integers(0, capacity, 200)
        values = random.integers(0, 5, 200).astype(float) + (slots == slots[0])  # not all 0, and whole numbers: sums are exact
        tree.set(slots, values)
        leaves[slots] = values
    assert tree.root == leaves.sum()
    np.testing.assert_array_equal(tree.leaves, leaves)
    fractions = random.random(300)
    slots, total = tree.find(fractions)
    np.testing.assert_array_equal(slots, np.cumsum(leaves).searchsorted(fractions * total, side="right"))


def test_the_sum_tree_never_finds_an_empty_leaf_however_the_sums_round():
    tree, random = Tree(100_000), np.random.default_rng(0)
    slots = random.permutation(100_000)[:3000]
    tree.set(slots, random.random(3000) ** 30)
    found, _ = tree.find(np.concatenate([random.random(100_000), [0.0, 1.0 - 1e-17, np.nextafter(1.0, 0.0), 1.0]]))
    assert (tree.leaves[found] > 0).all()


def test_a_fraction_that_was_rounded_up_to_one_leads_to_the_last_leaf_that_holds_something():
    tree = Tree(8192)
    tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    assert tree.find(np.array([0.3, 1.0]))[0].tolist() == [2, 2]


def test_nodes_depend_on_the_leaves_alone():
    """However they came to be: a difference added to a sum would leave rounding errors behind."""
    random, one, other = np.random.default_rng(0), Tree(10_000), Tree(10_000)
    for _ in range(50):
        one.set(random.integers(0, 10_000, 500), random.random(500) * 10.0 ** random.integers(-8, 8))
    other.set(np.arange(10_000), one.leaves)
    for mine, theirs in zip(one._levels, other._levels):
        np.testing.assert_array_equal(mine, theirs)


def test_an_unknown_selector_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="uniform, fifo"):
        selectors.make("best", 3)
