"""What a Trainer's checkpoint holds beside the topology's own snapshot, and which checkpoint a Trainer may go on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rookery.run import checkpoint
from rookery.run.assemble import saved_params
from rookery.run.config import Config, ConfigError
from rookery.run.records import plain
from rookery.run.saved_spec import record_of
from rookery.topologies.job import Progress, Published
from rookery.types import Agent, Episode, PyTree, Spec


def contents_of(tree: PyTree, cfg: Config, progress: Progress, spec: Spec, shown: Any) -> checkpoint.Contents:
    """Make a checkpoint of a tree, with the meta by which it is recognised. shown: demonstrations, if any."""
    meta = meta_of(cfg, progress, tree["trainer"]["seconds"], spec)
    return checkpoint.Contents.of(tree, meta | {"demonstrations": shown.digest if shown else None})


def meta_of(cfg: Config, progress: Progress, seconds: float, spec: Spec) -> dict[str, Any]:
    """Return what is said of a policy beside its parameters: whose it is, how long it was trained, in which spaces it acts."""
    meta = {"system": cfg.system, "env": cfg.env_name, "env_steps": progress.env_steps, "updates": progress.updates}
    return meta | {"seconds": seconds, "config": plain(cfg.to_dict()), "spec": record_of(spec)}


def caught_up(progress: Progress, snapshot: PyTree, agent: Agent) -> tuple[Progress, list[Episode]]:
    """Advance a progress to the snapshot: a topology that drains before it saves trains on while it does.

    Return the episodes, too, that ended meanwhile: the next progress tells of them."""
    meters, updates = snapshot["meters"], progress.updates
    counts: dict[str, Any] = {name: int(meters[name]) for name in ("env_steps", "trained_steps", "updates", "episodes")}
    progress = dataclasses.replace(progress, **counts)
    if progress.updates > updates:
        newest = {
            name: Published(saved_params(agent, snapshot, name), int(saved["version"]))
            for name, saved in snapshot["policies"].items()
        }
        progress = dataclasses.replace(progress, policies=newest)
    return progress, [Episode(int(env), float(total), int(length)) for env, total, length in meters.get("finished", ())]


def loaded_for(cfg: Config, directory: Path, shown: Any) -> tuple[PyTree, dict[str, Any]]:
    """Load a checkpoint and its meta; ConfigError where it is of another system, environment or demonstrations than `cfg`."""
    tree, meta = checkpoint.load(directory)
    for what, mine in (("system", cfg.system), ("env", cfg.env_name)):
        if meta.get(what) != mine:
            raise ConfigError(f"{directory} is of the {what} {meta.get(what)!r}, not of {mine!r}")
    if shown and meta.get("demonstrations") not in (None, shown.digest):
        raise ConfigError(
            f"{directory} was trained with other demonstrations than {cfg.algorithm.demonstrations} holds now: "
            "give the file of then, or train a new run"
        )
    return tree, meta
