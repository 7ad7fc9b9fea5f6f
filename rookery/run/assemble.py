"""From a config to the parts that it names: everything that can be refused is refused here, before anything starts."""

from __future__ import annotations

import contextlib
import functools
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rookery import envs, references
from rookery.data.demonstrations import Demonstrations, check_spaces, gather
from rookery.data.memory import check_fits
from rookery.envs.pools.pool import OnNan
from rookery.envs.processes.cores import usable_cores
from rookery.run import checkpoint, demonstrations, startup
from rookery.run.config import Config, ConfigError, check, check_plan
from rookery.run.directory import Run
from rookery.run.fitting import has_own_loss
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Runtime
from rookery.topologies.job import policies_of
from rookery.topologies.plan import MAIN, Plan
from rookery.types import Agent, EnvPool, PyTree, Spec

PACKAGE = str(Path(__file__).parents[1])


class CheckpointSkipped(UserWarning):
    """A checkpoint is damaged; an older one is used."""


class Parts(NamedTuple):
    spec: Spec
    agent: Agent
    plan: Plan


def assemble(cfg: Config) -> Parts:
    """Build the environment's spaces, the agent and the plan of the topology; ConfigError where they do not fit together."""
    if cfg.run.runtime == "ray" and find_spec("ray") is None:
        raise ConfigError("--runtime ray needs Ray: pip install 'rookery[ray]'")
    with _refusing():
        try:
            spec = spec_of(cfg)
        except TypeError as error:  # gymnasium hands options on to the environment's own __init__
            if not cfg.env_options:
                raise
            given = ", ".join(f"{key}={value!r}" for key, value in cfg.env_options.items())
            raise ConfigError(f"{cfg.env_name} cannot be made with {given}: {error}") from error
        agent = cfg.build(spec)
        check(cfg, agent, spec)
        if has_own_loss(cfg.algorithm):
            _try_update(cfg, agent, spec)
        plan = cfg.topology.plan(dict.fromkeys(policies_of(cfg.topology), agent), spec).checked()
        check_plan(cfg, agent, plan)
        if cfg.run.devices > 1 and cfg.run.learner_processes is None:  # else they are those of other processes
            from rookery.workers.learning.mesh import mesh_of

            mesh_of(cfg.run.devices)
        for edge in plan.edges:
            remedy = "use a smaller network" if edge.name == "parameters" else "use fewer or shorter rollouts at once"
            check_fits(edge.nbytes, what=f"one item of `{edge.name}`, {edge.source} to {edge.target}", remedy=remedy)
        if many := cfg.run.learner_processes:
            plan = plan.with_count("learner", many)
        return Parts(spec, agent, plan)


def _try_update(cfg: Config, agent: Agent, spec: Spec) -> None:
    """Trace an update by a loss of the user's own: what does not fit is said before anything is made. Nothing is computed."""
    import jax

    from rookery import ops
    from rookery.types import Batch
    from rookery.workers.acting.shapes import rollout_specs

    columns = max(1, round(cfg.steps_per_update / agent.needs.rollout_length))
    rollout = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), rollout_specs(agent, spec, columns)._replace(stream=(), step=())
    )
    batch = Batch(rollout, jax.ShapeDtypeStruct((columns,), "float32"), ())
    key = ops.random.key(0)
    jax.eval_shape(agent.learn, jax.eval_shape(agent.init, key), batch, key)


def shown_to(cfg: Config, spec: Spec) -> Demonstrations | None:
    """Read the demonstrations that a config names and check them against the spaces; ConfigError where they are missing."""
    path, ratio = (getattr(cfg.algorithm, name, None) for name in ("demonstrations", "demo_ratio"))
    if not path and not ratio:
        return None
    make = f"rookery record RUN --episodes 10 --out {path or 'FILE'}"
    if not path:
        raise ConfigError(
            f"{cfg.system} with --demo-ratio {ratio:g} needs --demonstrations FILE: `{make}` plays a trained run on "
            f"{cfg.env_name} and writes them, rookery.demonstrations.write does it from Python"
        )
    if not ratio:
        raise ConfigError(f"--demonstrations {path} would not be learned from: give --demo-ratio too, or use the system r2d3")
    if not Path(path).exists():
        raise ConfigError(f"--demonstrations {path}: there is nothing of that name; `{make}` makes them")
    found = demonstrations.read(path)
    check_spaces(found, spec)
    return gather(found.episodes, spec)


