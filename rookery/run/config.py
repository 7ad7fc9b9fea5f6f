"""What a run is asked to do: system, environment, algorithm, topology and the options of the run itself.

Options are flat: `learning_rate`, `num_envs` and `total_steps` belong to the algorithm, the topology and the run, and no
two share a name. `network` and `replay` are nested groups.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from rookery import envs, foreign_names, ranges, references, systems
from rookery.envs.pools.pool import OnNan
from rookery.ranges import Count, Finite, Long, Natural, Positive, Range, Seed, Workers
from rookery.run import fitting, startup, trust
from rookery.run.parts import Given, converted, is_object, part_of, plain_values, unplain
from rookery.run.words import text
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
    """Stop after training for this many seconds; start-up and compilation do not count."""
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
    """Devices per learner process."""
    learners: Workers | None = None
    """Learner processes; None: in the driver."""
    collector: Resources = field(default_factory=Resources)
    learner: Resources = field(default_factory=Resources)
    shard: Resources = field(default_factory=Resources)
    eval_episodes: Annotated[int, Range(0, 10_000)] = 20
    """Greedy episodes per evaluation; 0: none."""
    eval_every: Long | None = None
    """Updates between evaluations; None: only at the end, or 20 times with --stop-eval-return."""
    checkpoint_every: Long | None = None
    """Updates between saves; None: a tenth of the run."""
    keep: Count = 3
    """Newest checkpoints to keep, and the best."""
    milestones: Annotated[int, Range(0, 10_000)] = 0
    """Evenly spaced checkpoints that stay."""
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
    wandb: bool = False
    """Also show the run in Weights & Biases, offline without an account (pip install 'rookery[wandb]')."""
    wandb_project: str = "rookery"
    """Project of Weights & Biases."""
    log_every: Long | None = None
    """Environment steps between rows of metrics.jsonl; None: a row each second."""

    @property
    def learner_processes(self) -> int | None:
        """Learner processes; None: the learner lives with the driver. Resources (--learner.*) put it into one of its own."""
        return 1 if self.learners is None and self.learner != Resources() else self.learners


RENAMED = {"keep_checkpoints": "keep"}  # options of runs that are older than the name of now
SAVED = (  # the keys of `to_dict`
    "system", "env", "env_options", "algorithm", "topology", "run", "custom", "machine", "references", trust.SIGNATURE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on."""

    system: str  # a name in systems.SYSTEMS, or the class name of an algorithm of the user's
    env: Any  # an id, a reference (`my_envs:GridEnv`), or a callable that makes a gymnasium environment
    env_options: dict[str, Any]
    algorithm: Any
    topology: Any
    run: RunOptions
    torso: Any = None  # a network of the user's own: (init, apply)
    names: dict[str, str] = field(default_factory=dict)  # references of the user's own parts, where they have one

    def __post_init__(self) -> None:
        """Refuse options that cannot be right, wherever they come from; all of them at once."""
        refuse(problems(self))

    @property
    def custom(self) -> tuple[str, ...]:
        """Parts that are the user's own: those without a reference are Python objects that nothing brings back."""
        theirs = {
            "env": not isinstance(self.env, str) or references.is_reference(self.env),
            "algorithm": self.system not in systems.SYSTEMS,
            "topology": _class_name(self.topology) not in systems.TOPOLOGIES,
            "torso": self.torso is not None,
        }
        return tuple(part for part, is_theirs in theirs.items() if is_theirs) + tuple(self._own_values)

    @property
    def own_names(self) -> dict[str, str]:
        """The names of the user's own parts and values; "directory": the one in which modules were looked for."""
        values = {part: name for part, value in self._own_values.items() if (name := references.name_of(value))}
        return self.names | values

    @property
    def lost(self) -> tuple[str, ...]:
        """Custom parts that no name brings back."""
        return tuple(part for part in self.custom if part not in self.own_names)

    @property
    def _own_values(self) -> dict[str, Any]:
        """Values of options that no file holds, e.g. a function: "algorithm.loss"."""
        parts = {"algorithm": self.algorithm, "topology": self.topology}
        return {f"{part}.{name}": value for part, its in parts.items() for name, value in unplain(its).items()}

    @property
    def env_name(self) -> str:
        """The id, or the class's or function's name, whichever way it was found."""
        if isinstance(self.env, str):
            return references.name_in(self.env) if references.is_reference(self.env) else self.env
        return getattr(self.env, "__name__", type(self.env).__name__)

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
        from rookery.algorithms import sharing

        return sharing.build(self.fitted, spec, num_updates=self.num_updates, torso=self.torso)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for config.json; signed where they name code (rookery/run/trust.py)."""
        return trust.signed(self.unsigned())

    def unsigned(self) -> dict[str, Any]:
        """Convert to plain values."""
        named = {"references": found} if (found := self.own_names) else {}
        return {
            "system": self.system,
            "env": self.env_name,
            "env_options": self.env_options,
            "algorithm": {"class": _class_name(self.algorithm)} | plain_values(self.algorithm),
            "topology": {"class": _class_name(self.topology)} | plain_values(self.topology),
            "run": msgspec.to_builtins(self.run),
            "custom": list(self.custom),
            "machine": startup.machine(),  # a gradient differs between 1 and 2 cores, and between sets of flags
            **named,
        }


def resolve(
    system: str | Any,
    *,
    env: Any,
    env_options: dict[str, Any] | None = None,
    algorithm: Any = None,
    topology: Any = None,
    torso: Any = None,
    **options: Any,
) -> Config:
    """Resolve the config of a named system, or of an algorithm (a dataclass with `build`), with `options` on top.

    An algorithm of Rookery's own brings the topology of the system that it is known by; one of the user's, Sync. Presets are
    those of a named system: an algorithm that is passed is taken as it is, and so is the environment. algorithm: takes the
    place of a named system's own. The user's parts may be objects, classes, or references (`path/to/file.py:Name`).
    """
    entry = systems.system(system) if isinstance(system, str) and not references.is_reference(system) else None
    own, placed = part_of("algorithm", algorithm if entry else system), part_of("topology", topology)
    network = part_of("torso", torso)
    name = entry.name if entry and own.value is None else systems.name_of(own.value)
    of = entry or systems.SYSTEMS.get(name)
    parts = {
        "algorithm": own.value if of is None or own.value is not None else of.algorithm_class()(),
        "topology": placed.value if topology is not None else (of or systems.SYSTEMS["ppo"]).topology_class()(),
        "run": RunOptions(),
    }
    env, known = references.absolute(env) if references.is_reference(env) else env, entry is not None and isinstance(env, str)
    given = systems.defaults(entry.name, env if known else "") if entry else {}
    env_options = (systems.env_options(entry.name, env) if entry and known else {}) | (env_options or {})
    owners = {f.name: owner for owner, part in parts.items() for f in dataclasses.fields(part)}
    # a preset speaks of the system's own algorithm and topology; what another does not have, or means otherwise, is left out
    taken = ("topology", "run") if own.value is not None else tuple(parts)
    given = systems.merged({option: value for option, value in given.items() if owners.get(option) in taken}, options)
    if fitting.has_core(given) and "rollout_length" not in options and fitting.chooses_length(parts["algorithm"]):
        given["rollout_length"] = None  # the longest: see `fitting.settled`
    names = _names(env, algorithm=own.name if name not in systems.SYSTEMS else None, topology=placed.name, torso=network.name)
    changed = _with_options(parts, _fitting_vector(env, given, owners), name)
    return Config(system=name, env=env, env_options=env_options, torso=network.value, names=names, **changed)


def changed(config: Config, options: dict[str, Any]) -> Config:
    """Return the config with other options, by name."""
    parts = {"algorithm": config.algorithm, "topology": config.topology, "run": config.run}
    env_options = config.env_options | options.get("env_options", {})
    given = {option: value for option, value in options.items() if option != "env_options"}
    return dataclasses.replace(config, env_options=env_options, **_with_options(parts, given, config.system))


def _with_options(parts: dict[str, Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """Replace options of the parts, each in the part that has one of its name."""
    owners = {f.name: owner for owner, part in parts.items() for f in dataclasses.fields(part)}
    unknown = [option for option in given if option not in owners]
    if unknown:
        every = [*owners, *(f"{group}.{inner}" for group, part in groups(parts).items() for inner in _fields(part))]
        raise ConfigError("\n".join(unknown_option(option, name, every) for option in unknown))
    replaced = {}
    for owner, part in parts.items():
        mine = {option: value for option, value in given.items() if owners[option] == owner}
        for option, value in mine.items():
            if isinstance(value, dict) and dataclasses.is_dataclass(inner := getattr(part, option)):
                mine[option] = _replace(inner, value)
        replaced[owner] = _replace(part, mine)
    return replaced


def _fitting_vector(env: Any, given: dict[str, Any], owners: dict[str, str]) -> dict[str, Any]:
    """Fit options that nobody gave to a VectorEnv that was passed as an object: there is one, of so many environments."""
    if not envs.is_one_vector(env):
        return given
    only = {"num_envs": env.num_envs, "groups": 1, "eval_episodes": 0}
    return {option: value for option, value in only.items() if option in owners} | given


def from_dict(
    saved: dict[str, Any], *, algorithm: Any = None, env: Any = None, topology: Any = None, torso: Any = None,
    names: dict[str, str] | None = None, call: str = "as in rookery.load(run, {})",
) -> Config:  # fmt: skip
    """Rebuild the config that `to_dict` wrote. Nothing that it names is imported: what was custom is passed again, as an
    object, a class or a reference, or is among `names`, which somebody who may (rookery/run/trust.py) has allowed."""
    passed = {"algorithm": algorithm, "env": env, "topology": topology, "torso": torso}
    names, given = dict(names or {}), {part for part, value in passed.items() if value is not None}
    if "directory" in names:
        references.look_in(Path(names["directory"]))
    passed |= {part: text for part, text in names.items() if part in passed and part not in given}
    whole = {part for part, value in passed.items() if value is not None and is_object(value)}
    _refuse_lost(saved, {part for part, value in passed.items() if value is not None} | set(names), whole, call)
    try:
        if unknown := [key for key in saved if key not in SAVED]:
            raise TypeError(unknown_option(unknown[0], "a config", list(SAVED)))
        own = {
            "algorithm": lambda: systems.system(saved["system"]).algorithm_class(),
            "topology": lambda: systems.load_topology(saved["topology"]["class"]),
        }
        parts = {name: _part_from(name, passed[name], saved[name], names, kind) for name, kind in own.items()}
        network = part_of("torso", passed["torso"])
        env = saved["env"] if passed["env"] is None else passed["env"]
        env = references.absolute(env) if references.is_reference(env) else env
        found = {part: made.name for part, made in (parts | {"torso": network}).items()}
        return Config(
            system=saved["system"],
            env=env,
            env_options=saved["env_options"],
            algorithm=parts["algorithm"].value,
            topology=parts["topology"].value,
            run=_converted({RENAMED.get(name, name): value for name, value in saved["run"].items()}, RunOptions),
            torso=network.value,
            names=_names(env, directory=names.get("directory"), **found),
        )
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the config of this run does not fit this version of rookery: {error}") from error


def _names(env: Any, directory: str | None = None, **parts: str | None) -> dict[str, str]:
    """Collect the references of the user's own parts and, where one is a module, the directory that it was looked for in."""
    parts["env"] = env if references.is_reference(env) else references.name_of(env)
    found = {part: text for part, text in parts.items() if text}
    if all(".py:" in text for text in found.values()):
        return found
    return found | {"directory": directory or str(Path.cwd())}


