"""Going on from a checkpoint: with which config, what of it may not change, and when the run is the resumed one's to change.

Every checkpoint holds the config that it was written with. Where config.json is damaged, the newest copy stands in for it.
Options on which the form of a checkpoint depends are refused, with both values, before anything is started. What else does not
fit shows when the workers are restored, at the latest in the first step: until that has succeeded, nothing of the run is
changed, so a resume that fails leaves the run as it was.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rookery.run import checkpoint
from rookery.run import trust as trusted
from rookery.run.checkpoint import CheckpointError, StorageError
from rookery.run.config import Config, ConfigError, command, from_dict
from rookery.run.directory import BEST, ConfigDamaged, Run, run_argument
from rookery.run.records import plain
from rookery.run.versions import flat
from rookery.types import PyTree

# A checkpoint has the form that these gave it, or (an activation) means nothing with another one.
FIXED = (
    "custom.", "algorithm.class.", "algorithm.network.", "algorithm.views.", "algorithm.contrastive_every.", "topology.class.",
    "topology.auxiliary_workers.",
) + tuple(
    f"topology.{name}." for name in ("num_envs", "collectors", "groups", "workers", "peers", "shards", "num_seeds", "inference")
)
# What lies in a replay was cut, folded and counted by these.
STORED = tuple(f"algorithm.{name}." for name in ("rollout_length", "n_step", "burn_in", "sequence_length")) + tuple(
    f"algorithm.replay.{name}." for name in ("capacity", "selector", "remover", "max_times_sampled", "stack", "shards")
)
# What a tree that is not as expected raises; a full disk, a lost worker or an environment that fails are no such thing.
UNFIT = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
_logger = logging.getLogger(__name__)


class ConfigRecovered(UserWarning):
    """config.json is damaged; the copy in a checkpoint is used."""


def config_of(run: Run) -> dict[str, Any]:
    """Read the config of a run, as `Config.to_dict` wrote it. Raises ConfigDamaged where neither file has it."""
    try:
        found: dict[str, Any] = run.config["config"]
        return found
    except ConfigDamaged as error:
        copies = [run.checkpoint] if run.checkpoint else [*checkpoint.listed(run.checkpoints), run.checkpoints / BEST]
        for path in copies:
            with contextlib.suppress(CheckpointError):
                if (copy := checkpoint.read_meta(path).get("config")) is not None:
                    warnings.warn(f"{error} The copy of the config in {path.name} is used.", ConfigRecovered, stacklevel=2)
                    return dict(copy)
        raise ConfigDamaged(f"{error} No checkpoint holds a copy of it: train the run again.") from error


def known_config(run: Run, *, trust: bool = False, how: str = "resume", **given: Any) -> Config:
    """Rebuild the config of a run, with the code that it names: where this user has signed it, or trusts it.

    given: parts that are passed again (env, algorithm, topology, torso), as for `from_dict`; how: the command, for messages.
    """
    saved, given = config_of(run), {part: value for part, value in given.items() if value is not None}
    names = trusted.allowed(saved, run_argument(run.name, run.shown), given, trust=trust, how=how)
    if how == "resume":
        typed = " ".join(f"{trusted.FLAGS[part]} FILE.py:NAME" for part in saved.get("custom", ()) if part in trusted.FLAGS)
        call = f"`rookery.resume({str(run.shown)!r}, {{}})` in Python"
        call += f", or {typed} where they have names" if typed else ""
    else:
        call = f"`rookery.load({str(run.shown)!r}, {{}})` in Python is its policy"
    return from_dict(saved, **given, names=names, call=call)


@dataclass(frozen=True)
class Resumption:
    """A checkpoint that training resumes from, until the first step after it."""

    directory: Path
    asked: dict[str, tuple[str, str]]  # options that are not those of the run -> (then, now)
    env_steps: int = 0
    updates: int = 0
    cut: int = 0  # episodes that cannot be gone on with
    told: int = 0  # episodes that had ended, and were counted

    @classmethod
    def of(cls, directory: Path, run: Run, meta: dict[str, Any], cfg: Config) -> Resumption:
        """Check `cfg` against a checkpoint's meta. ConfigError: `cfg` contradicts it; CheckpointError: the run itself does."""
        try:
            own = run.config["config"]
        except ConfigDamaged:
            own = None
        saved = meta.get("config", own) or config_of(run)
        asked = changes(own or saved, cfg.to_dict())
        fixed = FIXED + (STORED if hasattr(cfg.algorithm, "replay") else ())
        found = changes(saved, cfg.to_dict())
        if wrong := {name: values for name, values in found.items() if f"{name}.".startswith(fixed)}:
            told = said(wrong, "the checkpoint's")
            if not wrong.keys() & asked.keys():
                raise CheckpointError(f"{directory} is of another run: the config here says {told}. Put it back there.")
            raise ConfigError(f"{directory.name} cannot be gone on from with {told}. Leave that out, or train a new run.")
        return cls(directory, asked)

    def at(self, snapshot: PyTree, *, told: int = 0) -> Resumption:
        """Add the counters and the lost episodes of the topology's snapshot. told: episodes that the trainer was told of."""
        env_steps, updates = (int(snapshot["meters"][name]) for name in ("env_steps", "updates"))
        return replace(self, env_steps=env_steps, updates=updates, cut=cut_episodes(snapshot), told=told)

    def has_begun(self, progress: Any) -> bool:
        """Return whether there was a step: an update, or more data for a table that waits for it."""
        waits = progress.waiting is not None and progress.env_steps > self.env_steps
        return progress.updates > self.updates or waits

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Turn an error while restoring into a ConfigError where options were changed, else into a CheckpointError."""
        try:
            yield
        except UNFIT as error:
            if hasattr(error, "exit_code"):
                raise
            if not self.asked:
                raise misfit(self.directory, error) from error
            raise ConfigError(
                f"{self.directory.name} cannot be gone on from with {said(self.asked)}: {_told(error)}. The run is as it was; "
                "leave that out, or train a new run with it."
            ) from error


def take_over(run: Run, cfg: Config, resumption: Resumption) -> None:
    """Rewind a run's directory to the checkpoint, with that config; rows and result after it go. Raises StorageError."""
    now = cfg.to_dict()
    try:
        before = run.config["config"]
    except ConfigDamaged:
        before = None
    try:
        if before != plain(now):
            run.write_config(now, command(cfg))
        run.rewind(resumption.updates, env_steps=resumption.env_steps, episodes=resumption.told)
    except OSError as error:
        raise StorageError(
            f"{run.shown} cannot be gone on with: {error.strerror or error}; its checkpoints are intact. Make room."
        ) from error
    run.attach_log()
    if resumption.asked:
        _logger.info("goes on from %s with %s", resumption.directory.name, said(resumption.asked))


