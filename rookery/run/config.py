"""What a run is asked to do: system, environment, algorithm, topology and the options of the run itself.

Options are flat: `learning_rate`, `num_envs` and `total_steps` belong to the algorithm, the topology and the run, and no
two share a name. `network` and `replay` are nested groups.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from rookery import ranges, systems
from rookery.envs.pools.pool import OnNan
from rookery.ranges import Count, Finite, Long, Natural, Positive, Range, Seed, Workers
from rookery.run import fitting, startup
from rookery.runtime.interface import Resources
from rookery.runtime.roster import span
from rookery.topologies.plan import Plan
from rookery.types import Agent, Spec


class ConfigError(ValueError):
    """What was asked for cannot be done; the message says why and what is near."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """When a run ends, what it writes, and where."""

    total_steps: Long = 1_000_000
    """Environment steps to train for."""
    total_updates: Long | None = None
    """Stop after this many updates at the latest."""
    seconds: Positive | None = None
    """Stop after this many seconds, start-up included."""
    stop_return: Finite | None = None
    """Stop when the mean return of the last 100 training episodes reaches this."""
    stop_eval_return: Finite | None = None
    """Stop when an evaluation of the greedy policy reaches this mean return, and keep that policy."""
    seed: Seed = 0
    """Random seed of environments, network and actions."""
    run: str | None = None
    """Name of the run's directory; None: made of system, environment and time."""
    runs: str = "runs"
    """The directory that holds the runs."""
    runtime: Literal["local", "ray"] = "local"
    """Workers are threads, or Ray actors."""
    address: str | None = None
    """Ray cluster to join; None: start one here."""
    devices: Workers = 1
    """Devices per learner process (data parallel)."""
    learners: Workers | None = None
    """Learner processes (data parallel); None: in the driver."""
    collector: Resources = field(default_factory=Resources)
    learner: Resources = field(default_factory=Resources)
    shard: Resources = field(default_factory=Resources)
    eval_episodes: Annotated[int, Range(0, 10_000)] = 20
    """Greedy episodes per evaluation; 0: no evaluation."""
    eval_every: Long | None = None
    """Updates between evaluations; None: only at the end, or 20 times with --stop-eval-return."""
    checkpoint_every: Long | None = None
    """Updates between saves; None: a tenth of the run."""
    keep_checkpoints: Count = 3
    """Newest checkpoints to keep, beside checkpoints/best."""
    env_processes: Annotated[int, Range(0, 4096)] | None = None
    """Processes per collector for environments in Python; 0: step in process; None: measured."""
    env_step_seconds: Positive = 60.0
    """Time limit of an environment step."""
    env_restarts: Natural = 10
    """Restarts of a failing environment, without progress, before the run fails."""
    env_max_mb: Positive | None = None
    """Replace environment processes larger than this."""
    on_nan: OnNan = "stop"
    """What to do when an environment returns NaN or infinity."""
    strict_security: bool = False
    """Refuse clusters and ports without token authentication, instead of warning."""
    video_every: Long | None = None
    """Updates between videos of a greedy episode."""
    tensorboard: bool = False
    """Also write TensorBoard events (pip install 'rookery[tensorboard]')."""

    @property
    def learner_processes(self) -> int | None:
        """Learner processes; None: the learner lives with the driver. Resources (--learner.*) put it into one of its own."""
        return 1 if self.learners is None and self.learner != Resources() else self.learners


