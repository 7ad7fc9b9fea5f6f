"""Run directories as training leaves them, without training: files only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.run.records import sealed, write_json

OPTIONS = {"class": "PPO", "learning_rate": 0.001, "network": {"hidden": [64]}}


def write_run(
    path: Path, *, system: str = "ppo", env: str = "CartPole-v1", seed: int = 0, status: str | None = "done",
    points: Sequence[tuple[float, float]] = ((100, 10.0), (200, 20.0)), eval_return_mean: float | None = None,
    episodes: Iterable[dict[str, Any]] = (), evaluations: Iterable[dict[str, Any]] = (), reason: str | None = None,
    steps_per_s: float = 1000.0, **options: Any,
) -> Path:  # fmt: skip
    """Write a run whose training return is `points`, (steps, return), at a hundred steps an episode and an update."""
    path.mkdir(parents=True)
    config = {
        "system": system, "env": env, "env_options": {}, "algorithm": OPTIONS | options, "topology": {"class": "Sync"},
        "run": {"seed": seed, "run": path.name, "total_steps": 300}, "custom": [], "machine": {"cores": 2},
    }  # fmt: skip
    told = {"format": 2, "created": "2026-11-18T20:00:00+00:00", "command": "rookery train", "config": config, "versions": {}}
    (path / "config.json").write_bytes(sealed(told))
    rows = [row(steps, value, steps_per_s=steps_per_s) for steps, value in points]
    write_lines(path / "metrics.jsonl", rows)
    for name, more in (("episodes", list(episodes)), ("evaluations", list(evaluations))):
        if more:
            write_lines(path / f"{name}.jsonl", more)
    if status is not None:
        last = {name: rows[-1][name] for name in ("env_steps", "seconds", "return_mean")} if rows else {}
        write_json(path / "result.json", {"status": status, **last, "eval_return_mean": eval_return_mean, "reason": reason})
    return path


def row(steps: float, value: float | None, steps_per_s: float = 1000.0) -> dict[str, Any]:
    count = int(steps // 100)
    return {"seconds": steps / steps_per_s, "env_steps": int(steps), "updates": count, "episodes": count, "return_mean": value,
            "eval_return_mean": None, "loss/value": 1.0 / (1 + steps)}  # fmt: skip


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def learning(
    seed: int, *, total: float = 300_000, low: float = 20.0, high: float = 480.0, pace: float = 1.0
) -> list[tuple[float, float]]:
    """Make points that look like learning: an S with noise, a hundred of them."""
    rng = np.random.default_rng(seed)
    steps = np.linspace(total / 100, total, 100) + rng.uniform(0, total / 400, 100)
    middle, width = total * (0.35 + 0.1 * rng.standard_normal()) / pace, total * 0.09
    noise = np.cumsum(rng.standard_normal(100)) * 0.006 + 0.015 * rng.standard_normal(100)
    share = 1 / (1 + np.exp(-(steps - middle) / width)) + noise
    return [(float(s), float(low + (high - low) * v)) for s, v in zip(steps, share)]
