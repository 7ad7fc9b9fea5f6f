"""An ItemTable: references to experience, with a selector, a remover, a rate limiter and a limit on samples of an item.

    insert ──▶ limiter? ──▶ full? remover chooses who goes ──▶ items {row, priority, times sampled, generation}
    sample ◀── limiter? ◀── selector chooses ◀──────────────────┘        ▲── update (keys, priorities)

Items own references, not data: rows of a chunk store (chunks.py), which several tables may share. The key of an item is its
slot and the generation of that slot, so priorities that come back for an item that is gone are recognised and ignored.

Common tables: uniform replay = uniform, fifo, min_size; prioritized replay = prioritized, fifo, sample_to_insert_ratio;
a queue = fifo, fifo, queue, sampled once; a stack = lifo likewise; keep the best = uniform, min_heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.data import selectors
from rookery.data.chunks import Store
from rookery.data.limiter import Limiter
from rookery.types import PyTree

SLOT_BITS, GENERATION_BITS = 32, 24  # of a key; what is left tells the tables of a mixture apart
_SLOT, _KEY = (1 << SLOT_BITS) - 1, (1 << (SLOT_BITS + GENERATION_BITS)) - 1
_COLUMNS = ("_row", "_priority", "_times", "_key", "_live", "_born")
_NEXT_GENERATION = 1 << SLOT_BITS
_MEASURED = 16  # reuse and age are means over one batch in so many


class Sample(NamedTuple):
    """A batch of items that were drawn."""

    rows: np.ndarray  # [N] where the items start
    keys: np.ndarray  # [N] int64
    probabilities: np.ndarray  # [N] of being drawn; 1 where the selector does not draw
    sizes: Any  # of the table it came from, when it was drawn: a number; of a mixture [N]


class ItemTable:
    def __init__(
        self,
        store: Store,
        *,
        max_size: int,
        limiter: Limiter,
        selector: str = "uniform",
        remover: str = "fifo",
        exponent: float = 0.6,
        remover_exponent: float = -0.4,
        max_times_sampled: int = 0,
        seed: int = 0,
        name: str = "replay",
    ) -> None:
        """max_times_sampled: 0 is without limit. exponent: of a prioritized selector; remover_exponent: of such a remover."""
        self.store, self.limiter, self.max_size, self.name = store, limiter, max_size, name
        self._selector = selectors.make(selector, max_size, exponent=exponent)
        self._remover = selectors.make(remover, max_size, exponent=remover_exponent)
        self._both = (self._selector, self._remover)
        self._max_times = max_times_sampled
        self._random = np.random.Generator(np.random.Philox(seed))
        # What a draw reads of an item stands side by side: one miss of the cache for each, where four arrays cost four.
        self._items = np.zeros((max_size, 4), np.int64)  # (of the views, `take` would copy the whole)
        self._row, self._key, self._times, self._born = self._items.T  # born: the table's count of inserts when it came
        self._key[:] = np.arange(max_size)  # of the item that is, or will be, in the slot
        self._priority = np.zeros(max_size, np.float64)
        self._live = np.zeros(max_size, bool)
        self._free = np.arange(max_size - 1, -1, -1, dtype=np.int64)
        self._num_free = max_size
        self._peak = 0  # slots that were ever used: the first ones, for the lowest is taken first
        self.max_priority = 1.0  # of all that were ever given: what an item without a priority enters with
        self.ignored_updates = 0
        self._reuse, self._age, self._drawn = 0, 0, 0  # sums over some of the items drawn since the last metrics
        self._calls = 0

    def __len__(self) -> int:
        return self.max_size - self._num_free

    @property
    def mass(self) -> float:
        """Total weight of all items in a draw: their number, or the sum of p^exponent."""
        weighed = isinstance(self._selector, selectors.Prioritized)
        return self._selector.mass if weighed else float(len(self))  # type: ignore[attr-defined]

    # --------------------------------------------------------------------------------------------- items

    def insert(self, rows: np.ndarray, priorities: np.ndarray | None = None) -> np.ndarray:
        """Insert items that start at these rows; return their keys. The caller has asked `limiter.can_insert`.

        priorities: [N], or None: the highest ever seen, so that every item is soon drawn once.
        """
        count = len(rows)
        if count > self.max_size:
            raise ValueError(f"{count} items at once do not fit into table {self.name!r} of max_size {self.max_size}")
        if priorities is None:
            given = np.full(count, self.max_priority)
        else:
            given = self._checked(priorities)
        if count > self._num_free:
            self.evict(count - self._num_free)
        self._num_free -= count
        self._peak = max(self._peak, len(self))
        slots = self._free[self._num_free : self._num_free + count][::-1].copy()
        self._row[slots], self._priority[slots], self._times[slots] = rows, given, 0
        self._live[slots], self._born[slots] = True, self.limiter.inserts
        for selector in self._both:
            selector.insert(slots, given)
        self.store.hold(rows)
        self.limiter.inserted(count)
        return self._key[slots]

    def sample(self, count: int) -> Sample | None:
        """Draw `count` items independently; None where the limiter refuses."""
        if not self.limiter.can_sample(count):
            return None
        slots, probabilities = self._draw(count)
        rows, keys, _, born = self._items.take(slots, axis=0).T.copy()
        size = len(self)
        np.add.at(self._times, slots, 1)
        self._calls += 1
        if self._calls % _MEASURED == 0 or not self._drawn:
            self._drawn += count
            self._reuse += int(self._times[slots].sum())
            self._age += count * self.limiter.inserts - int(born.sum())
        self.limiter.sampled(count)
        if self._max_times:
            spent = np.unique(slots[self._times[slots] >= self._max_times])
            self._delete(spent[self._live[spent]])
        return Sample(rows, keys, probabilities, size)

    def look(self, count: int) -> Sample | None:
        """Draw as `sample` does for whoever reads beside the learner: nothing is counted, and no item is used up. None before
        the first sample may be taken."""
        if self.limiter.size < self.limiter.min_size:
            return None
        slots, probabilities = self._selector.select(count, self._random)
        rows, keys, _, _ = self._items.take(slots, axis=0).T.copy()
        return Sample(rows, keys, probabilities, len(self))

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._max_times:
            return self._selector.select(count, self._random)
        # An item that is spent must not be drawn again within the batch: one at a time, each seeing what came before it.
        slots, probabilities = np.empty(count, np.int64), np.empty(count)
        times: dict[int, int] = {}
        spent: list[int] = []
        for i in range(count):
            slots[i : i + 1], probabilities[i : i + 1] = self._selector.select(1, self._random)
            slot = int(slots[i])
            times[slot] = times.get(slot, int(self._times[slot])) + 1
            if times[slot] >= self._max_times:
                self._selector.remove(slots[i : i + 1])
                spent.append(slot)
        again = np.array(spent, np.int64)
        if isinstance(self._selector, selectors.Ordered) and self._selector._newest:
            again = again[::-1]
        self._selector.insert(again, self._priority[again])  # `_delete` takes them out of both
        return slots, probabilities

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Set the priorities of items by key, ignoring those that are gone; return how many were still there."""
        given = self._checked(priorities)
        slots = keys & _SLOT
        here = self._live.take(slots) & (self._key[slots] == keys & _KEY)
        if not here.all():
            slots, given = slots[here], given[here]
            self.ignored_updates += len(keys) - len(slots)
        self._priority[slots] = given
        given = self._priority[slots]  # of a key given twice, the last value
        for selector in self._both:
            selector.update(slots, given)
        return len(slots)

    def evict(self, count: int) -> None:
        """Evict `count` items, chosen by the remover."""
        count = min(count, len(self))
        if isinstance(self._remover, selectors.Ordered):
            self._delete(self._remover.oldest(count))
            return
        for _ in range(count):  # each choice depends on those before it
            self._delete(self._remover.select(1, self._random)[0])

    def _delete(self, slots: np.ndarray) -> None:
        for selector in self._both:
            selector.remove(slots)
        self._live[slots] = False
        self._key[slots] = (self._key[slots] + _NEXT_GENERATION) & _KEY
        self.store.drop(self._row[slots])
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)
        self.limiter.deleted(len(slots))

    def _checked(self, priorities: np.ndarray) -> np.ndarray:
        given = np.asarray(priorities, np.float64)
        if len(given):
            highest = float(given.max())
            if not (highest < np.inf and given.min() >= 0.0):
                wrong = given[~((given >= 0.0) & (given < np.inf))][0]
                raise ValueError(f"table {self.name!r} was given a priority of {wrong}: they are finite and not negative")
            self.max_priority = max(self.max_priority, highest)
        return given

    # ------------------------------------------------------------------------------------------- keeping

    def metrics(self) -> dict[str, float]:
        """Report size, counts, priorities; reuse and age are means over items drawn since the last call."""
        drawn = max(1, self._drawn)
        values = {
            "size": float(len(self)),
            **self.limiter.metrics(),
            "reuse": self._reuse / drawn,
            "age": self._age / drawn,  # in inserts
            "max_priority": self.max_priority,
            "ignored_updates": float(self.ignored_updates),
        }
        self._reuse = self._age = self._drawn = 0
        return values

    def snapshot(self) -> PyTree:
        """Copy the slots that were ever used: what is saved grows with what is stored, not with the capacity."""
        state = self._random.bit_generator.state
        return {
            "max_size": self.max_size,
            "items": {name: getattr(self, name)[: self._peak].copy() for name in _COLUMNS},
            "free": self._free[self.max_size - self._peak : self._num_free].copy(),
            "limiter": self.limiter.snapshot(),
            "selector": self._selector.snapshot(),
            "remover": self._remover.snapshot(),
            "max_priority": self.max_priority,
            "ignored_updates": self.ignored_updates,
            "calls": self._calls,
            "random": {
                "counter": np.array(state["state"]["counter"], np.uint64), "key": np.array(state["state"]["key"], np.uint64),
                "buffer": np.array(state["buffer"], np.uint64), "buffer_pos": int(state["buffer_pos"]),
                "has_uint32": int(state["has_uint32"]), "uinteger": int(state["uinteger"]),
            },
        }  # fmt: skip

    def restore(self, snapshot: PyTree) -> None:
        """Restore into a new table of the same size; the store is restored by its owner."""
        peak = len(snapshot["items"]["_row"])
        if (size := int(snapshot.get("max_size", peak))) != self.max_size:  # older checkpoints have every slot
            raise ValueError(f"table {self.name!r} was saved with max_size {size:,}, not {self.max_size:,}: use that size")
        for name in _COLUMNS:
            getattr(self, name)[:peak] = snapshot["items"][name]
        self._peak, self._num_free = peak, self.max_size - peak + len(snapshot["free"])
        self._free[self.max_size - peak : self._num_free] = snapshot["free"]
        self.limiter.restore(snapshot["limiter"])
        live = np.flatnonzero(self._live)
        self._selector.restore(snapshot["selector"], live, self._priority[live])
        self._remover.restore(snapshot["remover"], live, self._priority[live])
        self.max_priority = float(snapshot["max_priority"])
        self.ignored_updates, self._calls = int(snapshot["ignored_updates"]), int(snapshot["calls"])
        saved = snapshot["random"]
        state: Any = self._random.bit_generator.state
        state["state"] = {"counter": np.asarray(saved["counter"]), "key": np.asarray(saved["key"])}
        state["buffer"] = np.asarray(saved["buffer"])
        state |= {name: int(saved[name]) for name in ("buffer_pos", "has_uint32", "uinteger")}
        self._random.bit_generator.state = state


