"""A Dataset: experience that is only read. Episodes are cut into items once; nobody writes, and any number of batches is drawn.

What it holds is read again from its source by a resumed run, which goes on with the same draws; a checkpoint keeps the draws
alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rookery.data import arrays, demonstrations, limiter
from rookery.data.demonstrations import Demonstrations
from rookery.data.interface import Part, Taken
from rookery.data.replay import Replay
from rookery.trees import tree_leaves, tree_map
from rookery.types import Needs, PyTree, Rollout


class Dataset:
    """A Table (interface.py) that gives batches as a replay of these episodes would."""

    def __init__(self, specs: Rollout, needs: Needs, episodes: Demonstrations, *, slots: int, seed: int) -> None:
        """specs: of rollouts as collectors would write them; slots: batches that may be taken at once."""
        table, T = needs.table, specs.reward.shape[0]
        if table is None:
            raise ValueError("a dataset is sampled: the agent says in Needs.table what a batch is")
        if table.extras:
            raise ValueError(f"episodes of a dataset have no extras, and the agent learns from {', '.join(table.extras)}")
        ahead = table.sequence_length or table.n_step
        rows = demonstrations.row_count(episodes, length=T, ahead=ahead)
        config = dataclasses.replace(table.config, capacity=rows + T, min_size=1, shards=1)
        one = arrays.widen(specs, 1)
        self._replay = Replay(
            one, table._replace(config=config, demo_ratio=0.0), discount=needs.discount, collectors=1, writers=0, slots=slots,
            seed=seed, limit=limiter.min_size(1),
        )  # fmt: skip
        memory = tree_map(lambda s: np.zeros(s.shape, s.dtype), one.memory)
        for rollout in demonstrations.rollouts(
            episodes, length=T, ahead=ahead, previous=needs.previous, memory=memory, slot=0
        ):  # fmt: skip
            weight = np.ones_like(rollout.reward) if tree_leaves(one.weight) else ()
            self._replay.insert(rollout._replace(weight=weight))
        self.digest = episodes.digest

    @property
    def discount(self) -> float:
        return self._replay.discount

    @discount.setter
    def discount(self, value: float) -> None:
        if value != self._replay.discount:
            raise ValueError("the n-step returns of a dataset were added up when it was read: its discount stays")

    def claim(self) -> Part | None:
        return None

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        raise RuntimeError("a dataset is only read")

    abandon = commit

    def take(self) -> Taken | None:
        return self._replay.take()

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        self._replay.release(slot, priorities)

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._replay.update(keys, priorities)

    num_full = 0
    settled = True

    def pending(self) -> list[Any]:
        return []

    def serve(self, ready: Any) -> None: ...

    def waiting(self) -> str | None:
        return None

    def metrics(self) -> dict[str, float]:
        told = self._replay.metrics()
        return {name: told[name] for name in ("replay/size", "replay/samples", "replay/reuse")}  # nothing comes or goes

    def snapshot(self) -> PyTree:
        return {"batches": self._replay.batches, "items": self._replay.table.snapshot(), "digest": self.digest}

    def restore(self, snapshot: PyTree) -> None:
        if str(snapshot["digest"]) != self.digest:
            raise ValueError("the checkpoint was trained from another dataset: give the file of then, or train a new run")
        self._replay.batches = int(snapshot["batches"])
        self._replay.table.evict(len(self._replay.table))  # the rows stay; the items are those of the snapshot
        self._replay.table.restore(snapshot["items"])
