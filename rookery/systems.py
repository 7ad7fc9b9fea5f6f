"""Every named system: an algorithm, a topology and the defaults that go with them. Imports neither jax nor the parts.

`PRESETS` holds what is known to work for families of environments; the first that fits is taken, and whatever the user
says comes on top. A preset is a plain mapping of option names to values.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class System:
    name: str
    algorithm: str  # "module:class" below rookery.algorithms
    topology: str  # "module:class" below rookery.topologies
    summary: str
    paper: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def algorithm_class(self) -> type:
        return _load("rookery.algorithms", self.algorithm)

    def topology_class(self) -> type:
        return _load("rookery.topologies", self.topology)


@dataclass(frozen=True)
class Preset:
    systems: tuple[str, ...]
    env: str  # a pattern such as "ALE/*"
    options: Mapping[str, Any]


class UnknownSystem(ValueError):
    """There is no system of that name."""


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("ppo", "ppo:PPO", "sync:Sync", "proximal policy optimisation", "Schulman et al. 2017"),
        System("a2c", "a2c:A2C", "sync:Sync", "advantage actor-critic", "Mnih et al. 2016"),
        System("pg", "pg:PG", "sync:Sync", "plain policy gradient", "Williams 1992"),
        System("impala", "vtrace:VTrace", "actor_learner:ActorLearner", "V-trace actor-learner", "Espeholt et al. 2018"),
        System("appo", "appo:APPO", "actor_learner:ActorLearner", "PPO's clip on V-trace targets", "Petrenko et al. 2020"),
    )
}

ATARI_NETWORK = {"encoder": "nature", "activation": "relu"}
PRESETS: tuple[Preset, ...] = (
    Preset(("ppo",), "CartPole-v1", {"num_envs": 64, "rollout_length": 32, "total_steps": 300_000}),
    Preset(("ppo",), "ALE/*", {"num_envs": 8, "rollout_length": 128, "clip": 0.1, "groups": 2, "network": ATARI_NETWORK}),
    Preset(("impala",), "ALE/*", {"reward_clip": "unit", "network": ATARI_NETWORK}),
)


def system(name: str) -> System:
    """The system of that name; an error that suggests the nearest otherwise."""
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownSystem(f"there is no system {name!r}.{hint} Systems: {', '.join(SYSTEMS)}.")
    return SYSTEMS[name]


def defaults(name: str, env: str) -> dict[str, Any]:
    """The system's own defaults, then those of the first preset that fits the environment."""
    chosen = next((p.options for p in PRESETS if name in p.systems and fnmatch.fnmatch(env, p.env)), {})
    return {**SYSTEMS[name].defaults, **chosen}


def name_of(algorithm: Any) -> str:
    """The system that an algorithm of Rookery's is known by (PPO() -> "ppo"), else the name of its class."""
    path = f"{type(algorithm).__module__}:{type(algorithm).__name__}".removeprefix("rookery.algorithms.")
    return next((entry.name for entry in SYSTEMS.values() if entry.algorithm == path), type(algorithm).__name__)


TOPOLOGIES = {entry.topology.split(":")[1]: entry.topology for entry in SYSTEMS.values()}


def load_topology(class_name: str) -> type:
    """The topology of that name. Only names known here: a file never causes an import of anything else."""
    if class_name not in TOPOLOGIES:
        raise ValueError(f"there is no topology {class_name!r}: {', '.join(TOPOLOGIES)}")
    return _load("rookery.topologies", TOPOLOGIES[class_name])


def _load(package: str, path: str) -> type:
    module, name = path.split(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)
