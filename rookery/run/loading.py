"""The policy in a checkpoint, without what trained it: neither the environment nor a loss of the user's own is needed to act.

A checkpoint's meta says the spaces (`saved_spec`); those of older versions do not, and there the environment is made to know
them. An algorithm, a topology or a network of the user's own is in no file and must be passed again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.run import checkpoint, saved_spec, startup
from rookery.run.assemble import spec_of
from rookery.run.config import Config, ConfigError, from_dict
from rookery.run.fitting import has_own_loss
from rookery.run.kept import loaded_params
from rookery.run.resuming import UNFIT, misfit
from rookery.types import Agent, PyTree, Spec

LOSS = "algorithm.loss"  # among the parts of a config that are the user's own


@dataclass(frozen=True)
class Rebuilding:
    """Builds the agent of a policy again, in the process where it is unpickled."""

    algorithm: Any
    num_updates: int
    torso: Any

    def __call__(self, spec: Spec) -> Agent:
        startup.prepare()
        agent: Agent = self.algorithm.build(spec, num_updates=self.num_updates, torso=self.torso)
        return agent


@dataclass(frozen=True)
class Absent:
    """Stands for an environment of the user's own that nobody passed: acting needs its name at most."""

    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: object, **options: object) -> None:
        raise ConfigError(f"the environment {self.name} of this run is in no file: pass it again, as in load(run, env=...)")


def acting(saved: dict[str, Any], meta: dict[str, Any], **passed: Any) -> Config:
    """Read the config of a run for its policy alone; passed: the objects of the user's own, by their names in `from_dict`."""
    custom = set(saved.get("custom", ()))
    if "env" in custom and passed.get("env") is None and meta.get("spec") is not None:
        passed["env"] = Absent(str(saved.get("env")))
    if LOSS in custom and "algorithm" not in custom and passed.get("algorithm") is None:
        saved = _without_loss(saved)
    return from_dict(saved, **passed)


def _without_loss(saved: dict[str, Any]) -> dict[str, Any]:
    """Take an algorithm that was given another loss for what it is without: it acts in the same way."""
    rest = {"algorithm": saved["algorithm"] | {"loss": None}, "custom": [part for part in saved["custom"] if part != LOSS]}
    if isinstance(names := saved.get("references"), dict):
        rest["references"] = {part: name for part, name in names.items() if part != LOSS}
    return saved | rest


def loaded_policy(cfg: Config, directory: Path, *, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Load the policy in a checkpoint, and the meta that was written with it."""
    tree, meta = checkpoint.load(directory)
    try:
        spec = saved_spec.spec_from(meta["spec"]) if meta.get("spec") is not None else None
    except UNFIT as error:
        raise misfit(directory, error) from error
    spec = spec or _spec_of(cfg, directory)
    agent = cfg.build(spec)
    try:
        params, meta["env_steps"] = loaded_params(agent, tree), int(meta["env_steps"])
    except UNFIT as error:
        raise misfit(directory, error) from error
    return policy_of(cfg, agent, spec, params, seed=seed, env_steps=meta["env_steps"]), meta


def policy_of(cfg: Config, agent: Agent, spec: Spec, params: PyTree, *, seed: int = 0, env_steps: int = 0) -> Any:
    """Make the policy of a run; it holds a copy of `params` in numpy, and can be pickled."""
    import jax
    import numpy as np

    from rookery.workers.acting.policy import Policy

    algorithm = cfg.fitted
    if has_own_loss(algorithm):
        algorithm = dataclasses.replace(algorithm, loss=None)
    build = Rebuilding(algorithm, cfg.num_updates, cfg.torso)
    return Policy(agent, spec, jax.tree.map(np.array, params), seed=seed, env_steps=env_steps, build=build)


def _spec_of(cfg: Config, directory: Path) -> Spec:
    try:
        return spec_of(cfg)
    except Exception as error:
        error.add_note(f"{directory} does not say its spaces, as those of newer versions do: its environment must be there.")
        raise


def check_same(spec: Spec, now: Spec, name: str) -> None:
    """Refuse to play a policy on an environment with other spaces than those it was trained for."""
    for role, trained, found in (("observation", spec.observation, now.observation), ("action", spec.action, now.action)):
        if trained != found:
            then, since = (" ".join(str(space).split())[:300] for space in (trained, found))
            raise ConfigError(f"{name} is not what the run was trained on: its {role}s were {then}, they are {since} now")
