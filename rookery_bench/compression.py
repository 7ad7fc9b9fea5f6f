"""Does compressing stored images pay? Bytes saved against the speed of reading them again, on frames of real games.

    pip install lz4 zstandard          # for those codecs; neither is a dependency of Rookery
    rookery bench compression --envs ALE/Pong-v5 ALE/Breakout-v5

Frames are kept singly, as a table with `stack` keeps them. A batch reads single frames at random, so what counts is how fast
one frame is there again: from a frame compressed alone, or from the chunk of 64 that it was compressed with.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro

from rookery_bench.record import Record, conditions

CHUNK = 64  # frames, as data/replay.py stores them


@dataclass(frozen=True, kw_only=True)
class Options:
    """Codecs on Atari frames."""

    envs: tuple[str, ...] = ("ALE/Pong-v5", "ALE/Breakout-v5")
    """Environments whose frames are kept."""
    frames: int = 2048
    """Frames of each environment, played at random."""
    seconds: float = 0.5
    """Time spent on each figure."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/compression.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench compression")


def copied(data: bytes) -> bytes:
    return bytes(memoryview(data))  # bytes(bytes) would be the same object


Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def codecs() -> dict[str, Codec]:
    """List the codecs that are installed; zlib always is."""
    found: dict[str, Codec] = {"zlib 1": (lambda data: zlib.compress(data, 1), zlib.decompress)}
    if (lz4 := _module("lz4.block")) is not None:
        found["lz4"] = (lz4.compress, lz4.decompress)
    if (zstd := _module("zstandard")) is not None:
        for level in (1, 3):
            found[f"zstd {level}"] = (zstd.ZstdCompressor(level=level).compress, zstd.ZstdDecompressor().decompress)
    elif (zstd := _module("compression.zstd")) is not None:  # Python 3.14
        for level in (1, 3):
            found[f"zstd {level}"] = (functools.partial(zstd.compress, level=level), zstd.decompress)
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def frames_of(env: str, count: int) -> np.ndarray:
    """Play at random: [count, H, W] uint8, the newest frame of each step, one environment after the other."""
    from rookery import envs

    pool, random = envs.make(env, 8), np.random.default_rng(0)
    pool.reset(0)
    rows = []
    for _ in range(-(-count // 8)):
        pool.send(random.integers(0, pool.spec.action.n, 8), 0)  # type: ignore[attr-defined]
        rows.append(np.array(pool.recv(0).observation)[:, -1])
    pool.close()
    return np.ascontiguousarray(np.stack(rows, 1).reshape(-1, *rows[0].shape[1:])[:count])


def measure(options: Options) -> list[Record]:
    now, rows = conditions(), []
    for env in options.envs:
        frames = frames_of(env, options.frames)
        print(f"{env}: {len(frames)} frames of {frames[0].nbytes} bytes", file=sys.stderr, flush=True)
        for name, codec in {"none": (copied, copied), **codecs()}.items():
            rows += [
                {"env": env, "codec": name, "frames": unit} | figures(frames, codec, unit, options.seconds)
                for unit in (1, CHUNK)
            ]
    return [
        Record(
            bench="compression",
            subject="frames of " + ", ".join(options.envs),
            command=f"rookery bench compression --envs {' '.join(options.envs)} --frames {options.frames}",
            conditions=now,
            settings={},
            rows=rows,
            notes=[
                "frames: compressed together. size: compressed over plain. writes_per_s, reads_per_s: frames per second of one "
                "core; a read gives one frame at random, so of a chunk it decodes all. none: a copy of as many bytes."
            ],
        )
    ]


def figures(frames: np.ndarray, codec: Codec, unit: int, seconds: float) -> dict[str, float]:
    """Measure the size and speed of a codec on units of `unit` frames."""
    compress, decompress = codec
    plain = [frames[i : i + unit].tobytes() for i in range(0, len(frames) - unit + 1, unit)]
    packed = [compress(data) for data in plain]
    assert decompress(packed[0]) == plain[0]
    order = np.random.default_rng(1).permutation(len(plain))
    return {
        "size": sum(map(len, packed)) / sum(map(len, plain)),
        "writes_per_s": unit * _per_second(lambda i: compress(plain[i]), order, seconds),
        "reads_per_s": _per_second(lambda i: decompress(packed[i]), order, seconds),
    }


def _per_second(step: Callable[[int], Any], order: np.ndarray, seconds: float) -> float:
    """Count steps per second of processor time: others may be at work on the machine."""
    count, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not count:
        step(int(order[count % len(order)]))
        count += 1
    return count / spent
