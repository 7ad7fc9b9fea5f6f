"""A copy of the metrics for Weights & Biases (https://wandb.ai), online or offline.

    rookery train ppo --env CartPole-v1 --wandb
    WANDB_MODE=offline rookery train ppo --env CartPole-v1 --wandb      and later: wandb sync runs/NAME/wandb/offline-run-*

Where no account is configured, the run is written offline instead of asking for one. Everything else that wandb can be told,
it reads itself from its own variables: WANDB_MODE, WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_TAGS, WANDB_NOTES. Its files are in the
run's directory. wandb is an extra, imported only when asked for; its console capture, code and git snapshots are off.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rookery.run.boards import MissingExtra, missing

STEPS = "env_steps"  # the axis of every chart
_logger = logging.getLogger(__name__)


class WandbBoard:
    """Raises MissingExtra without wandb, else whatever wandb does: rookery/run/boards.py drops it then."""

    def __init__(
        self, path: Path, *, project: str, run_id: str, config: Mapping[str, Any], say: Callable[[str], None] = print
    ) -> None:
        """run_id: of a run that is resumed, the same again. say: a line on where the run can be seen."""
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra(f"{missing('wandb', 'wandb')} ({error})") from error
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, save_code=False, silent=True)
        mine = wandb.setup().settings
        known = mine.mode in ("offline", "dryrun", "disabled") or wandb.login(prompt=False, verify=False)
        self._run: Any = wandb.init(
            project=project, name=path.name, id=run_id, resume="allow", dir=str(path), config=dict(config), settings=settings,
            reinit="create_new", mode=None if known else "offline",
        )  # fmt: skip
        self._run.define_metric(STEPS, hidden=True)
        self._run.define_metric("*", step_metric=STEPS)  # a resumed run steps back, which wandb's own counter cannot
        if self._run.offline:
            why = "" if known else "no account is configured (`wandb login`), so it is written "
            where = f"{why}offline; upload it with: wandb sync {Path(self._run.dir).parent}"
        else:
            where = str(self._run.url)
        _logger.info("W&B: %s", where)
        say(f"W&B: {where}")

    def write(self, values: Mapping[str, float | None], step: int) -> None:
        """Log numbers at so many environment steps; what is no finite number is left out."""
        shown = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self._run.log(shown | {STEPS: step})

    def close(self) -> None:
        """Hand over what is left; online this waits for the upload."""
        self._run.finish()
