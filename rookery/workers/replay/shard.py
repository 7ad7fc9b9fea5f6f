"""A Shard: a replay table, or a part of one, that lives apart from the driver (see workers/replay/shards.py).

It knows nothing of clusters. Its calls run one after the other. Whether one may insert or sample is decided by the driver,
which sees all shards: a shard itself refuses nothing but a sample of nothing. What it is given are views into somebody else's
memory, which it copies when it stores them; what it returns must be copied before its next call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rookery.data import limiter
from rookery.data.config import TableSpec
from rookery.data.files import Sealed
from rookery.data.replay import Replay
from rookery.types import Batch, PyTree, Rollout


class Stand(NamedTuple):
    """The size, mass and counters of a shard. Counts are those since it was made."""

    inserts: int = 0
    deletes: int = 0
    size: int = 0
    rows: int = 0
    mass: float = 0.0  # what its items weigh in a draw over all shards
    metrics: dict[str, float] = {}  # noqa: RUF012 - never written to


class Shard:
    takes_views = True

    def __init__(
        self, specs: Rollout, table: TableSpec, *, discount: float, collectors: int, seed: int, snapshot: PyTree | None = None
    ) -> None:
        """collectors: those that write here."""
        limit = limiter.min_size(1)
        self._replay = Replay(
            specs, table, discount=discount, collectors=collectors, writers=0, slots=1, seed=seed, limit=limit
        )  # fmt: skip
        if snapshot is not None:
            self._replay.restore(snapshot)
        self._made = limit.inserts, limit.deletes
        self._sealed: dict[str, Sealed] = {}

    def stand(self) -> Stand:
        table, (inserts, deletes) = self._replay.table, self._made
        return Stand(
            inserts=table.limiter.inserts - inserts,
            deletes=table.limiter.deletes - deletes,
            size=len(table),
            rows=self._replay.store.used_rows,
            mass=table.mass,
            metrics=table.metrics(),
        )

    def insert(self, rollout: Rollout, priorities: np.ndarray | None) -> Stand:
        self._replay.insert(rollout, priorities)
        return self.stand()

    def sample(self, number: int) -> tuple[Batch | None, Stand]:
        """Sample a batch. number: how many were drawn before it from all shards; beta is annealed over them."""
        self._replay.batches = number
        if (taken := self._replay.take()) is None:
            return None, self.stand()
        self._replay.release(taken.slot)  # it is copied before the next call
        return taken.batch, self.stand()

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> Stand:
        self._replay.table.update(keys, priorities)
        return self.stand()

    def use_discount(self, discount: float) -> None:
        self._replay.discount = discount

    def snapshot(self) -> PyTree:
        """Save the Replay, with sizes in place of the files of sealed chunks; until the next insert `sealed` gives them."""
        saved = self._replay.snapshot()
        if saved["store"] is not None:
            files = saved["store"]["sealed"]["files"]
            self._sealed = {file.name: file for file in files}
            saved["store"]["sealed"]["files"] = [file.nbytes for file in files]
        return saved

    def sealed(self, name: str) -> np.ndarray:
        """Return the bytes of a chunk that the last snapshot named."""
        return self._sealed[name].read()

    def close(self) -> None:
        pass
