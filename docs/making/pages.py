"""The parts of a system's page that are made, between <!-- made:WHAT --> and <!-- /made:WHAT -->; the rest is by hand."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from options import options_of, table

from rookery.run.assemble import assemble
from rookery.run.config import Config, resolve
from rookery.run.show import describe, figure_of
from rookery.systems import SYSTEMS, System
from rookery_bench import record

ROOT = Path(__file__).resolve().parents[2]
PART = re.compile(r"<!-- made:(?P<what>\w+)(?P<words>[^\n]*) -->\n.*?<!-- /made:(?P=what) -->", re.S)
TOPOLOGY_PAGES = {"AsyncGradients": "async_gradients", "ParameterServer": "parameter_server", "Gossip": "gossip",
                  "TwoLearners": "two_learners"} | {
    name: name.lower() for name in ("Anakin", "Evolution")
}
SEEN = {"curl-sac": "pixel-reach", "async-curl-sac": "pixel-reach", "curl-rainbow": "ALE/Pong-v5"}  # images
CONTINUOUS = ("ddpg:DDPG", "td3:TD3", "sac:SAC", "qt_opt:QTOpt")
UNNAMED = "Acrobot-v1"  # an environment that has no preset, so that defaults are those of the system itself


def renewed(page: str, name: str) -> str:
    """Make all parts of a system's page again."""
    makers = {"head": head, "figure": figure, "options": chosen_options, "results": results, "read": reading}

    def made(found: re.Match[str]) -> str:
        what, words = found["what"], found["words"].split()
        return f"<!-- made:{what}{found['words']} -->\n{makers[what](SYSTEMS[name], *words)}\n<!-- /made:{what} -->"

    return PART.sub(made, page)


def index() -> str:
    """Write the table of all systems."""
    rows = ["| system | what it is | algorithm × topology | paper |", "|---|---|---|---|"]
    for system in SYSTEMS.values():
        algorithm, topology = system.algorithm.split(":")[1], system.topology.split(":")[1]
        central = ", central inference" * (system.defaults.get("inference") == "central")
        rows.append(
            f"| [`{system.name}`]({system.name}.md) | {system.summary} | {algorithm} × {topology}{central} | {system.paper} |"
        )
    return "\n".join(rows)


def env_of(system: System) -> str:
    """Return the environment of a system's figure: one that its algorithm can act in."""
    if system.name in SEEN:
        return SEEN[system.name]
    id = "Pendulum-v1" if system.algorithm in CONTINUOUS else "CartPole-v1"
    return f"jax:{id}" if "anakin" in system.topology else id


def plain(system: System) -> Config:
    """Resolve a system for an environment that nobody named."""
    return resolve(system.name, env=UNNAMED)


def head(system: System) -> str:
    algorithm, topology = system.algorithm.split(":"), system.topology.split(":")
    central = system.defaults.get("inference") == "central"
    page = "central" if central else TOPOLOGY_PAGES.get(topology[1])
    more = f", [its page](../topologies/{page}.md)" if page else ""
    return "\n".join([
        f"- learns: [`{algorithm[1]}`](../../rookery/algorithms/{algorithm[0]}.py), {system.paper}",
        f"- is cut as: [`{topology[1]}`](../../rookery/topologies/{topology[0]}.py){' with central inference' * central}{more}",
        f"- options: [all of them, with defaults](../reference/options/{system.name}.md)",
    ])  # fmt: skip


def figure(system: System) -> str:
    """Show the system as `rookery show` does, with its prose wrapped for a page."""
    parts = describe(resolve(system.name, env=env_of(system)))[1].rstrip().split("\n\n")
    wrapped = [textwrap.fill(" ".join(part.split()), 84) if _is_prose(part) else part for part in parts]
    text = "\n\n".join(wrapped)
    return f"```text\n{text}\n```"


def _is_prose(part: str) -> bool:
    lines = part.splitlines()
    return not part.startswith(" ") and max(map(len, lines)) > 84 and not any(line.startswith("  ") for line in lines)


def chosen_options(system: System, *names: str) -> str:
    config = plain(system)
    known = {option.name: option for part in (config.algorithm, config.topology) for option in options_of(part)}
    for group in ("network", "replay", "views"):
        if (inner := getattr(config.algorithm, group, None)) is not None:
            known |= {option.name: option for option in options_of(inner, f"{group}.")}
    return table([known[name] for name in names])


def results(system: System) -> str:
    """Write the newest record of each task that was trained with this system, on this machine's threads."""
    records = [r for r in record.newest(record.read([ROOT / "benchmarks" / "learning.jsonl"])) if _trains(r, system.name)]
    if not records:
        return "There is no record of its own yet; what it learns on toys in seconds is held by `tests/learning`."
    rows = ["| command | seeds | least | median | greatest | s per run | bar |", "|---|---:|---:|---:|---:|---:|---|"]
    for found in records:
        (row,) = found.rows
        met = "met" if row["passed"] == "yes" else "**not met**"
        cells = [row.get("seeds"), row.get("min"), row.get("median"), row.get("max"), row.get("s_per_run")]
        rows.append(f"| `{found.settings['train']}` | {' | '.join(map(record.cell, cells))} | {row['bar']}: {met} |")
    days = sorted(found.conditions["date"][:10] for found in records)
    machines = [f"{found.conditions['cores']} cores of {found.conditions['processor']}" for found in records]
    machine = " and ".join(dict.fromkeys(machines))
    about = (
        f"Returns of the greedy policy or of the last 100 training episodes, over seeds; {machine}, other programs beside; "
        f"{days[0]} to {days[-1]}. Records: `benchmarks/learning.jsonl`; how they are made: [benchmarks](../benchmarks.md)."
    )
    return "\n".join([*rows, "", about])


def _trains(found: record.Record, name: str) -> bool:
    words = str(found.settings.get("train", "")).split()
    return words[:3] == ["rookery", "train", name] and "ray" not in words and found.rows[0].get("median") is not None


def reading(system: System) -> str:
    """List the files that make up the system, in the order in which a rollout meets them."""
    config = resolve(system.name, env=env_of(system))
    plan = assemble(config.settled()).plan
    modules = [figure_of(config.topology, plan), type(config.topology).__module__]
    workers = [getattr(node.worker, "func", node.worker) for node in plan.nodes if node.worker]  # or a partial of one
    modules += [worker.__module__ for worker in workers]
    modules += [type(config.algorithm).__module__, *_ops(type(config.algorithm).__module__)]
    rows = [f"{i}. [{_file(name)}](../../{_file(name)}): {_about(name)}" for i, name in enumerate(dict.fromkeys(modules), 1)]
    return "\n".join(rows)


def _ops(module: str) -> list[str]:
    """Find the modules of the equations that an algorithm names as ops.x."""
    ops = importlib.import_module("rookery.ops")
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    found = [_home(getattr(ops, node.attr, None)) for node in named if node.value.id == "ops"]
    first = ("vtrace", "returns", "q_learning", "ranks", "distributions")  # the rest is bookkeeping
    return [f"rookery.ops.{name}" for name in first if f"rookery.ops.{name}" in found]


def _home(thing: Any) -> str:
    return getattr(thing, "__module__", "")


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _about(module: str) -> str:
    said = ast.get_docstring(ast.parse((ROOT / _file(module)).read_text())) or ""
    first = said.split("\n\n")[0].replace("\n", " ")
    return first.replace("*", "\\*")