SAVED = ("system", "env", "env_options", "algorithm", "topology", "run", "custom", "machine")  # the keys of `to_dict`


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on."""

    system: str  # a name in systems.SYSTEMS, or the class name of an algorithm of the user's
    env: Any  # an id, or a callable that makes a gymnasium environment
    env_options: dict[str, Any]
    algorithm: Any
    topology: Any
    run: RunOptions
    torso: Any = None  # a network of the user's own: (init, apply)

    def __post_init__(self) -> None:
        """Refuse options that cannot be right, wherever they come from; all of them at once."""
        refuse(problems(self))

    @property
    def custom(self) -> tuple[str, ...]:
        """Parts that are Python objects of the user's: no file and no command can bring them back."""
        theirs = {
            "env": not isinstance(self.env, str),
            "algorithm": self.system not in systems.SYSTEMS,
            "topology": _class_name(self.topology) not in systems.TOPOLOGIES,
            "torso": self.torso is not None,
        }
        return tuple(part for part, is_theirs in theirs.items() if is_theirs)

    @property
    def env_name(self) -> str:
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)

    def settled(self) -> Config:
        """Choose the rollout length where it was left to the run; a resumed run keeps the one chosen."""
        if getattr(self.algorithm, "rollout_length", 1) is not None:
            return self
        per_row = self.topology.steps_per_update(dataclasses.replace(self.algorithm, rollout_length=1))
        algorithm = fitting.settled(
            self.algorithm, total_steps=self.run.total_steps, steps_per_row=per_row or 1, separate=self._separate()
        )
        return dataclasses.replace(self, algorithm=algorithm)

    def _separate(self) -> bool:
        """Return whether policy and value have a network each. A broken environment is reported where it is made for good."""
        from rookery.networks.network import separate
        from rookery.run.assemble import spec_of

        try:
            return separate(spec_of(self), self.algorithm.network, self.torso)
        except Exception:
            return False

    @property
    def steps_per_update(self) -> float:
        return self.topology.steps_per_update(self.settled().algorithm)

    @property
    def num_updates(self) -> int:
        """Planned updates, for schedules: resets are no steps, so a run may need a few more."""
        warm_up = self.algorithm.warm_up_steps if hasattr(self.algorithm, "warm_up_steps") else 0
        by_steps = max(1, math.ceil((self.run.total_steps - warm_up) / (self.steps_per_update or 1)))  # 0 is refused later
        return min(by_steps, self.run.total_updates or by_steps)

    @property
    def fitted(self) -> Any:
        """The algorithm with periods that fit the run (see run/fitting.py)."""
        algorithm = self.settled().algorithm
        return fitting.fitted(algorithm, total_steps=self.run.total_steps, num_updates=self.num_updates)

    def build(self, spec: Spec) -> Agent:
        return self.fitted.build(spec, num_updates=self.num_updates, torso=self.torso)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for config.json."""
        return {
            "system": self.system,
            "env": self.env_name,
            "env_options": self.env_options,
            "algorithm": {"class": _class_name(self.algorithm)} | msgspec.to_builtins(self.algorithm, enc_hook=repr),
            "topology": {"class": _class_name(self.topology)} | msgspec.to_builtins(self.topology, enc_hook=repr),
            "run": msgspec.to_builtins(self.run),
            "custom": list(self.custom),
            "machine": startup.machine(),  # a gradient differs between 1 and 2 cores, and between sets of flags
        }


def resolve(
    system: str | Any,
    *,
    env: Any,
    env_options: dict[str, Any] | None = None,
    topology: Any = None,
    torso: Any = None,
    **options: Any,
) -> Config:
    """Resolve the config of a named system, or of an algorithm (a dataclass with `build`), with `options` on top.

    An algorithm of Rookery's own brings the topology of the system that it is known by; one of the user's, Sync. Presets are
    those of a named system: an algorithm that is passed is taken as it is, and so is the environment.
    """
    name = system if isinstance(system, str) else systems.name_of(system)
    entry = systems.system(name) if isinstance(system, str) else systems.SYSTEMS.get(name)
    algorithm = entry.algorithm_class()() if entry and isinstance(system, str) else system
    if topology is None:
        topology = entry.topology_class()() if entry else systems.load_topology("Sync")()
    known = isinstance(system, str) and isinstance(env, str)
    given = systems.defaults(name, env if known else "") if isinstance(system, str) else {}
    env_options = (systems.env_options(name, env) if known else {}) | (env_options or {})
    parts = {"algorithm": algorithm, "topology": topology, "run": RunOptions()}
    owners = {f.name: owner for owner, part in parts.items() for f in dataclasses.fields(part)}
    # a preset speaks of the system's own topology; what another does not have is left out
    given = systems.merged({option: value for option, value in given.items() if option in owners}, options)
    unknown = [option for option in given if option not in owners]
    if unknown:
        raise ConfigError("; ".join(_unknown_option(option, name, list(owners)) for option in unknown))
    for owner, part in parts.items():
        mine = {option: value for option, value in given.items() if owners[option] == owner}
        for option, value in mine.items():
            if isinstance(value, dict) and dataclasses.is_dataclass(inner := getattr(part, option)):
                mine[option] = _replace(inner, value)
        parts[owner] = _replace(part, mine)
    return Config(system=name, env=env, env_options=env_options, torso=torso, **parts)


def from_dict(
    saved: dict[str, Any], *, algorithm: Any = None, env: Any = None, topology: Any = None, torso: Any = None
) -> Config:
    """Rebuild the config that `to_dict` wrote. What was custom is never imported from a file: it must be passed again."""
    passed = {"algorithm": algorithm, "env": env, "topology": topology, "torso": torso}
    missing = [part for part in saved.get("custom", ()) if passed.get(part) is None]
    if missing:
        again = ", ".join(f"{part}=..." for part in missing)
        raise ConfigError(
            f"this run was made in Python with {' and '.join(missing)} of its own, which no file holds: "
            f"pass the same again, as in rookery.load(run, {again})"
        )
    plain = lambda part: {key: value for key, value in saved[part].items() if key != "class"}
    try:
        if unknown := [key for key in saved if key not in SAVED]:
            raise TypeError(_unknown_option(unknown[0], "a config", list(SAVED)))
        return Config(
            system=saved["system"],
            env=saved["env"] if env is None else env,
            env_options=saved["env_options"],
            algorithm=algorithm or _converted(plain("algorithm"), systems.system(saved["system"]).algorithm_class()),
            topology=topology or _converted(plain("topology"), systems.load_topology(saved["topology"]["class"])),
            run=_converted(saved["run"], RunOptions),
            torso=torso,
        )
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the config of this run does not fit this version of rookery: {error}") from error


def _converted(values: dict[str, Any], kind: Any) -> Any:
    """Make a dataclass from plain values. An unknown name is an error: what was meant would silently become its default."""
    _check_names(values, kind)
    return msgspec.convert(values, kind)


def _check_names(values: Any, kind: Any) -> None:
    if dataclasses.is_dataclass(kind) and isinstance(values, dict):
        kinds = {f.name: get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)}
        for name, value in values.items():
            if name not in kinds:
                raise TypeError(_unknown_option(name, getattr(kind, "__name__", str(kind)), list(kinds)))
            _check_names(value, kinds[name])


def refuse(wrong: list[str]) -> None:
    """Raise one ConfigError with all that is wrong; none where nothing is."""
    if wrong:
        raise ConfigError("\n".join([f"{len(wrong)} options cannot be so:", *wrong] if len(wrong) > 1 else wrong))


def problems(config: Config) -> list[str]:
    """List every number that is out of its range or, if there is none, every combination that cannot work anywhere."""
    parts = (config.algorithm, config.topology, config.run)
    found = [problem for part in parts if dataclasses.is_dataclass(part) for problem in ranges.problems(part)]
    return found or [*_contradictions(config)]  # of numbers that cannot be, nothing is derived


def _contradictions(config: Config) -> Iterator[str]:
    run, algorithm, topology = config.run, config.algorithm, config.topology
    if run.address is not None and run.runtime != "ray":
        yield f"--address {run.address} is that of a Ray cluster: it needs --runtime ray"
    if run.runtime != "ray" and {run.collector, run.learner, run.shard} != {Resources()}:
        yield "--collector.*, --learner.* and --shard.* are resources of Ray actors: they need --runtime ray"
    if run.eval_episodes == 0 and (run.stop_eval_return is not None or run.eval_every is not None):
        yield "--stop-eval-return and --eval-every need evaluations: --eval-episodes must be at least 1"
    if run.strict_security and (run.learner_processes or 1) > 1:
        yield (
            f"--learners {run.learner_processes} with --strict-security: learners find each other at a port of jax's that asks "
            "nobody for a token, so others who reach it could join or stop them. Train with one learner, or without it"
        )
    low, high = getattr(algorithm, "value_range", None) or (0.0, 1.0)
    if low >= high:
        yield f"--value-range {low:g} {high:g}: it goes from a lower number to a higher one"
    if (rows := getattr(algorithm, "sequence_length", None)) is not None and algorithm.n_step > rows:
        yield f"--n-step {algorithm.n_step}: a sequence has {rows} rows; lower it, or raise --sequence-length"
    try:
        most = span(getattr(topology, "collectors", 1))[1] if getattr(topology, "inference", "local") == "local" else 1
    except ValueError as error:
        yield str(error)
        return
    if (replay := getattr(algorithm, "replay", None)) is None or getattr(algorithm, "fresh", False):
        return
    if replay.shards > 1 and run.runtime != "ray":
        yield f"--replay.shards {replay.shards} are Ray actors: it needs --runtime ray; on local the table is one object"
    if replay.shards > most:
        yield (
            f"--replay.shards {replay.shards}: each collector writes to one shard, so that its sequences stay whole, and there "
            f"are {most} collectors: use --collectors {replay.shards}, or --replay.shards {most}"
        )
    if 0 < replay.max_times_sampled < replay.samples_per_insert:
        yield (
            f"--replay.max-times-sampled {replay.max_times_sampled}: an item would be gone before it was sampled "
            f"{replay.samples_per_insert:g} times, as --replay.samples-per-insert asks; lower that, or raise this"
        )


def check(config: Config, agent: Agent, spec: Spec) -> None:
    """Refuse a combination that cannot be right, with the reason and the nearest right one."""
    needs, topology = agent.needs, config.topology
    lag = topology.max_lag()
    name, where = _class_name(config.algorithm), _class_name(topology)
    if (reason := topology.refuses(agent, spec)) is not None:
        raise ConfigError(f"{where} cannot drive {name}: {reason}.")
    if needs.max_lag is not None and lag > needs.max_lag:
        nearest = "Sync" if needs.max_lag == 0 else f"{where} with fewer rollouts in flight"
        also = " (or APPO, which is PPO made for old data)" if name == "PPO" else ""
        raise ConfigError(
            f"{name} may learn from data at most {needs.max_lag} updates old, but {where} lets it become {lag}: "
            f"use {nearest}{also}."
        )
    if needs.replay and needs.table is None:
        raise ConfigError(f"{name} learns from replayed data, but {where} shows each step once: it needs a replay table.")


def check_plan(config: Config, agent: Agent, plan: Plan) -> None:
    """Refuse learners, devices and minibatches that do not fit what a topology hands to its learner."""
    needs, where = agent.needs, _class_name(config.topology)
    shared = {"--learners": config.run.learner_processes or 1, "--devices": config.run.devices}
    if max(shared.values()) > 1 and not plan.of_role("collector", "host"):
        flag = max(shared, key=shared.__getitem__)
        raise ConfigError(f"{flag} {shared[flag]}: the batches of one learner are shared, and {where} has none: use Sync.")
    columns = needs.table.batch_size if needs.table is not None else round(config.steps_per_update / needs.rollout_length)
    if not plan.of_role("worker", "bundle"):  # who ships gradients has no minibatches
        _check_minibatches(config, columns)
    learners, devices = config.run.learner_processes or 1, config.run.devices
    if learners > 1 and columns % (learners * devices):
        raise ConfigError(
            f"a batch has {columns} columns ({'samples' if needs.table is not None else 'environments'}), which "
            f"--learners {learners} of {devices} devices each cannot share evenly: make it a multiple of {learners * devices}"
        )


def _check_minibatches(config: Config, columns: int) -> None:
    """Refuse minibatches that do not divide a batch: by columns where sequences stay whole (recurrent), else by rows."""
    algorithm, minibatches = config.settled().algorithm, getattr(config.algorithm, "minibatches", 1)
    if minibatches in (1, None):
        return
    whole = getattr(getattr(algorithm, "network", None), "core", "none") != "none"
    pieces = columns if whole else columns * algorithm.rollout_length
    if pieces % minibatches:
        what = "sequences (one per environment, each stays whole)" if whole else "steps per update"
        below = max(n for n in range(1, minibatches) if pieces % n == 0)
        raise ConfigError(f"{pieces:,} {what} cannot be cut into {minibatches} equal minibatches: try --minibatches {below}")


def command(config: Config) -> str:
    """Write a shell command that repeats the run, with every option that differs from the system's defaults."""
    if config.custom:
        return f"# made in Python with {' and '.join(config.custom)} of its own: no command repeats it"
    words, topology = ["rookery", "train", config.system, "--env", config.env_name], type(config.topology)
    other = systems.system(config.system).topology_class() is not topology
    base = resolve(config.system, env=config.env, topology=topology() if other else None)
    if other:
        words += ["--topology", systems.flag_of(topology.__name__)]
    if said := _env_differences(config, base):
        words += ["--env-options", *(f"{key}={text(value)}" for key, value in said.items())]
    for part in ("algorithm", "topology", "run"):
        words += _differences(getattr(config, part), getattr(base, part))
    return shlex.join(words)