def _refuse_lost(saved: dict[str, Any], there: set[str], whole: set[str], call: str) -> None:
    """Raise a ConfigError that says how to pass what is the user's own; nothing where all of it is there.

    whole: parts that were passed as objects, with all their values."""
    known = trust.names_of(saved)
    needed = dict.fromkeys([*saved.get("custom", ()), *(part for part in known if part != "directory")])
    missing = [part for part in needed if part not in there and part.partition(".")[0] not in whole]
    if missing:
        tops = dict.fromkeys(part.partition(".")[0] for part in missing)
        again = ", ".join(f"{part}={known[part]!r}" if part in known else f"{part}=..." for part in tops)
        raise ConfigError(
            f"this run has {' and '.join(missing)} of its own, which no file brings back: pass the same again, "
            + call.replace("{}", again)
        )


def _part_from(part: str, passed: Any, saved: dict[str, Any], names: dict[str, str], kind: Callable[[], Any]) -> Given:
    """Make an algorithm or a topology from saved values; one that was passed as an object is taken as it is."""
    found = part_of(part, passed)
    if found.value is not None and not found.is_kind:
        return found
    its = kind() if found.value is None else type(found.value)
    values = {key: value for key, value in saved.items() if key != "class"}
    own = {key: references.load(text) for name, text in names.items() if (key := _option_of(part, name))}
    return Given(_converted({key: value for key, value in values.items() if key not in own}, its, own), found.name)


