"""Large rollouts from actors to one process: bare Ray, and our runtime on the same Ray. A program of its own.

    python -m rookery_bench.bare_ray --megabytes 10 --actors 2 --rounds 5

Both sides have the same actors, two calls in flight each, and arrays of the same shapes that are written anew for every
call. Bare Ray ends where its driver has read-only views; ours ends where the rollout lies in the slot of a batch.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import ray
import tyro

from rookery.data import arrays
from rookery.run import startup
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Handle, Resources
from rookery.runtime.ray import RayRuntime
from rookery.trees import ArraySpec
from rookery.types import Rollout
from rookery.workers.acting.collector import Collected

ROWS, WIDTH = 20, 16
IN_FLIGHT = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    megabytes: float = 10.0
    """Size of a rollout."""
    actors: int = 2
    seconds: float = 3.0
    """Length of a round, for each side."""
    rounds: int = 5


def shapes(megabytes: float) -> Rollout:
    """Derive the shapes of a rollout of images that is as large as asked for."""
    pixels = int(megabytes * 1e6 / ((ROWS + 1) * WIDTH))
    spec = lambda shape, dtype: ArraySpec(shape, np.dtype(dtype))
    per_row = lambda dtype: spec((ROWS, WIDTH), dtype)
    return Rollout(
        observation=spec((ROWS + 1, WIDTH, pixels), np.uint8), action=per_row(np.int32), reward=per_row(np.float32),
        discount=per_row(np.float32), valid=per_row(np.float32), extras={"behaviour_logp": per_row(np.float32)}, memory=(),
        version=per_row(np.int32), stream=spec((WIDTH,), np.int64), step=spec((WIDTH,), np.int64),
    )  # fmt: skip


class Writer:
    """A collector that has nothing to wait for: it writes, and that is all."""

    def __init__(self, specs: Rollout) -> None:
        self._specs, self._count = specs, 0

    def collect(self, out: Rollout | None) -> Collected:
        out = arrays.allocate(self._specs) if out is None else out
        self._count += 1
        jax.tree.map(lambda leaf: leaf.fill(self._count % 100), out)
        return Collected(0, ROWS * WIDTH, [], {}, out)

    def close(self) -> None:
        pass


class Bare:
    def __init__(self, specs: Rollout) -> None:
        self._writer, self._out = Writer(specs), arrays.allocate(specs)

    def collect(self) -> dict[str, Any]:
        return self._writer.collect(self._out).rollout._asdict()


def bare_rate(actors: list[Any], seconds: float) -> float:
    """Measure the rollouts per second that reach the driver of bare Ray: first ready, fetched, asked for again."""
    calls = {actor.collect.remote(): actor for actor in actors for _ in range(IN_FLIGHT)}

    def one() -> None:
        (ready, *_), _ = ray.wait([*calls], num_returns=1)
        actor = calls.pop(ready)
        ray.get(ready)
        calls[actor.collect.remote()] = actor

    found = rate(one, seconds)
    ray.wait([*calls], num_returns=len(calls))
    return found


def our_rate(runtime: RayRuntime, handles: list[Handle[Writer]], slots: list[Rollout], seconds: float) -> float:
    """Measure the rollouts per second that are written into slots of this process."""
    free = deque(slots)
    calls: dict[Future[Collected], tuple[Handle[Writer], Rollout]] = {}

    def ask(handle: Handle[Writer]) -> None:
        slot = free.popleft()
        calls[handle.fill(Writer.collect, slot)] = (handle, slot)

    for handle in handles:
        for _ in range(IN_FLIGHT):
            ask(handle)

    def one() -> None:
        ready, _ = runtime.wait([*calls], None)
        handle, slot = calls.pop(ready[0])
        ready[0].result()
        free.append(slot)
        ask(handle)

    found = rate(one, seconds)
    for future in calls:
        future.result()
    return found


def rate(one: Callable[[], None], seconds: float) -> float:
    for _ in range(8):
        one()
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        one()
        count += 1
    return count / spent


def main() -> None:
    options = tyro.cli(Options)
    specs = shapes(options.megabytes)
    nbytes = arrays.nbytes(specs)
    counts = {"collector": (2 * options.actors, 2 * options.actors)}
    runtime = RayRuntime(resources={"collector": Resources()}, counts=counts, prepare=startup.prepare, versions=fingerprint)
    try:
        actor: Any = ray.remote(Bare)
        bare = [actor.remote(specs) for _ in range(options.actors)]
        ours = [runtime.spawn(Writer, specs, name=f"writer-{i}", role="collector") for i in range(options.actors)]
        for handle in ours:
            handle.ready.result(120)
        slots = [arrays.allocate(specs) for _ in range(options.actors * IN_FLIGHT)]
        rounds = []
        for number in range(options.rounds):
            turns = {
                "bare": lambda: bare_rate(bare, options.seconds),
                "ours": lambda: our_rate(runtime, ours, slots, options.seconds),
            }
            order = [*turns] if number % 2 == 0 else [*turns][::-1]
            found = {name: round(turns[name]() * nbytes / 1e9, 4) for name in order}
            rounds.append(found | {"ratio": round(found["ours"] / found["bare"], 3)})
        print(json.dumps({"nbytes": nbytes, "rounds": rounds}))
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
