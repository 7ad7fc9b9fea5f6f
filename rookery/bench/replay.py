"""How fast are tables? Items per second in and out: in this process, through Ray actors, and over gigabytes.

    rookery bench replay --item-bytes 28224 --selector prioritized
    rookery bench replay --item-bytes 200 --runtime ray
    rookery bench replay --item-bytes 28224 --gigabytes 10
    rookery bench replay --peers DIR --peer-python PYTHON       cpprb and torchrl in the same run

An item is one step of so many bytes. Inserts are rollouts, as collectors write them; samples are batches that are copied out
of the store, with importance weights and a bulk update of their priorities where the selector is prioritized. The table is
full before anything is measured.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from rookery.bench.record import Record, Verdict, conditions
from rookery.bench.statistics import median
from rookery.data import limiter, memory
from rookery.data.arrays import aligned_zeros
from rookery.data.chunks import INCARNATIONS, Store
from rookery.data.table import Table, importance_weights
from rookery.trees import ArraySpec

NOTES = [
    "Inserts: rollouts of T x B steps of random bytes into a full table (the oldest items go), from memory that was written "
    "before. Samples: batches copied into one buffer; prioritized: with importance weights and the priorities' update.",
    "memcpy: copies of as many bytes as a batch between buffers far larger than the caches; share: the bytes of the "
    "sampled items per second over it. Figures are medians of the rounds.",
]
# What was measured on two cores of the same machine, batch 256: see cpprb 11.0.0 and torchrl 0.14.1, whichever is faster.
BARS = {
    (200, "uniform"): (5 * 67_997, 3_796_863),
    (200, "prioritized"): (5 * 54_550, 493_060),
    (28_224, "uniform"): (5 * 48_859, 314_321),
    (28_224, "prioritized"): (5 * 35_120, 244_150),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Inserts and samples per second of a table."""

    item_bytes: int = 200
    selector: Literal["uniform", "prioritized", "fifo", "lifo"] = "uniform"
    batch_size: int = 256
    capacity: int | None = None
    """Items; by default a million, or what fits into 1.4 GB."""
    num_envs: int = 16
    rollout_length: int = 32
    runtime: Literal["local", "ray"] = "local"
    shards: int = 1
    """Actors that hold the table (ray)."""
    in_flight: int = 4
    """Calls under way at each actor (ray)."""
    gigabytes: float | None = None
    """Fill a table of this size and write it over once more: rates and memory at each tenth of the way."""
    peers: str | None = None
    """Directory of the peers' drivers (inproc_replay.py)."""
    peer_python: str | None = None
    """Interpreter that has cpprb and torchrl: they are measured in the same run, 200 or 28224 bytes."""
    seconds: float = 3.0
    """For inserts and for samples, over all rounds."""
    rounds: int = 3
    json: bool = False
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/replay.jsonl."""

    @property
    def size(self) -> int:
        if self.gigabytes is not None:
            return int(self.gigabytes * 1e9 / self.item_bytes)
        return self.capacity or min(1_000_000, 1_411_200_000 // self.item_bytes)


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench replay")


def measure(options: Options) -> list[Record]:
    now = conditions()
    if options.gigabytes is not None:
        return [sustained(options, now)]
    if options.runtime == "ray":
        from rookery.bench.replay_ray import measure_rates

        return [summarise_ray(options, now, measure_rates(options))]
    subject = Subject(options)
    while len(subject.table) < options.size:
        subject.insert()
    rates: dict[str, list[float]] = {"inserts_per_s": [], "samples_per_s": [], "memcpy_per_s": []}
    share = options.seconds / options.rounds
    for number in range(options.rounds):
        rates["inserts_per_s"].append(timed(subject.insert, share))
        rates["samples_per_s"].append(timed(subject.sample, share))
        rates["memcpy_per_s"].append(timed(subject.copy, share / 3))
        said = ", ".join(f"{values[-1]:,.0f} {name}" for name, values in rates.items())
        print(f"round {number}: {said}", file=sys.stderr, flush=True)
    del subject
    return [summarise(options, now, rates), *peer_records(options, now)]


class Subject:
    """A table, and what is put into it and taken out of it."""

    def __init__(self, options: Options) -> None:
        T, B, self._batch = options.rollout_length, options.num_envs, options.batch_size
        random = np.random.default_rng(0)
        rows = 64
        chunks = -(-options.size // rows) + 3 * B
        spec = {"item": ArraySpec((options.item_bytes,), np.dtype(np.uint8))}
        self.store = Store(spec, num_chunks=chunks, chunk_rows=rows, num_lanes=B)
        self.table = Table(self.store, max_size=options.size, limiter=limiter.min_size(1), selector=options.selector)
        self._rollout = {"item": random.integers(0, 255, (T, B, options.item_bytes), np.uint8)}
        self._streams, self._step = np.arange(B) * INCARNATIONS, np.zeros(B, np.int64)
        self._out = aligned_zeros((self._batch, options.item_bytes), np.dtype(np.uint8))
        self._priorities, self._update = random.random(self._batch), options.selector == "prioritized"
        # written, not np.zeros: pages that were never touched are all one page, which is in the cache
        self._source = np.ones((max(2, (1 << 28) // self._out.nbytes), *self._out.shape), np.uint8)
        self._next = 0

    def insert(self, rollout: Any = None) -> int:
        rollout = rollout or self._rollout
        T, B = rollout["item"].shape[:2]
        store, lanes = self.store, self.store.lanes_of(self._streams)
        while store.shortage(lanes, self._streams, self._step, T):
            if not store.sweep():
                self.table.evict(T * B)
        appended = store.append(self._streams, self._step, rollout, {})
        self._step += T
        self.table.insert(appended.rows.reshape(-1))
        return T * B

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Items, keys and, where priorities are used, weights."""
        sample = self.table.sample(self._batch)
        assert sample is not None
        self.store.columns["item"].take(sample.rows, axis=0, out=self._out, mode="clip")
        return self._out, sample.keys, importance_weights(sample, 0.4) if self._update else None

    def sample(self) -> int:
        _, keys, _ = self.batch()
        if self._update:
            self.table.update(keys, self._priorities)
        return self._batch

    def copy(self) -> int:
        """A batch's bytes, from where they are in no cache."""
        self._next = (self._next + 1) % len(self._source)
        np.copyto(self._out, self._source[self._next])
        return self._batch