def _env_differences(config: Config, base: Config) -> dict[str, Any]:
    """Find the environment options that differ from the preset; one that this config lacks is given its neutral value."""
    missing = [name for name in base.env_options if name not in config.env_options]
    neutral = {}
    if missing:
        from rookery.envs.options import neutral_value

        neutral = {name: neutral_value(config.env, name) for name in missing}
    absent = object()
    mine = {name: value for name, value in config.env_options.items() if value != base.env_options.get(name, absent)}
    return mine | neutral


def _differences(mine: Any, base: Any, prefix: str = "") -> list[str]:
    words: list[str] = []
    for f in dataclasses.fields(mine):
        value, other = getattr(mine, f.name), getattr(base, f.name)
        if value == other:
            continue
        if dataclasses.is_dataclass(value):
            words += _differences(value, other, prefix=f"{f.name}.")
        elif isinstance(value, bool) and f.type in (bool, "bool"):
            words.append(_flag(f.name, prefix if value else f"{prefix}no-"))
        else:
            words += [_flag(f.name, prefix), *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def _flag(name: str, prefix: str = "") -> str:
    return f"--{prefix}{name.replace('_', '-')}"


PYTHON = {"True": True, "False": False, "None": None}  # as people who write environments say them


def value_of(word: str) -> Any:
    """Read a value of --env-options: JSON, Python's True, False and None, or else the word itself."""
    if word in PYTHON:
        return PYTHON[word]
    try:
        return json.loads(word)
    except ValueError:
        return word


def text(value: Any) -> str:
    """Write a value so that `value_of` reads it back."""
    return value if isinstance(value, str) and value_of(value) == value else json.dumps(value)


def _replace(part: Any, values: dict[str, Any]) -> Any:
    """Replace fields as dataclasses.replace does, and check names and types."""
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
