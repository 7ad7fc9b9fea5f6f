"""`rookery show`: a system as its figure, with counts and bytes."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from rookery import systems
from rookery.run.assemble import assemble
from rookery.run.config import Config, text


def describe(cfg: Config) -> tuple[dict[str, Any], str]:
    """The graph as plain values, and as text."""
    cfg = cfg.settled()
    graph = assemble(cfg).graph
    values = {
        "system": cfg.system,
        "env": cfg.env_name,
        "env_options": cfg.env_options,
        "nodes": graph.nodes,
        "edges": [edge._asdict() for edge in graph.edges],
        "facts": graph.facts,
    }
    figure = inspect.getdoc(sys.modules[figure_of(cfg.topology)]) or ""
    entry = systems.SYSTEMS.get(cfg.system)
    head = f"{cfg.system} = {type(cfg.algorithm).__name__} × {type(cfg.topology).__name__}"
    lines = [f"{head}, on {cfg.env_name}" + (f" ({entry.paper})" if entry else ""), "", figure, ""]
    if cfg.env_options:
        lines += [f"environment: {' '.join(f'{name}={text(value)}' for name, value in cfg.env_options.items())}", ""]
    lines += [f"with {', '.join(letters(cfg))}:", ""]
    lines += [f"  {count:>6,} × {role}" for role, count in graph.nodes.items()]
    lines += [""]
    width = max(len(edge.name) for edge in graph.edges)
    for edge in graph.edges:
        route = f"{edge.source} → {edge.target}"
        lines.append(f"  {edge.name:<{width}}  {route:<22} {size(edge.nbytes):>10} each; when full: {edge.when_full}")
    lines += [""] + [f"  {name}: {value}" for name, value in graph.facts.items()]
    return values, "\n".join(lines)


def figure_of(topology: Any) -> str:
    """The module whose docstring is the figure."""
    return "rookery.topologies.central" if "host" in topology.roles() else type(topology).__module__


def letters(cfg: Config) -> list[str]:
    """What the letters of the figure stand for here."""
    topology = cfg.topology
    meanings = {
        "T": (cfg.algorithm, "rollout_length"), "B": (topology, "num_envs"), "C": (topology, "collectors"),
        "K": (topology, "in_flight"), "W": (topology, "workers"), "S": (topology, "shards"), "N": (topology, "peers"),
        "G": (topology if "host" in topology.roles() else None, "groups"),
    }  # fmt: skip
    return [f"{letter} = {getattr(part, name)}" for letter, (part, name) in meanings.items() if hasattr(part, name)]


def size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return ""