def timed(step: Callable[[], int], seconds: float) -> float:
    """Items per second."""
    count, begin = 0, time.perf_counter()
    while True:
        for _ in range(8):
            count += step()
        if (spent := time.perf_counter() - begin) >= seconds:
            return count / spent


def summarise(options: Options, now: dict[str, Any], rates: dict[str, list[float]]) -> Record:
    middle = {name: median(values) or 0.0 for name, values in rates.items()}
    share = middle["samples_per_s"] / middle["memcpy_per_s"]
    row = {
        "item_bytes": options.item_bytes,
        "selector": options.selector,
        "capacity": options.size,
        "batch_size": options.batch_size,
        "inserts_per_s": middle["inserts_per_s"],
        "samples_per_s": middle["samples_per_s"],
        "sampled_GB_per_s": middle["samples_per_s"] * options.item_bytes / 1e9,
        "memcpy_GB_per_s": middle["memcpy_per_s"] * options.item_bytes / 1e9,
        "share_of_memcpy": share,
    }
    bars = BARS.get((options.item_bytes, options.selector)) if options.batch_size == 256 else None
    verdicts = []
    if bars is not None:
        verdicts += [
            Verdict.of("inserts/s, against 5 x cpprb's", middle["inserts_per_s"], at_least=bars[0]),
            Verdict.of("samples/s, against the best of cpprb and torchrl", middle["samples_per_s"], at_least=bars[1]),
        ]
    if options.item_bytes >= 10_000 and options.selector == "uniform":
        verdicts.append(Verdict.of("share of memcpy", share, at_least=0.7))
    return Record(
        bench="replay",
        subject=f"replay of {options.item_bytes} B items, {options.selector}",
        command=f"rookery bench replay --item-bytes {options.item_bytes} --selector {options.selector} --batch-size "
        f"{options.batch_size} --seconds {options.seconds:g} --rounds {options.rounds}",
        conditions=now,
        settings={"num_envs": options.num_envs, "rollout_length": options.rollout_length, "runtime": "local"},
        rows=[row],
        verdicts=verdicts,
        notes=NOTES,
        runs=[{"round": i} | {name: values[i] for name, values in rates.items()} for i in range(options.rounds)],
    )


# ------------------------------------------------------------------------------------------------- through actors

REVERB = {200: 52_900, 28_224: 23_400}  # samples/s of dm-reverb 0.14 on localhost with its batched dataset, uniform