def misfit(directory: Path, error: Exception) -> CheckpointError:
    """Make the error for a checkpoint whose digests are right, but whose content is not what its config says."""
    return CheckpointError(
        f"{directory} is whole, but does not hold what its config says: {_told(error)}. Use an older checkpoint of the run."
    )


def _told(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def changes(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Map every option that differs to (then, now). One that `saved` does not know yet counts as unchanged."""
    before, after = ({name: value for name, value in flat(plain(config)) if _is_option(name)} for config in (saved, now))
    absent = lambda name: "nothing" if name.startswith("env_options.") else after[name]
    return {name: (then, value) for name, value in after.items() if (then := before.get(name, absent(name))) != value}


def _is_option(name: str) -> bool:
    """Tell options from facts of the machine and the place: where a run is may change, what is there, and where its code is."""
    return not name.startswith(("machine.", "references.")) and name not in ("run.runs", trusted.SIGNATURE)


def said(changed: dict[str, tuple[str, str]], whose: str = "the run's") -> str:
    """List changed options: --num-envs 64 (the run's: 8)."""
    return ", ".join(f"{_flag(name)} {now} ({whose}: {then})" for name, (then, now) in changed.items())


def _flag(name: str) -> str:
    part, _, option = name.partition(".")
    if part == "env_options":
        return f"--env-options {option} ="
    return f"--{(option or part).replace('_', '-')}"


def cut_episodes(snapshot: PyTree) -> int:
    """Count the environments whose state could not be saved: their episodes are cut, and they start new ones."""
    if isinstance(snapshot, list):
        return sum(map(cut_episodes, snapshot))
    if not isinstance(snapshot, dict):
        return 0
    if "pool" in snapshot and snapshot["pool"] is None:
        return len(snapshot["streams"])
    return sum(map(cut_episodes, snapshot.values()))