def _option_of(part: str, name: str) -> str:
    owner, _, option = name.partition(".")
    return option if owner == part else ""


def _converted(values: dict[str, Any], kind: Any, own: dict[str, Any] | None = None) -> Any:
    """Make a dataclass from plain values. An unknown name is an error: what was meant would silently become its default.

    own: values that are not plain, for a dataclass of the user's; msgspec may not know their types."""
    _check_names(values, kind)
    if not own:
        return converted(values, kind)
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: msgspec.convert(value, hints[name]) for name, value in values.items()}, **own)


def _check_names(values: Any, kind: Any) -> None:
    if dataclasses.is_dataclass(kind) and isinstance(values, dict):
        kinds = {f.name: get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)}
        for name, value in values.items():
            if name not in kinds:
                raise TypeError(unknown_option(name, getattr(kind, "__name__", str(kind)), list(kinds)))
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
    if envs.is_one_vector(config.env):
        yield from _contradictions_of_one(config)
    if run.address is not None and run.runtime != "ray":
        yield f"--address {run.address} is that of a Ray cluster: it needs --runtime ray"
    if run.runtime != "ray" and {run.collector, run.learner, run.shard} != {Resources()}:
        yield "--collector.*, --learner.* and --shard.* are resources of Ray actors: they need --runtime ray"
    if run.wandb_project != RunOptions.wandb_project and not run.wandb:
        yield f"--wandb-project {run.wandb_project} is that of Weights & Biases: it needs --wandb"
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
    by_steps = hasattr(algorithm, "update_ratio")
    samples = algorithm.update_ratio * algorithm.batch_size if by_steps else replay.samples_per_insert
    if 0 < replay.max_times_sampled < samples:
        flag = "--update-ratio" if by_steps else "--replay.samples-per-insert"
        yield (
            f"--replay.max-times-sampled {replay.max_times_sampled}: an item would be gone before it was sampled "
            f"{samples:g} times, as {flag} asks; lower that, or raise this"
        )


