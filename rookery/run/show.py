"""`rookery show`: a system as its figure, with counts and bytes."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from rookery import systems
from rookery.run.assemble import assemble
from rookery.run.config import Config
from rookery.run.words import text
from rookery.topologies.plan import Node, Plan


def describe(cfg: Config) -> tuple[dict[str, Any], str]:
    """Describe the plan as plain values, and as text."""
    cfg = cfg.settled()
    plan = assemble(cfg).plan
    values = {
        "system": cfg.system,
        "env": cfg.env_name,
        "env_options": cfg.env_options,
        "nodes": plan.counts,
        "edges": [edge._asdict() for edge in plan.edges],
        "facts": plan.facts,
    }
    figure = inspect.getdoc(sys.modules[figure_of(cfg.topology, plan)]) or ""
    entry = systems.SYSTEMS.get(cfg.system)
    head = f"{cfg.system} = {type(cfg.algorithm).__name__} × {type(cfg.topology).__name__}"
    lines = [f"{head}, on {cfg.env_name}" + (f" ({entry.paper})" if entry else ""), "", figure, ""]
    if cfg.env_options:
        lines += [f"environment: {' '.join(f'{name}={text(value)}' for name, value in cfg.env_options.items())}", ""]
    lines += [f"with {', '.join(letters(cfg, plan))}:", ""]
    lines += [f"  {_many(node):>8} × {node.name}" + _of_whom(node, plan) for node in plan.nodes]
    lines += [""]
    routes = {edge.name: f"{edge.source} → {edge.target}" for edge in plan.edges}
    width, room = max(map(len, routes)), max(map(len, routes.values()))
    for edge in plan.edges:
        what = f"{edge.name:<{width}}  {routes[edge.name]:<{room}}  {edge.kind:<7}"
        lines.append(f"  {what} {size(edge.nbytes):>10} each; when full: {edge.when_full}")
    lines += [""] + [f"  {name}: {value}" for name, value in plan.facts.items()]
    return values, "\n".join(lines)


def _many(node: Node) -> str:
    least, most = node.span
    return f"{most:,}" if least == most else f"{least}..{most}"


def _of_whom(node: Node, plan: Plan) -> str:
    """Name the policy of a node, where there are several."""
    return f" ({node.agent})" if len(plan.agents) > 1 and node.role != "environment" else ""


def figure_of(topology: Any, plan: Plan) -> str:
    """Return the module whose docstring is the figure."""
    return "rookery.topologies.central" if plan.of_role("host") else type(topology).__module__


def letters(cfg: Config, plan: Plan) -> list[str]:
    """List what the letters of the figure stand for here."""
    topology = cfg.topology
    meanings = {
        "T": (cfg.algorithm, "rollout_length"), "B": (topology, "num_envs"), "C": (topology, "collectors"),
        "K": (topology, "in_flight"), "W": (topology, "workers"), "S": (topology, "shards"), "N": (topology, "peers"),
        "G": (topology if plan.of_role("host") else None, "groups"),
    }  # fmt: skip
    return [f"{letter} = {getattr(part, name)}" for letter, (part, name) in meanings.items() if hasattr(part, name)]


def size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return ""
