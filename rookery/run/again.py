"""`--resume auto`: the same command, typed again, goes on where its run stands. For machines that are taken away at any moment.

    while ! rookery train ppo --env CartPole-v1 --run job1 --resume auto; do sleep 1; done

    nothing there                             it is started
    a checkpoint                              it goes on from the newest whole one
    ended before its first checkpoint         it is started anew, in its place
    ended after its last step, unsaid         it goes on from the checkpoint before, and says the result
    done                                      nothing is trained: the result, once more
    trained by another process                refused

Without `--run`, the newest run with the same config is meant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

from rookery.run import api, checkpoint
from rookery.run.checkpoint import CheckpointError
from rookery.run.config import Config
from rookery.run.directory import CONFIG, EPISODES, EVALUATIONS, METRICS, RESULT, Run, RunError
from rookery.run.records import read_json
from rookery.run.resuming import changes, config_of, said
from rookery.run.trainer import Trainer


def find(cfg: Config) -> Run | None:
    """Find the run that this config is of: by its name where it gives one, else the newest with the same options."""
    root = Path(cfg.run.runs)
    if cfg.run.run is not None:
        return Run.open(cfg.run.run, root) if (root / cfg.run.run / CONFIG).is_file() else None
    for row in Run.list(root):
        with contextlib.suppress(RunError):
            run = Run.open(row.name, root)
            if not _changed(run, cfg):
                return run
    return None


def result_of(run: Run, cfg: Config) -> dict[str, Any] | None:
    """Return the result of a run that is done as it was asked for; None where there is something left to do."""
    result = read_json(run.path / RESULT)
    return result if result.get("status") == "done" and not _changed(run, cfg) else None


def trainer(run: Run | None, cfg: Config, *, began: float | None = None) -> Trainer:
    """Make the trainer that starts this run, or goes on with it. Raises RunError where another process trains it."""
    if run is None:
        return Trainer.from_config(cfg, began=began)
    if not checkpoint.listed(run.checkpoints):
        clear(run)
        return Trainer.from_config(dataclasses.replace(cfg, run=dataclasses.replace(cfg.run, run=run.name)), began=began)
    last, left = _ends(run, cfg)
    if read_json(run.path / RESULT).get("status") == "done":  # with other options, else its result would have been said
        if last is not None and left != last:
            raise RunError(f"{run.shown} is done, and was trained without {said(_changed(run, cfg))}. Choose another --run.")
        return api.continued(run, cfg, began=began)
    if left is None and last is not None:  # a step more than it was to do
        made = Trainer.from_config(cfg, began=began)
        try:
            made.continue_run(run, last)
        except BaseException:
            made.close()
            raise
        return made
    return api.continued(run if left == last else Run(run.shown, left), cfg, began=began)


def clear(run: Run) -> None:
    """Empty the directory of a run that was ended before its first checkpoint, so that it can be started there."""
    run.lock()
    try:
        run.rewind(-1)
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        for name in (METRICS, EPISODES, EVALUATIONS, CONFIG):  # the config last: until then it is a run without a checkpoint
            with contextlib.suppress(FileNotFoundError):
                (run.path / name).unlink()
    finally:
        run.close()


def _ends(run: Run, cfg: Config) -> tuple[Path | None, Path | None]:
    """Find the newest whole checkpoint, and the newest that leaves something to do of the budget."""
    last = None
    for path in checkpoint.listed(run.checkpoints):
        with contextlib.suppress(CheckpointError):
            checkpoint.verify(path)
            last = last or path
            if not _is_spent(checkpoint.read_meta(path), cfg):
                return last, path
    return last, None


def _is_spent(meta: dict[str, Any], cfg: Config) -> bool:
    options = cfg.run
    budgets = (("env_steps", options.total_steps), ("updates", options.total_updates), ("seconds", options.seconds))
    return any(budget is not None and meta.get(name, 0) >= budget for name, budget in budgets)


def _changed(run: Run, cfg: Config) -> dict[str, tuple[str, str]]:
    """Find the options that are not the run's; its own name is no such."""
    found = changes(config_of(run), cfg.settled().to_dict())
    return {name: values for name, values in found.items() if name != "run.run"}
