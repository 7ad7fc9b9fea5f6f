"""A run's metrics.jsonl, as the benches read it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def read_metrics(run: Path) -> Rows:
    """Read the rows in the order in which they were written; a last line that is cut off is left out."""
    rows = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def curve(rows: Rows, *, every_seconds: float = 60.0) -> list[tuple[float, int, float | None]]:
    """Return points (minutes, env_steps, return_mean), about one per period, and the last row."""
    points: list[tuple[float, int, float | None]] = []
    due = 0.0
    for i, row in enumerate(rows):
        if row["seconds"] >= due or i == len(rows) - 1:
            mean = row.get("return_mean")
            points.append((round(row["seconds"] / 60, 2), row["env_steps"], None if mean is None else round(mean, 2)))
            due = (row["seconds"] // every_seconds + 1) * every_seconds
    return points
