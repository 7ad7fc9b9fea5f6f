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

import dataclasses
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tyro

from rookery.data import copies, limiter, memory
from rookery.data.arrays import aligned_zeros
from rookery.data.chunks import INCARNATIONS, Store
from rookery.data.items import ItemTable, importance_weights
from rookery.trees import ArraySpec
from rookery_bench.peers import chosen
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio

NOTES = [
    "Inserts: rollouts of T x B steps of random bytes into a full table (the oldest items go), from memory that was written "
    "before. Samples: batches copied into one buffer; prioritized: with importance weights and the priorities' update. "
    "Two threads copy what has 2 MB or more.",
    "memcpy: copies, by one thread, of as many bytes as a batch between buffers far larger than the caches; share: the bytes "
    "of the sampled items per second over it. Figures are medians of the rounds.",
]
PEER_NOTE = (
    "Rounds alternate: ours, then each peer in a process of its own, with a table of the same capacity that is full before "
    "that. inserts: one item per call, as their users write; bulk: theirs 1,000 per call while the table is filled, ours "
    "rollouts into a full one. Figures are medians of the rounds."
)
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
    """Size of an item."""
    selector: Literal["uniform", "prioritized", "fifo", "lifo"] = "uniform"
    """How items are drawn."""
    batch_size: int = 256
    capacity: int | None = None
    """Items; by default a million, or what fits into 1.4 GB."""
    num_envs: int = 16
    """Columns of what is inserted at once."""
    rollout_length: int = 32
    runtime: Literal["local", "ray"] = "local"
    """Where the table lives."""
    shards: int = 1
    """Actors that hold the table (ray)."""
    in_flight: int = 4
    """Calls under way at each actor (ray)."""
    gigabytes: float | None = None
    """Fill a table of this size and write it over once more: rates and memory in ten windows of each."""
    peers: str | None = None
    """Directory of the peers' drivers (inproc_replay.py)."""
    peer_python: str | None = None
    """Interpreter that has cpprb and torchrl: they are measured in the same run, 200 or 28224 bytes."""
    seconds: float = 3.0
    """Time for inserts, and for samples, over all rounds."""
    rounds: int = 3
    """Inserts and samples take turns, so many times."""
    json: bool = False
    """One JSON line instead of the text."""
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
        from rookery_bench.replay_ray import measure_rates

        return [summarise_ray(options, now, measure_rates(options))]
    subject = Subject(options)
    while len(subject.table) < options.size:
        subject.insert()
    rates: dict[str, list[float]] = {"inserts_per_s": [], "samples_per_s": [], "memcpy_per_s": []}
    peers, share = Peers(options), options.seconds / options.rounds
    for number in range(options.rounds):
        rates["inserts_per_s"].append(timed(subject.insert, share))
        rates["samples_per_s"].append(timed(subject.sample, share))
        rates["memcpy_per_s"].append(timed(subject.copy, share / 3))
        said = ", ".join(f"{values[-1]:,.0f} {name}" for name, values in rates.items())
        print(f"round {number}: {said}", file=sys.stderr, flush=True)
        peers.measure(share)
    ours = summarise(options, now, rates)
    return [beside(options, ours, peers) if peers.names else ours]