def _contradictions_of_one(config: Config) -> Iterator[str]:
    """Refuse what needs more than the one VectorEnv that was passed."""
    one = f"the {type(config.env).__name__} that was passed steps its {config.env.num_envs} environments, and there is no other"
    if config.run.eval_episodes:
        yield f"eval_episodes={config.run.eval_episodes}: {one}: eval_episodes=0, or pass a function f(num_envs) that makes one"
    if getattr(config.topology, "num_envs", None) != config.env.num_envs:
        yield f"num_envs={getattr(config.topology, 'num_envs', None)}: {one}: num_envs={config.env.num_envs}"
    if config.run.runtime == "ray":
        yield f"runtime='ray': {one}, least of all in an actor: pass a function f(num_envs) that makes one"


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
    if max(shared.values()) > 1 and plan.of_role("auxiliary_learner"):
        raise ConfigError("--learners and --devices: one learner on one device takes gradients of an auxiliary loss; use Sync.")
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
    lost, names = [*config.lost, *(part for part in config.custom if "." in part)], config.own_names
    if lost:
        return f"# made in Python with {' and '.join(dict.fromkeys(lost))} of its own: no command repeats it"
    system, topology = names.get("algorithm", config.system), type(config.topology)
    words = ["rookery", "train", system, "--env", names.get("env") or config.env_name]
    entry = systems.SYSTEMS.get(config.system)
    other = (entry or systems.SYSTEMS["ppo"]).topology_class() is not topology
    try:
        base = resolve(system, env=names.get("env") or config.env, topology=names.get("topology", topology) if other else None)
    except references.BadReference as error:
        return f"# made in Python: {error}"
    if other:
        words += ["--topology", names.get("topology") or systems.flag_of(topology.__name__)]
    if "torso" in names:
        words += ["--network", names["torso"]]
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


def _replace(part: Any, values: dict[str, Any]) -> Any:
    """Replace fields as dataclasses.replace does, and check names and types."""
    names = {f.name for f in dataclasses.fields(part)}
    for option in values:
        if option not in names:
            raise ConfigError(unknown_option(option, type(part).__name__, sorted(names)))
    changed = dataclasses.replace(part, **values)
    try:
        return converted(msgspec.to_builtins(changed), type(part))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{type(part).__name__}: {error}") from None
    except TypeError:  # a user's own dataclass may hold what is no plain value
        if not fitting.has_own_loss(changed):
            return changed
    rest = _replace(dataclasses.replace(changed, loss=None), {})  # checked without the function
    return dataclasses.replace(rest, loss=changed.loss)


def groups(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Find the dataclasses inside `parts` by name: network, replay, collector ..."""
    inner = [(name, getattr(part, name)) for part in parts.values() for name in _fields(part)]
    return {name: value for name, value in inner if dataclasses.is_dataclass(value)}


def _fields(part: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(part)]


def unknown_option(option: str, owner: str, known: list[str]) -> str:
    """Say that there is no such option: by its name of here where it is another library's, else with the nearest one."""
    if (told := foreign_names.option(option, known, flags=False, owner=owner)) is not None:
        return f"{told}."
    if option == "loss":
        return f"{owner} takes no loss of your own: a2c, pg, impala and ppo do. Or copy its file: examples/copied_algorithm.py"
    known = [name for name in known if "." not in name]
    near = difflib.get_close_matches(option, known, n=1)
    return f"{owner} has no option {option!r}." + (f" Did you mean {near[0]!r}?" if near else f" Options: {', '.join(known)}.")


def _class_name(value: Any) -> str:
    return type(value).__name__