class Mixture:
    """Samples from several tables in given proportions; each draw of a batch chooses its table (R2D3's demo ratio)."""

    def __init__(self, tables: Sequence[ItemTable], shares: Sequence[float], *, seed: int = 0) -> None:
        if len(tables) != len(shares) or min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-6:
            raise ValueError(f"the shares of {len(tables)} tables must be as many numbers that add up to 1, not {[*shares]}")
        self.tables, self._shares = [*tables], np.array(shares, np.float64) / sum(shares)
        self._random, self._batches = seed, 0
        self.drawn = np.zeros(len(tables), np.int64)  # from each table

    def sample(self, count: int) -> Sample | None:
        """Draw a batch, split over the tables; None where a limiter refuses its part: the same split is tried again."""
        split = np.random.Generator(np.random.Philox(key=self._random, counter=self._batches)).multinomial(count, self._shares)
        if any(n and not table.limiter.can_sample(int(n)) for table, n in zip(self.tables, split)):
            return None
        self._batches += 1
        self.drawn += split
        parts = []
        for index, (table, n) in enumerate(zip(self.tables, split)):
            if n and (part := table.sample(int(n))) is not None:
                keys = part.keys | (index << (SLOT_BITS + GENERATION_BITS))
                parts.append(part._replace(keys=keys, sizes=np.full(n, part.sizes)))
        return Sample(*(np.concatenate(column) for column in zip(*parts)))

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        which = keys >> (SLOT_BITS + GENERATION_BITS)
        updated = 0
        for index, table in enumerate(self.tables):
            mine = which == index
            updated += table.update(keys[mine], priorities[mine])
        return updated

    def snapshot(self) -> PyTree:
        return {"tables": [t.snapshot() for t in self.tables], "batches": self._batches, "drawn": self.drawn.copy()}

    def restore(self, snapshot: PyTree) -> None:
        for table, saved in zip(self.tables, snapshot["tables"]):
            table.restore(saved)
        self._batches, self.drawn = int(snapshot["batches"]), np.array(snapshot["drawn"])


def importance_weights(sample: Sample, beta: float) -> np.ndarray:
    """Return [N] float32: (size · probability)^−beta, divided by the highest of them."""
    weights = (sample.sizes * sample.probabilities) ** -beta
    return (weights / weights.max()).astype(np.float32)