def summarise_ray(options: Options, now: dict[str, Any], rates: dict[str, list[float]]) -> Record:
    middle = {name: median(values) or 0.0 for name, values in rates.items()}
    row: dict[str, Any] = {
        "item_bytes": options.item_bytes,
        "selector": options.selector,
        "runtime": "ray",
        "shards": options.shards,
        "capacity": options.size,
        "batch_size": options.batch_size,
        **middle,
        "sampled_GB_per_s": middle["samples_per_s"] * options.item_bytes / 1e9,
        "share_of_store_samples": middle["samples_per_s"] / middle["store_samples_per_s"],
        "share_of_store_inserts": middle["inserts_per_s"] / middle["store_inserts_per_s"],
    }
    verdicts = []
    if (bar := REVERB.get(options.item_bytes)) is not None and options.batch_size == 256:
        what = "samples/s through an actor, against 2 x Reverb's"
        verdicts.append(Verdict.of(what, middle["samples_per_s"], at_least=2 * bar))
    return Record(
        bench="replay",
        subject=f"replay of {options.item_bytes} B items, {options.selector}, in {options.shards} Ray actor(s)",
        command=f"rookery bench replay --item-bytes {options.item_bytes} --selector {options.selector} --runtime ray --shards "
        f"{options.shards} --batch-size {options.batch_size} --seconds {options.seconds:g} --rounds {options.rounds}",
        conditions=now,
        settings={"num_envs": options.num_envs, "rollout_length": options.rollout_length, "in_flight": options.in_flight},
        rows=[row],
        verdicts=verdicts,
        notes=[
            "Inserts: rollouts of another actor, handed on by reference. Samples: one batch per call, in this process as views "
            "of the object store; priorities go back with the next call. store_*: the same calls and bytes without a table."
        ],
        runs=[{"round": i} | {name: values[i] for name, values in rates.items()} for i in range(options.rounds)],
    )


# ------------------------------------------------------------------------------------------------- over gigabytes


def sustained(options: Options, now: dict[str, Any]) -> Record:
    """A table is filled and then written over once more; rates and memory at each tenth of both."""
    subject, rows = Subject(options), []
    memory.check_fits(subject.store.nbytes, what="the table", remedy="fewer --gigabytes")
    for tenth in range(1, 21):
        inserted, begin = 0, time.perf_counter()
        while inserted < options.size // 10:
            inserted += subject.insert()
        inserts = inserted / (time.perf_counter() - begin)
        row = {
            "inserted": tenth / 10,
            "items": len(subject.table),
            "inserts_per_s": inserts,
            "samples_per_s": timed(subject.sample, options.seconds / 20),
            "rss_GB": _resident_bytes() / 1e9,
        }
        rows.append(row)
        print(", ".join(f"{name} {value:,.2f}" for name, value in row.items()), file=sys.stderr, flush=True)
    full = rows[10:]
    growth = full[-1]["rss_GB"] / full[0]["rss_GB"]
    slowest = min(row["samples_per_s"] for row in full) / (median([row["samples_per_s"] for row in full]) or 1.0)
    return Record(
        bench="replay",
        subject=f"{options.gigabytes:g} GB of {options.item_bytes} B items, {options.selector}",
        command=f"rookery bench replay --item-bytes {options.item_bytes} --selector {options.selector} --gigabytes "
        f"{options.gigabytes:g} --seconds {options.seconds:g}",
        conditions=now,
        settings={"num_envs": options.num_envs, "rollout_length": options.rollout_length, "batch_size": options.batch_size},
        rows=rows,
        verdicts=[
            Verdict.of("memory once full, last over first", growth, at_most=1.02),
            Verdict.of("samples/s once full, slowest over median", slowest, at_least=0.7),
        ],
        notes=["inserted: tables' worth of items so far; from 1 on the table is full and the oldest go."],
        runs=[],
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ---------------------------------------------------------------------------------------------------------- peers


def peer_records(options: Options, now: dict[str, Any]) -> list[Record]:
    """cpprb and torchrl, driven by the peers' own driver: single inserts and batches of 256, as their users write them."""
    item = {200: "small", 28_224: "frame"}.get(options.item_bytes)
    if options.peer_python is None or item is None or options.selector not in ("uniform", "prioritized"):
        return []
    rows, failures = [], []
    for lib in ("cpprb", "torchrl"):
        words = ("inproc_replay.py", "replay", "--lib", lib, "--item", item, "--sampler", options.selector)
        command = [str(Path(options.peer_python).absolute()), *words, "--secs", f"{options.seconds:g}"]
        done = subprocess.run(command, cwd=options.peers, capture_output=True, text=True, timeout=600)
        try:
            answer = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            failures.append(f"{lib}: {done.stderr.strip().splitlines()[-1:]}")
            continue
        rows.append(
            {
                "peer": lib,
                "version": answer["version"],
                "item_bytes": options.item_bytes,
                "selector": options.selector,
                "inserts_per_s": answer["insert_per_s"],
                "chunk_inserts_per_s": answer["chunk_insert_per_s"],
                "samples_per_s": answer["sample_per_s"],
            }
        )
    return [
        Record(
            bench="replay",
            subject=f"peers: replay of {options.item_bytes} B items, {options.selector}",
            command=f"python inproc_replay.py replay --item {item} --sampler {options.selector}",
            conditions=now,
            settings={},
            rows=rows,
            verdicts=[],
            notes=["inserts: one item per call; chunk: 1,000 per call."],
            runs=[],
            failures=failures,
        )
    ]
