"""What a run is asked to do: system, environment, algorithm, topology and the options of the run itself.

Options are flat: `learning_rate`, `num_envs` and `total_steps` belong to the algorithm, the topology and the run, and no
two share a name. `network` is the one nested group.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rookery import systems
from rookery.types import Agent


class ConfigError(ValueError):
    """What was asked for cannot be done; the message says why and what is near."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """When a run ends, what it writes, and where."""

    total_steps: int = 1_000_000
    """Environment steps to train for."""
    seconds: float | None = None
    """Stop after this long."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 training episodes reaches this."""
    stop_eval_return: float | None = None
    """Stop when an evaluation of the greedy policy reaches this mean return."""
    seed: int = 0
    run: str | None = None
    """Name of the run's directory; made from the system, the environment and the time by default."""
    runs: str = "runs"
    """The directory that holds the runs."""
    runtime: Literal["local"] = "local"
    eval_episodes: int = 20
    eval_every: int | None = None
    """Updates between evaluations; by default only at the end, or 20 times when --stop-eval-return asks for them."""
    checkpoint_every: int | None = None
    """Updates between checkpoints; by default a tenth of the run."""
    keep_checkpoints: int = 3
    tensorboard: bool = False
    """Also write TensorBoard events (pip install 'rookery[tensorboard]')."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on."""

    system: str  # a name in systems.SYSTEMS, or the class name of an algorithm of the user's
    env: Any  # an id, or a callable that makes a gymnasium environment
    env_options: dict[str, Any]
    algorithm: Any
    topology: Any
    run: RunOptions

    @property
    def env_name(self) -> str:
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)

    @property
    def steps_per_update(self) -> int:
        rollouts = getattr(self.topology, "rollouts_per_batch", self.topology.collectors)
        return self.topology.num_envs // self.topology.collectors * rollouts * self.algorithm.rollout_length

    @property
    def num_updates(self) -> int:
        """Planned, for schedules: resets are no steps, so a run may need a few more."""
        return max(1, math.ceil(self.run.total_steps / self.steps_per_update))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for config.json."""
        return {
            "system": self.system,
            "env": self.env_name,
            "env_options": self.env_options,
            "algorithm": {"class": _class_name(self.algorithm)} | msgspec.to_builtins(self.algorithm),
            "topology": {"class": _class_name(self.topology)} | msgspec.to_builtins(self.topology),
            "run": msgspec.to_builtins(self.run),
        }


def resolve(
    system: str | Any, *, env: Any, env_options: dict[str, Any] | None = None, topology: Any = None, **options: Any
) -> Config:
    """The config of a named system, or of an algorithm (a dataclass with `build`), with `options` on top."""
    name = system if isinstance(system, str) else type(system).__name__
    env_name = env if isinstance(env, str) else ""
    if isinstance(system, str):
        entry = systems.system(system)
        given = systems.defaults(name, env_name) | options
        base_algorithm, base_topology = entry.algorithm_class()(), topology or entry.topology_class()()
    else:
        from rookery.topologies.sync import Sync

        given, base_algorithm, base_topology = dict(options), system, topology or Sync()
    parts = {"algorithm": base_algorithm, "topology": base_topology, "run": RunOptions()}
    owners = {f.name: owner for owner, part in parts.items() for f in dataclasses.fields(part)}
    unknown = [option for option in given if option not in owners]
    if unknown:
        raise ConfigError("; ".join(_unknown_option(option, name, list(owners)) for option in unknown))
    for owner, part in parts.items():
        mine = {option: value for option, value in given.items() if owners[option] == owner}
        if isinstance(mine.get("network"), dict):
            mine["network"] = _replace(part.network, mine["network"])
        parts[owner] = _replace(part, mine)
    return Config(system=name, env=env, env_options=env_options or {}, **parts)


def from_dict(saved: dict[str, Any], *, algorithm: Any = None, env: Any = None) -> Config:
    """The config that `to_dict` wrote. A custom algorithm or environment is never imported from a file: pass it again."""
    if algorithm is None and saved["system"] not in systems.SYSTEMS:
        raise ConfigError(f"this run used the algorithm {saved['system']!r}, which is not Rookery's: pass algorithm=...")
    entry = systems.SYSTEMS.get(saved["system"])
    values = {key: value for key, value in saved["algorithm"].items() if key != "class"}
    topology_class = systems.load_topology(saved["topology"]["class"])
    return Config(
        system=saved["system"],
        env=saved["env"] if env is None else env,
        env_options=saved["env_options"],
        algorithm=msgspec.convert(values, entry.algorithm_class()) if entry and algorithm is None else algorithm,
        topology=msgspec.convert({k: v for k, v in saved["topology"].items() if k != "class"}, topology_class),
        run=msgspec.convert(saved["run"], RunOptions),
    )


def check(config: Config, agent: Agent) -> None:
    """Refuses a combination that cannot be right, with the reason and the nearest right one."""
    needs, topology = agent.needs, config.topology
    lag = topology.max_lag()
    name, where = type(config.algorithm).__name__, type(topology).__name__
    if needs.max_lag is not None and lag > needs.max_lag:
        nearest = "Sync" if needs.max_lag == 0 else f"{where} with fewer rollouts in flight"
        also = " (or APPO, which is PPO made for old data)" if name == "PPO" else ""
        raise ConfigError(
            f"{name} may learn from data at most {needs.max_lag} updates old, but {where} lets it become {lag}: "
            f"use {nearest}{also}."
        )
    if needs.replay:
        raise ConfigError(f"{name} learns from replayed data, but {where} shows each step once: it needs a replay table.")


def command(config: Config) -> str:
    """A shell command that repeats the run, with every option that differs from the defaults of the classes."""
    words = ["rookery", "train", config.system, "--env", config.env_name]
    base = resolve(config.system, env=config.env) if config.system in systems.SYSTEMS else None
    for key, value in config.env_options.items():
        words += ["--env-options", f"{key}={value}"]
    if base is not None:
        for part in ("algorithm", "topology", "run"):
            words += _differences(getattr(config, part), getattr(base, part))
    return " ".join(words)


def _differences(mine: Any, base: Any, prefix: str = "") -> list[str]:
    words: list[str] = []
    for f in dataclasses.fields(mine):
        value, other = getattr(mine, f.name), getattr(base, f.name)
        flag = f"--{prefix}{f.name.replace('_', '-')}"
        if value == other:
            continue
        if dataclasses.is_dataclass(value):
            words += _differences(value, other, prefix=f"{f.name}.")
        elif isinstance(value, bool):
            words.append(flag if value else f"--{prefix}no-{f.name.replace('_', '-')}")
        else:
            words += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def _replace(part: Any, values: dict[str, Any]) -> Any:
    """dataclasses.replace with the types checked."""
    names = {f.name for f in dataclasses.fields(part)}
    for option in values:
        if option not in names:
            raise ConfigError(_unknown_option(option, type(part).__name__, sorted(names)))
    changed = dataclasses.replace(part, **values)
    try:
        return msgspec.convert(msgspec.to_builtins(changed), type(part))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{type(part).__name__}: {error}") from None
    except TypeError:  # a user's own dataclass may hold what is no plain value
        return changed


def _unknown_option(option: str, owner: str, known: list[str]) -> str:
    near = difflib.get_close_matches(option, known, n=1)
    return f"{owner} has no option {option!r}." + (f" Did you mean {near[0]!r}?" if near else f" Options: {', '.join(known)}.")


def _class_name(value: Any) -> str:
    return type(value).__name__
