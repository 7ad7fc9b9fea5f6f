"""Tables for `rookery list`. Nothing here imports jax."""

from __future__ import annotations

from typing import Any

from rookery import systems as all_systems

Rows = list[dict[str, Any]]


def systems() -> Rows:
    return [
        {
            "system": s.name,
            "algorithm": s.algorithm.split(":")[1],
            "topology": s.topology.split(":")[1],
            "runtime": "local",
            "summary": s.summary,
            "paper": s.paper,
        }
        for s in all_systems.SYSTEMS.values()
    ]


def envs() -> Rows:
    from rookery.envs import catalogue

    return [dict(env._asdict()) for env in catalogue()]


def runs(root: str = "runs") -> Rows:
    from rookery.run.directory import Run

    return [
        {
            "run": row.name,
            "system": row.system,
            "env": row.env,
            "env_steps": row.env_steps,
            "return_mean": row.return_mean,
            "status": row.status,
            "age": _age(row.age_seconds),
        }
        for row in Run.list(root)
    ]


def table(rows: Rows) -> str:
    """Aligned columns; numbers to the right."""
    if not rows:
        return "(none)"
    cells = [list(rows[0])] + [[_cell(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    numeric = [all(isinstance(v, (int, float)) or v is None for v in column) for column in zip(*(r.values() for r in rows))]
    lines = (
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric)).rstrip() for line in cells
    )
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
