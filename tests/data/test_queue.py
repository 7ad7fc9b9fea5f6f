"""The queue of batches against a model of it that is too simple to be wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.data.queue import Part, Queue, Taken
from rookery.trees import ArraySpec, tree_leaves
from rookery.types import BATCH_MAJOR, Rollout

T, B, GAMMA = 2, 3, 0.5


def specs() -> Rollout:
    f = lambda *shape: ArraySpec(shape, np.dtype(np.float32))
    i = lambda *shape: ArraySpec(shape, np.dtype(np.int64))
    return Rollout(
        observation={"a": f(T + 1, B, 2)}, action=i(T, B), reward=f(T, B), discount=f(T, B), valid=f(T, B),
        extras={}, memory=(f(B, 4),), version=i(T, B), stream=i(B), step=i(B),
    )  # fmt: skip


def fill(part: Part, item: int) -> None:
    """Writes what a collector would: every leaf, none left over from before."""
    for leaf in tree_leaves(part.rollout):
        leaf[:] = item
    part.rollout.discount[:] = 1.0


def items_of(rollout: Rollout, width: int = B) -> list[int]:
    """Which item is in which place; every leaf must agree."""
    found = [int(x) for x in rollout.stream[::width]]
    expected = np.repeat(found, width)
    for name, field in rollout._asdict().items():
        for leaf in tree_leaves(field):
            columns = leaf if name in BATCH_MAJOR else np.moveaxis(leaf, 1, 0)
            if name != "discount":
                assert (columns.reshape(len(expected), -1) == expected[:, None]).all(), name
    return found


class Machine:
    """Drives a queue and remembers what must be true of it."""

    def __init__(self, parts: int, slots: int) -> None:
        self.queue = Queue(specs(), parts=parts, slots=slots, discount=GAMMA)
        self.parts, self.slots = parts, slots
        self.writing: dict[tuple[int, int], Part] = {}
        self.committed: dict[int, dict[int, int]] = {}  # slot -> place -> item
        self.full: list[int] = []  # slots, in the order in which they became full
        self.learning: dict[int, tuple[Taken, list[np.ndarray]]] = {}
        self.next_item, self.done = 1, []  # type: int, list[int]
        self.open: dict[int, list[int]] = {}  # oldest first -> slots that were in use when it opened + times overtaken
        self.takes, self.releases, self.released_before = 0, 0, {}  # type: int, int, dict[int, int]

    def claim(self) -> None:
        part = self.queue.claim()
        used = {(s, p) for s, places in self.committed.items() for p in places} | set(self.writing)
        used |= {(s, p) for s in self.learning for p in range(self.parts)}
        if len(used) == self.parts * self.slots:
            assert part is None
            return
        assert part is not None, "a free place was not handed out"
        assert (part.slot, part.place) not in used, "a place was handed out twice"
        self.writing[part.slot, part.place] = part
        if part.slot not in self.open:
            self.open[part.slot] = [len(self.open) + len(self.learning)]
            self.released_before[part.slot] = self.releases

    def older(self, slot: int) -> list[int]:
        return list(self.open)[: list(self.open).index(slot)]

    def commit(self, rng: random.Random) -> None:
        if self.writing:
            part = self.writing.pop(rng.choice(sorted(self.writing)))
            fill(part, self.next_item)
            self.queue.commit(part)
            places = self.committed.setdefault(part.slot, {})
            places[part.place] = self.next_item
            self.next_item += 1
            if len(places) == self.parts:
                self.full.append(part.slot)

    def abandon(self, rng: random.Random) -> None:
        if self.writing:
            part = self.writing.pop(rng.choice(sorted(self.writing)))
            part.rollout.reward[:] = np.nan  # half written
            self.queue.abandon(part)
            again = self.queue.claim()
            assert again is not None and again[:2] == part[:2], "an abandoned place is the next to be claimed"
            self.writing[again.slot, again.place] = again

    def take(self) -> None:
        taken = self.queue.take()
        allowed = [slot for slot in self.full if all(self.open[older][0] < self.slots for older in self.older(slot))]
        if not allowed:
            assert taken is None
            return
        assert taken is not None and taken.slot == allowed[0], "not in the order of fullness"
        for older in self.older(taken.slot):
            self.open[older][0] += 1
        lag = self.takes - self.released_before[taken.slot]
        assert lag <= self.slots, "updates between the oldest parameters that can have acted and this one"
        self.takes += 1
        self.full.remove(taken.slot)
        del self.open[taken.slot]
        places = self.committed.pop(taken.slot)
        assert items_of(taken.batch.rollout) == [places[p] for p in range(self.parts)]
        assert (taken.batch.rollout.discount == GAMMA).all()
        assert taken.batch.weight.shape == taken.batch.key.shape == (self.parts * B,) and (taken.batch.weight == 1).all()
        self.done += places.values()
        self.learning[taken.slot] = taken, [np.copy(x) for x in tree_leaves(taken.batch)]

    def release(self, rng: random.Random) -> None:
        if self.learning:
            slot = rng.choice(sorted(self.learning))
            taken, before = self.learning.pop(slot)
            for old, now in zip(before, tree_leaves(taken.batch)):
                assert np.array_equal(old, now), "a batch changed while it was learned from"
            self.queue.release(slot)
            self.releases += 1

    def check(self) -> None:
        assert self.queue.num_full == len(self.full) and len(self.queue._claimed) == len(self.writing)


@settings(deadline=None, max_examples=60)
@given(parts=st.integers(1, 3), slots=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_any_sequence_of_calls_hands_every_item_to_the_learner_once(parts: int, slots: int, seed: int) -> None:
    rng, machine = random.Random(seed), Machine(parts, slots)
    for _ in range(120):
        match rng.choice(["claim"] * 4 + ["commit"] * 4 + ["take"] * 2 + ["release"] * 2 + ["abandon"]):
            case "claim":
                machine.claim()
            case "take":
                machine.take()
            case name:
                getattr(machine, name)(rng)
        machine.check()
    held = [item for places in machine.committed.values() for item in places.values()]
    assert sorted(machine.done + held) == list(range(1, machine.next_item)), "an item was lost or learned from twice"


def test_a_slot_that_is_learned_from_cannot_be_claimed_until_it_is_released() -> None:
    queue = Queue(specs(), parts=1, slots=1, discount=GAMMA)
    part = queue.claim()
    assert part is not None and queue.claim() is None
    fill(part, 1)
    queue.commit(part)
    assert queue.claim() is None, "full, not yet taken"
    taken = queue.take()
    assert taken is not None and queue.claim() is None, "being learned from"
    queue.release(taken.slot)
    assert queue.claim() is not None


def test_a_slow_writer_is_overtaken_until_its_data_would_be_too_old_and_then_waited_for() -> None:
    queue = Queue(specs(), parts=1, slots=3, discount=GAMMA)
    late = queue.claim()
    assert late is not None
    overtaken = 0
    while True:
        quick = queue.claim()
        if quick is None:
            break
        fill(quick, 1)
        queue.commit(quick)
        if taken := queue.take():
            overtaken += 1
            queue.release(taken.slot)
    assert overtaken == 3 and queue.num_full == 2, "the others are full and wait"
    fill(late, 2)
    queue.commit(late)
    order = [taken.slot for _ in range(3) if (taken := queue.take())]
    assert order[0] == late.slot and len(order) == 3


def test_a_part_cannot_be_committed_twice_nor_a_slot_released_twice() -> None:
    queue = Queue(specs(), parts=1, slots=2, discount=GAMMA)
    part = queue.claim()
    assert part is not None
    queue.commit(part)
    with pytest.raises(KeyError):
        queue.commit(part)
    with pytest.raises(KeyError):
        queue.abandon(part)
    taken = queue.take()
    assert taken is not None
    queue.release(taken.slot)
    with pytest.raises(KeyError):
        queue.release(taken.slot)


def test_the_discount_is_multiplied_in_once_per_take_however_often_a_slot_is_used() -> None:
    queue = Queue(specs(), parts=2, slots=1, discount=GAMMA)
    for item in range(5):
        for _ in range(2):
            part = queue.claim()
            assert part is not None
            fill(part, item)
            part.rollout.discount[0, :] = 0.0  # terminated: stays 0
            queue.commit(part)
        taken = queue.take()
        assert taken is not None
        assert (taken.batch.rollout.discount == np.array([[0.0], [GAMMA]], np.float32)).all()
        queue.release(taken.slot)


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_a_snapshot_holds_what_waits_for_the_rest_of_its_batch(committed: int) -> None:
    queue, other = (Queue(specs(), parts=3, slots=2, discount=GAMMA) for _ in range(2))
    for item in range(committed):
        part = queue.claim()
        assert part is not None
        fill(part, item + 7)
        queue.commit(part)
    saved = queue.snapshot()
    assert other.claim() is not None, "another queue; and it may hold something else before"
    other = Queue(specs(), parts=3, slots=2, discount=GAMMA)
    other.restore(_through_a_checkpoint(saved))
    for q in (queue, other):  # the one that was saved goes on, too
        for item in range(committed, 3):
            part = q.claim()
            assert part is not None
            fill(part, item + 7)
            q.commit(part)
        taken = q.take()
        assert taken is not None and items_of(taken.batch.rollout) == [7, 8, 9]
        assert (taken.batch.rollout.discount == GAMMA).all(), "once, not before and after the restart"


def test_a_batch_that_was_overtaken_before_a_restart_is_not_made_to_wait_as_long_again() -> None:
    queue, again = (Queue(specs(), parts=2, slots=2, discount=GAMMA) for _ in range(2))
    first, second = queue.claim(), queue.claim()
    early = queue.claim()
    assert first and second and early
    for part in (early, first, second):
        fill(part, 1)
        queue.commit(part)
    taken = queue.take()
    assert taken is not None
    queue.release(taken.slot)  # one update since `early` was begun
    again.restore(_through_a_checkpoint(queue.snapshot()))
    held, *others = [again.claim() for _ in range(3)]
    assert held is not None
    overtaken = 0
    for _ in range(3):
        for part in others:
            assert part is not None
            again.commit(part)
        taken = again.take()
        if taken is None:
            break
        overtaken += 1
        again.release(taken.slot)
        others = [again.claim(), again.claim()]
    assert overtaken == 1


def test_a_snapshot_is_a_copy() -> None:
    queue = Queue(specs(), parts=2, slots=1, discount=GAMMA)
    part = queue.claim()
    assert part is not None
    fill(part, 5)
    queue.commit(part)
    saved = queue.snapshot()
    for leaf in tree_leaves(part.rollout):
        leaf[:] = 6
    other = Queue(specs(), parts=1, slots=1, discount=GAMMA)
    other.restore(saved)
    taken = other.take()
    assert taken is not None and items_of(taken.batch.rollout) == [5]


def test_a_snapshot_is_refused_while_something_is_under_way() -> None:
    queue = Queue(specs(), parts=1, slots=2, discount=GAMMA)
    part = queue.claim()
    assert part is not None
    for step in (lambda: queue.commit(part), queue.take):
        with pytest.raises(AssertionError, match="drain"):
            queue.snapshot()
        step()
    with pytest.raises(AssertionError, match="drain"):
        queue.snapshot()
    queue.release(part.slot)
    assert queue.snapshot()["parts"] == []


def _through_a_checkpoint(tree: Any) -> Any:
    """What a checkpoint makes of a tree: tuples come back as lists."""
    if isinstance(tree, dict):
        return {key: _through_a_checkpoint(value) for key, value in tree.items()}
    return [_through_a_checkpoint(value) for value in tree] if isinstance(tree, (list, tuple)) else tree