class Subject:
    """A table, and what is put into it and taken out of it."""

    def __init__(self, options: Options) -> None:
        T, B, self._batch = options.rollout_length, options.num_envs, options.batch_size
        self.item_bytes = options.item_bytes
        random = np.random.default_rng(0)
        rows = 64
        chunks = -(-options.size // rows) + 3 * B
        spec = {"item": ArraySpec((options.item_bytes,), np.dtype(np.uint8))}
        self.store = Store(spec, num_chunks=chunks, chunk_rows=rows, num_lanes=B)
        self.table = ItemTable(self.store, max_size=options.size, limiter=limiter.min_size(1), selector=options.selector)
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
        """Sample items, keys and, where priorities are used, weights."""
        sample = self.table.sample(self._batch)
        assert sample is not None
        copies.take(self.store.columns["item"], sample.rows, self._out)
        return self._out, sample.keys, importance_weights(sample, 0.4) if self._update else None

    def sample(self) -> int:
        _, keys, _ = self.batch()
        if self._update:
            self.table.update(keys, self._priorities)
        return self._batch

    def copy(self) -> int:
        """Copy the bytes of a batch from memory that no cache holds, to compare sampling with."""
        self._next = (self._next + 1) % len(self._source)
        np.copyto(self._out, self._source[self._next])
        return self._batch


def timed(step: Callable[[], int], seconds: float) -> float:
    """Measure items per second."""
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
    """Fill a table, then write it over at least once; rates and memory in ten windows of each."""
    subject = Subject(options)
    rows: list[dict[str, Any]] = []
    store = subject.store
    memory.check_fits(store.nbytes, what="the table", remedy="fewer --gigabytes")
    for number in range(20):
        full = number >= 10  # items go before that, but chunks that were never used are taken before those that are free again
        items = -(-store.num_chunks * store.chunk_rows // 10)
        row = _window(subject, items, least_seconds=options.seconds / 10 if full else 0.0)
        rows.append({"window": number + 1, "phase": "full" if full else "filling", "items": len(subject.table)} | row)
        said = ", ".join(f"{name} {value:,.2f}" for name, value in row.items())
        print(f"window {number + 1}: {said}", file=sys.stderr, flush=True)
    steady = [row for row in rows if row["phase"] == "full"]
    memories = [row["rss_GB"] for row in steady]
    return Record(
        bench="replay",
        subject=f"{options.gigabytes:g} GB of {options.item_bytes} B items, {options.selector}",
        command=f"rookery bench replay --item-bytes {options.item_bytes} --selector {options.selector} --gigabytes "
        f"{options.gigabytes:g} --seconds {options.seconds:g}",
        conditions=now,
        settings={"num_envs": options.num_envs, "rollout_length": options.rollout_length, "batch_size": options.batch_size},
        rows=rows,
        verdicts=[
            Verdict.of("inserts/s once full, furthest from their median", _furthest(steady, "inserts_per_s"), at_most=0.15),
            Verdict.of("samples/s once full, furthest from their median", _furthest(steady, "samples_per_s"), at_most=0.15),
            Verdict.of("memory once full, most over least", max(memories) / min(memories), at_most=1.02),
        ],
        notes=SUSTAINED_NOTES,
        runs=[],
    )


SUSTAINED_NOTES = [
    "A window writes a tenth of the store, once that is full for at least a tenth of --seconds: rollouts and as many sampled "
    "items, in turn. While it fills, memory is touched for the first time: the system has to find and clear it, and where this "
    "is a virtual machine its host, too.",
    "cpu share: of the window's time in which this process had a core; faults per MB: first touches of a page per MB written. "
    "Rates are by the clock: where the share is low, others had the machine.",
]


def _window(subject: Subject, items: int, *, least_seconds: float) -> dict[str, float]:
    """Insert rollouts and take as many samples, in turn, until `items` were written and `least_seconds` have passed."""
    count = {"inserts": 0, "samples": 0}
    spent = {"inserts": 0.0, "samples": 0.0}
    begin, cpu, faults = time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while count["inserts"] < items or time.perf_counter() - begin < least_seconds:
        at = time.perf_counter()
        count["inserts"] += subject.insert()
        then = time.perf_counter()
        while count["samples"] < count["inserts"]:
            count["samples"] += subject.sample()
        spent["inserts"] += then - at
        spent["samples"] += time.perf_counter() - then
    seconds = time.perf_counter() - begin
    written = count["inserts"] * subject.item_bytes / 1e6
    return {
        "inserts_per_s": count["inserts"] / spent["inserts"],
        "samples_per_s": count["samples"] / spent["samples"],
        "rss_GB": _resident_bytes() / 1e9,
        "cpu_share": (time.process_time() - cpu) / seconds,
        "faults_per_MB": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / written,
    }


def _furthest(rows: list[dict[str, Any]], name: str) -> float | None:
    """Compute the greatest deviation of a window from the median of all, as a share of it."""
    values = [row[name] for row in rows]
    middle = median(values)
    return max(abs(value / middle - 1.0) for value in values) if middle else None


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ---------------------------------------------------------------------------------------------------------- peers


class Peers:
    """cpprb and torchrl, each in a process of its own: their table is filled anew for every round."""

    def __init__(self, options: Options) -> None:
        item = {200: "small", 28_224: "frame"}.get(options.item_bytes)
        known = item is not None and options.selector in ("uniform", "prioritized") and options.batch_size == 256
        if options.peer_python and not known:
            raise SystemExit(
                "rookery: the peers' driver knows items of 200 and 28224 bytes, uniform and prioritized, in batches of 256: "
                "leave --peer-python out, or ask for one of these"
            )
        words = lambda lib: ("inproc_replay.py", "replay", "--lib", lib, "--item", item or "", "--sampler", options.selector)
        libs = ("cpprb", "torchrl")
        self._peers = chosen(options.peers, [(lib, options.peer_python, words(lib)) for lib in libs])
        self._drivers = options.peers or ""
        self.names = [peer.name for peer in self._peers]
        self.answers: dict[str, list[dict[str, Any]]] = {name: [] for name in self.names}
        self.failures: list[str] = []

    def measure(self, seconds: float) -> None:
        """Measure a round of each peer."""
        for peer in self._peers:
            done = peer.measure(self._drivers, timeout=600, words=("--secs", f"{seconds:g}"))
            if done.failure is not None:
                self.failures.append(f"{peer.name} {done.failure}")
                continue
            self.answers[peer.name].append(done.answer)
            said = ", ".join(f"{done.answer[key]:,.0f} {name}" for key, name in ANSWER.items())
            print(f"  {peer.name}: {said}", file=sys.stderr, flush=True)


ANSWER = {"insert_per_s": "inserts_per_s", "chunk_insert_per_s": "bulk_inserts_per_s", "sample_per_s": "samples_per_s"}


def beside(options: Options, ours: Record, peers: Peers) -> Record:
    """Add the peers' figures of the same rounds to our record, and the quotients."""
    [row] = ours.rows
    mine = {"library": "rookery", "inserts_per_s": None, "bulk_inserts_per_s": row["inserts_per_s"]}
    rows: list[dict[str, Any]] = [mine | {"samples_per_s": row["samples_per_s"]}]
    runs = [run | {"library": "rookery"} for run in ours.runs]
    for name, answers in peers.answers.items():
        rounds = [{ours: answer[key] for key, ours in ANSWER.items()} for answer in answers]
        rows.append({"library": name} | {key: median([one[key] for one in rounds]) for key in ANSWER.values()})
        runs += [{"round": number, "library": name} | one for number, one in enumerate(rounds)]
    for one in rows:
        one["samples_ours_over_theirs"] = ratio(row["samples_per_s"], one["samples_per_s"])
        one["inserts_ours_over_theirs"] = ratio(row["inserts_per_s"], one["inserts_per_s"])
        one["bulk_inserts_ours_over_theirs"] = ratio(row["inserts_per_s"], one["bulk_inserts_per_s"])
    theirs = {one["library"]: one for one in rows[1:]}
    best = max((one for one in rows[1:] if one["samples_per_s"]), key=lambda one: one["samples_per_s"], default=None)
    what = f"samples/s : {best['library']}'s, the best of the peers that answered" if best else "samples/s : the peers'"
    verdicts = [
        Verdict.of(what, best["samples_ours_over_theirs"] if best else None, at_least=1.0),
        Verdict.of("inserts/s as rollouts : cpprb's one by one", theirs["cpprb"]["inserts_ours_over_theirs"], at_least=5.0),
    ]
    versions = {name: answers[0]["version"] for name, answers in peers.answers.items() if answers}
    return dataclasses.replace(
        ours,
        subject=f"{ours.subject}, beside cpprb and torchrl",
        command=f"{ours.command} --peers DIR --peer-python PYTHON",
        conditions=ours.conditions | {"versions": ours.conditions["versions"] | versions},
        settings=ours.settings | {"capacity": options.size, "batch_size": options.batch_size},
        rows=rows,
        verdicts=verdicts,
        notes=[NOTES[0], PEER_NOTE],
        runs=runs,
        failures=peers.failures,
    )