def spec_of(cfg: Config) -> Spec:
    """Return the spaces of the environment; undo a change of the working directory that making it may cause."""
    with contextlib.chdir(Path.cwd()):
        return envs.spec_of(cfg.env, processes=processes_of(cfg), **cfg.env_options)


def processes_of(cfg: Config) -> envs.Processes:
    return "auto" if cfg.run.env_processes is None else cfg.run.env_processes


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn a ValueError that Rookery raises while building into a ConfigError; one from elsewhere may be a bug."""
    try:
        yield
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if type(error) is ValueError and frames and frames[-1].filename.startswith(PACKAGE):
            raise ConfigError(str(error)) from error
        raise


@dataclass(frozen=True)
class PoolFactory:
    """Makes a collector's environments, wherever the collector lives: only what is needed for that travels there."""

    env: Any
    options: dict[str, Any]
    processes: envs.Processes
    step_seconds: float
    on_nan: OnNan
    max_mb: float | None
    share: int  # collectors that share the cores of a machine

    def __call__(self, num_envs: int, groups: int = 1) -> EnvPool:
        return envs.make(
            self.env, num_envs, groups=groups, processes=self.processes, step_seconds=self.step_seconds,
            on_nan=self.on_nan, max_mb=self.max_mb, cores=max(1, usable_cores() // self.share), **self.options,
        )  # fmt: skip


def pool_factory(cfg: Config, plan: Plan | None = None) -> PoolFactory:
    """Make the factory of environment pools. plan: its workers share the cores of a machine; None: one pool has them all."""
    workers = 1 if plan is None else max((node.most for node in plan.nodes if node.hosted and node.envs), default=1)
    if plan is not None and cfg.run.runtime == "local" and plan.of_role("host"):
        workers = 1  # all environments are in one pool
    run, env = cfg.run, cfg.env
    if run.runtime == "ray" and references.is_reference(env) and not isinstance(envs.resolved(env), str):
        env = envs.resolved(env)  # an object travels; of the file there, it would have to be a copy
    return PoolFactory(
        env, cfg.env_options, processes_of(cfg), run.env_step_seconds, run.on_nan, run.env_max_mb, workers
    )  # fmt: skip


def open_runtime(cfg: Config, plan: Plan) -> Runtime:
    """Open the runtime that hosts the workers of a run. Ray is imported here, and only if it was asked for."""
    many = cfg.run.learner_processes
    if cfg.run.runtime == "local":
        from rookery.runtime.local import LocalRuntime

        return LocalRuntime(apart={"learner": many} if many else {}, prepare=startup.prepare)
    try:
        from rookery.runtime.ray import RayRuntime
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runtime ray needs Ray: pip install 'rookery[ray]' ({error})") from error
    counts = plan.fleets
    resources = dict.fromkeys(counts, cfg.run.collector)
    if "shard" in counts:
        resources["shard"] = cfg.run.shard
    if many:
        resources["learner"], counts["learner"] = cfg.run.learner, (many, many)
    return RayRuntime(
        address=cfg.run.address,
        strict=cfg.run.strict_security,
        resources=resources,
        counts=counts,
        prepare=startup.prepare,
        versions=functools.partial(fingerprint, cfg),
    )


def newest_checkpoint(run: Run) -> Path:
    """Find the newest valid checkpoint of a run, with a warning that names those skipped; an error if there is none."""
    path, skipped = checkpoint.newest(run.checkpoints)
    why = "; ".join(reason for _, reason in skipped)
    if path is None:
        raise checkpoint.CheckpointError(f"{run.shown} has no valid checkpoint: {why or run.what_to_do()}.")
    if skipped:
        warnings.warn(f"damaged, so {path.name} is used instead: {why}", CheckpointSkipped, stacklevel=3)
    return path


def saved_params(agent: Agent, snapshot: PyTree, policy: str = MAIN) -> PyTree:
    """Return the parameters of a policy in a topology's snapshot, as the tree that `agent` makes."""
    import jax

    from rookery import ops
    from rookery.workers.learning.tree_paths import from_flat

    shapes = jax.eval_shape(agent.init, ops.random.key(0))
    return from_flat(shapes, snapshot["policies"][policy]["state"]).params
