"""`--video-every N`: videos of greedy episodes, in the run's directory, made by a thread beside the training.

The learner waits for the copy of the parameters alone. Where the last video is still being made, one is left out; where one
cannot be made, that is said once, and the run goes on without.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rookery.envs.rendering import draw_without_display
from rookery.envs.stage import open_stage
from rookery.run.config import Config
from rookery.run.playing import play
from rookery.run.video import filmed, require_video
from rookery.types import Agent, EnvPool, PyTree

FOLDER = "videos"
MAX_STEPS = 3000  # of an episode: longer ones are cut
LAST_SECONDS = 60.0  # that a finished run waits for its last video
LEAVE_SECONDS = 5.0  # for the step that is being drawn
_logger = logging.getLogger(__name__)


def prepare_filming(cfg: Config) -> None:
    """Refuse `--video-every` without an encoder; before anything is made."""
    if cfg.run.video_every is not None:
        require_video("--video-every")
        draw_without_display()


class Filming:
    """The videos of a run. All environments live in the one thread, as a context of OpenGL must."""

    def __init__(self, cfg: Config, agent: Agent, *, tell: Callable[[str], None]) -> None:
        self._cfg, self._agent, self._tell = cfg, agent, tell
        self._filmed_at = 0  # updates
        self._thread = ThreadPoolExecutor(1, "video")
        self._work: Future[None] | None = None
        self._ending = threading.Event()
        self._stage: tuple[Any, EnvPool] | None = None
        self.failed = False

    def after(self, progress: Any, run: Path) -> None:
        """Begin a video if it is time for one and the last is made."""
        every = self._cfg.run.video_every
        if every is not None and progress.updates - self._filmed_at >= every and self._idle:
            self._begin(progress, run)

    def finish(self, progress: Any, run: Path) -> None:
        """Make one of the end, and wait until it is there."""
        if self._cfg.run.video_every is None or self.failed:
            return
        if self._work is not None:
            wait([self._work], LAST_SECONDS)
        if self._idle and progress.updates > self._filmed_at:
            self._begin(progress, run)
            wait([self._work], LAST_SECONDS)  # type: ignore[list-item]

    def close(self) -> None:
        """Give up the video that is being made; whatever hangs is not waited for."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self._work is not None:
            wait([self._thread.submit(self._leave)], LEAVE_SECONDS)
        self._thread.shutdown(wait=False)

    @property
    def _idle(self) -> bool:
        return not self.failed and (self._work is None or self._work.done())

    def _begin(self, progress: Any, run: Path) -> None:
        import jax
        import numpy as np

        params, self._filmed_at = jax.tree.map(np.array, progress.params), progress.updates
        self._work = self._thread.submit(self._film, params, run / FOLDER / f"update-{progress.updates:010d}.mp4")

    def _film(self, params: PyTree, path: Path) -> None:
        from rookery.workers.acting.policy import Policy

        cfg = self._cfg
        try:
            if self._stage is None:
                self._stage = open_stage(cfg.env, **cfg.env_options)
            stage, pool = self._stage
            moments = play(
                Policy(self._agent, pool.spec, params), stage, pool, seed=cfg.run.seed + 1_000_003, max_steps=MAX_STEPS,
                restarts=cfg.run.env_restarts,
            )  # fmt: skip
            filmed(moments, stage, path, wanted=lambda: not self._ending.is_set())
        except (Exception, SystemExit) as error:
            self.failed = True
            _logger.warning("%s cannot be made", path, exc_info=error)
            self._tell(f"no videos: {str(error).splitlines()[0] if str(error) else type(error).__name__}; the run goes on")

    def _leave(self) -> None:
        if self._stage is not None:
            self._stage[1].close()
