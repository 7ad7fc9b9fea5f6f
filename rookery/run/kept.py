"""The policies that a run keeps: the last one, which training continues from, and the best one by evaluation.

    checkpoints/best/                   exactly the parameters that were evaluated, and how they did
    checkpoints/update-0000000200/      all that training needs to go on

What is in flight is learned from before an asynchronous topology is saved, so the last policy may be far from the one whose
evaluation ended the run. Both have the format of checkpoint.py and are whole or absent. `best` has no number, so neither
`checkpoint.newest` nor `checkpoint.prune` sees it; it is replaced by a better one and by nothing else.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from rookery.run import checkpoint
from rookery.run.assemble import CheckpointSkipped, newest_checkpoint, saved_params
from rookery.run.checkpoint import CheckpointError
from rookery.run.config import ConfigError
from rookery.run.directory import BEST, LAST, Run, run_argument
from rookery.run.resuming import UNFIT
from rookery.types import Agent, PyTree

KIND = "policy"  # in the meta: parameters alone
_NUMBER = re.compile(r"(?:update-)?([0-9]{1,18})")
_logger = logging.getLogger(__name__)


class Evaluated(NamedTuple):
    params: dict[str, Any]  # flat, in memory of their own: path -> array
    meta: dict[str, Any]


class BestPolicy:
    """The best policy of a run so far, by evaluation. `offer` and `write` may be called by different threads."""

    def __init__(self) -> None:
        self._held: Evaluated | None = None
        self._written: Evaluated | None = None

    @property
    def eval_return_mean(self) -> float | None:
        return self._held.meta["eval_return_mean"] if self._held else None

    @property
    def meta(self) -> dict[str, Any] | None:
        """What `offer` was told of it: None before the first evaluation."""
        return dict(self._held.meta) if self._held else None

    @property
    def is_written(self) -> bool:
        """Is the best policy so far on disk?"""
        return self._held is not None and self._held is self._written

    def offer(self, params: PyTree, meta: dict[str, Any]) -> bool:
        """Hold a copy of `params` if `meta["eval_return_mean"]` is higher than all before; say whether it was."""
        from rookery.workers.learning.tree_paths import to_flat

        found, best = meta["eval_return_mean"], self.eval_return_mean
        if not math.isfinite(found) or (best is not None and found <= best):
            return False
        self._held = Evaluated(to_flat(params), {"kind": KIND, **meta})
        return True

    def params(self, agent: Agent) -> PyTree:
        """Return the parameters as the tree that `agent` makes."""
        assert self._held is not None, "there was no evaluation yet"
        return loaded_params(agent, {"params": self._held.params})

    def write(self, checkpoints: Path) -> None:
        """Write what is not on disk yet. Raises StorageError; the best policy before is intact then."""
        held = self._held  # `offer` may change it meanwhile
        if held is not None and held is not self._written:
            checkpoint.save(checkpoints / BEST, {"params": held.params}, meta=held.meta)
            self._written = held

    def read(self, checkpoints: Path) -> None:
        """Go on from the one on disk, if there is one; a damaged one is warned of, and the next evaluation replaces it."""
        try:
            if (path := best_of(checkpoints)) is not None:
                tree, meta = checkpoint.load(path)
                meta["eval_return_mean"] = float(meta["eval_return_mean"])
                self._held = self._written = Evaluated(dict(tree["params"]), meta)
        except (CheckpointError, *UNFIT) as error:
            _logger.warning("the best policy so far is lost, the next evaluation replaces it: %s", error)


# ---------------------------------------------------------------------------------------------------------- finding


def best_of(checkpoints: Path) -> Path | None:
    """Find the best policy and verify its digests; None if there is none. Raises CheckpointError if it is damaged."""
    damaged: CheckpointError | None = None
    best = checkpoints / BEST
    for path in (best, best.with_name(f"{BEST}.old"), best):  # it is at `.old` for a moment, or after a cut replacement
        if path.is_dir():
            try:
                checkpoint.verify(path)
                return path
            except CheckpointError as error:
                damaged = damaged or error
    if damaged is not None:
        raise damaged
    return None


def chosen(run: Run, which: str | int | None = None) -> Path:
    """Choose the checkpoint of a run: best, last or a number of updates; None: the one that its result names.

    Where the result names the best and that is damaged or gone, the last one is taken, with a warning.
    """
    if run.checkpoint is not None:
        if which is not None:
            raise ConfigError(
                f"{run.checkpoint} is a single checkpoint, so there is no {which!r} to choose: give the run, {run.shown}, "
                "or leave out --which"
            )
        return run.checkpoint
    if which is None:
        return _kept(run)
    if which == BEST:
        return _best(run)
    if which == LAST:
        return newest_checkpoint(run)
    return _numbered(run, which)


def _kept(run: Run) -> Path:
    if run.kept == LAST:
        return newest_checkpoint(run)
    try:
        return _best(run)
    except (CheckpointError, ConfigError) as error:
        last = newest_checkpoint(run)
        warnings.warn(
            f"the policy whose evaluation ended the run cannot be used, so {last.name} is used instead: {error}",
            CheckpointSkipped, stacklevel=4,
        )  # fmt: skip
        return last


def _best(run: Run) -> Path:
    try:
        path = best_of(run.checkpoints)
    except CheckpointError as error:
        raise CheckpointError(f"{error} The newest policy is there with --which {LAST}.") from error
    if path is None:
        raise ConfigError(
            f"{run.shown} has no {BEST} policy: it was not evaluated yet. Use --which {LAST}; --eval-every N of "
            "`rookery train` evaluates while it trains"
        )
    return path


def _numbered(run: Run, which: str | int) -> Path:
    found: dict[int, Path] = {}
    for path in checkpoint.listed(run.checkpoints):
        found.setdefault(checkpoint.updates_of(path), path)
    match = _NUMBER.fullmatch(str(which))
    if match and int(match[1]) in found:
        return found[int(match[1])]
    there = ", ".join(str(updates) for updates in sorted(found)) or "none yet"
    raise ConfigError(
        f"{run.shown} has no checkpoint {which!r}: use {BEST}, {LAST}, or the number of updates of one that is there: {there}"
    )


def resumable(run: Run) -> Path:
    """Choose the checkpoint that training resumes from: the one asked for by path, or the newest whole one."""
    path = run.checkpoint
    if path is None:
        return newest_checkpoint(run)
    if path.name == BEST or checkpoint.read_meta(path).get("kind") == KIND:
        there = ", ".join(one.name for one in checkpoint.listed(run.checkpoints)) or "nothing yet"
        raise ConfigError(
            f"{path} is a policy alone, to evaluate, load and record: training cannot go on from it. "
            f"`rookery resume {run_argument(run.name, run.shown)}` goes on from the newest of what can be resumed: {there}"
        )
    return path


def loaded_params(agent: Agent, tree: PyTree) -> PyTree:
    """Return the parameters in either kind of checkpoint, as the tree that `agent` makes."""
    if "params" not in tree:
        return saved_params(agent, tree["topology"])
    import jax

    from rookery import ops
    from rookery.workers.learning.tree_paths import from_flat

    return from_flat(jax.eval_shape(agent.init, ops.random.key(0)).params, tree["params"])
