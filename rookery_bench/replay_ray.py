"""The table of `rookery bench replay` in Ray actors: inserts come from another actor by reference, batches go to this process.

    rookery bench replay --runtime ray --item-bytes 28224 --shards 2

Beside each rate stands what the object store does with the same bytes and the same calls, and no table: an actor that returns
one and the same batch, and one that returns one and the same rollout.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from rookery.runtime.interface import Handle, Resources
from rookery_bench.replay import Options, Subject


class WrittenRollout(NamedTuple):
    items: int
    rollout: Any


class PrewrittenCollector:
    """Stands for a collector: its rollout is written already."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._rollout = {"item": np.random.default_rng(0).integers(0, 255, shape, np.uint8)}

    def collect(self, out: Any) -> WrittenRollout:
        T, B = self._rollout["item"].shape[:2]
        return WrittenRollout(T * B, self._rollout)

    def close(self) -> None: ...


class TableActor(Subject):
    """The same table, called from elsewhere."""

    takes_views = True

    def fill(self) -> int:
        while len(self.table) < self.table.max_size:
            self.insert()
        return len(self.table)

    def insert_rollout(self, rollout: Any) -> int:
        return self.insert(rollout)

    def draw(self, keys: Any, priorities: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Draw a batch, its keys and its weights; first update the priorities of a batch before it, if there are any."""
        if keys is not None:
            self.table.update(keys, priorities)
        return self.batch()

    def same(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._out, self._keys, self._priorities

    _keys = np.zeros(256, np.int64)

    def close(self) -> None: ...


def measure_rates(options: Options) -> dict[str, list[float]]:
    """Measure the rates of every round; the table is full before the first."""
    from rookery.run import startup
    from rookery.run.versions import fingerprint
    from rookery.runtime.ray import RayRuntime

    roles = {"collector": Resources(), "shard": Resources()}
    counts = {"collector": (1, 1), "shard": (options.shards, options.shards)}
    runtime = RayRuntime(resources=roles, counts=counts, prepare=startup.prepare, versions=fingerprint)
    try:
        part = dataclasses.replace(options, capacity=-(-options.size // options.shards))
        shards = [runtime.spawn(TableActor, part, name=f"shard-{i}", role="shard") for i in range(options.shards)]
        writer = runtime.spawn(
            PrewrittenCollector, (options.rollout_length, options.num_envs, options.item_bytes), name="writer", role="collector"
        )
        for filled in [shard.call(TableActor.fill) for shard in shards]:
            filled.result(600)
        loop = _CallLoop(options, shards, writer)
        share = options.seconds / options.rounds
        rates: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for name, begin in loop.kinds.items():
                rates.setdefault(name, []).append(loop.rate(begin, share))
        return rates
    finally:
        runtime.close()


class _CallLoop:
    """Keeps `in_flight` calls under way for each actor, and counts what comes back."""

    def __init__(self, options: Options, shards: Sequence[Handle[TableActor]], writer: Handle[PrewrittenCollector]) -> None:
        self._options, self._shards, self._writer = options, shards, writer
        self._updates: dict[int, Any] = {}
        self._next = 0
        self._priorities = np.random.default_rng(1).random(options.batch_size)
        self.kinds: dict[str, Callable[[], tuple[Future, Callable[[Any], int]]]] = {
            "inserts_per_s": self._insert,
            "samples_per_s": self._sample,
            "store_inserts_per_s": self._write,
            "store_samples_per_s": self._same,
        }

    def rate(self, begin: Callable[[], tuple[Future, Callable[[Any], int]]], seconds: float) -> float:
        """Measure items per second, from the first call to the answer of the last."""
        calls = deque(begin() for _ in range(self._options.in_flight * len(self._shards)))
        items, start = 0, time.perf_counter()
        while calls:
            future, count = calls.popleft()
            items += count(future.result(120))
            if time.perf_counter() - start < seconds:
                calls.append(begin())
        return items / (time.perf_counter() - start)

    def _turn(self) -> tuple[int, Handle[TableActor]]:
        self._next = (self._next + 1) % len(self._shards)
        return self._next, self._shards[self._next]

    def _insert(self) -> tuple[Future, Callable[[Any], int]]:
        """Request a rollout; when it is written, pass its reference to a shard."""
        _, shard = self._turn()
        stored: Future = Future()

        def copy(done: Future) -> None:
            if (error := done.exception()) is not None:
                stored.set_exception(error)
            else:
                stored.set_result(done.result())

        def pass_on(said: Future) -> None:
            if said.exception() is not None:
                copy(said)
            else:
                shard.call(TableActor.insert_rollout, said.result().rollout).add_done_callback(copy)

        self._writer.fill(PrewrittenCollector.collect, None).add_done_callback(pass_on)
        return stored, int

    def _sample(self) -> tuple[Future, Callable[[Any], int]]:
        """Request a batch from a shard, along with new priorities for the batches that came from it since the last request."""
        number, shard = self._turn()
        keys = self._updates.pop(number, None)

        def came(answer: Any) -> int:
            items, drawn, _ = answer
            if self._options.selector == "prioritized":
                before = self._updates.get(number)
                self._updates[number] = drawn if before is None else np.concatenate([before, drawn])
            return len(items)

        priorities = None if keys is None else np.resize(self._priorities, len(keys))
        return shard.call(TableActor.draw, keys, priorities), came

    def _write(self) -> tuple[Future, Callable[[Any], int]]:
        return self._writer.fill(PrewrittenCollector.collect, None), lambda said: said.items

    def _same(self) -> tuple[Future, Callable[[Any], int]]:
        return self._turn()[1].call(TableActor.same), lambda answer: len(answer[0])
