"""`rookery watch` and `eval --render`: play a policy before somebody's eyes.

Keys: q (or Escape) leaves, space holds and goes on, `.` takes one step, n skips to the next episode, + and - change the speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import tyro

from rookery.envs.stage import Stage, View
from rookery.ranges import Range, Seed
from rookery.run.playing import Moment, brief, describe, opened, play, report_of
from rookery.run.screen import Place, Screen, check_place, has_display, open_screen

KEYS = "q leave  space hold  . step  n next  + - speed"
AFTER_SECONDS = 1.0  # that the end of an episode stays

Episodes = Annotated[int, Range(1, 10_000)]
FramesPerSecond = Annotated[float, Range(0.1, 240)]
StepLimit = Annotated[int, Range(1, 10**6)]


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Watch the policy of a run, or of a checkpoint, play: in a window where there is a display, else in the terminal."""

    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: Episodes = 5
    """Leave after so many."""
    fps: FramesPerSecond | None = None
    """Steps per second; None: as fast as the environment is meant to be seen."""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions as at the end of the training, instead of taking the best ones."""
    seed: Seed = 1
    """Of the environment."""
    view: View = "env"
    """As the environment draws itself, or as the agent sees it."""
    where: Place = "auto"
    """A window, or the terminal."""
    runs: str = "runs"
    """The directory that holds the runs."""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """Import the code that the run's config names, though you have not signed it."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """One JSON line at the end: what was played."""


class Looked(NamedTuple):
    """The episodes that were played to their end."""

    returns: list[float]
    lengths: list[int]
    cut: int


class _Tempo:
    """How long to wait for the next frame, and what the keys say."""

    def __init__(self, screen: Screen, fps: float) -> None:
        self._screen, self.fps, self.held, self.left, self.skip = screen, fps, False, False, False
        self._due = time.monotonic()

    def rest(self, ended: bool) -> None:
        """Wait until the next frame is due, or somebody wants it."""
        self._due = max(self._due + 1 / self.fps, time.monotonic())
        if ended:
            self._due += AFTER_SECONDS
        while True:
            key = self._screen.wait(3600.0 if self.held else max(0.0, self._due - time.monotonic()))
            self.left, self.skip = self.left or key in ("q", "\x1b"), key == "n"
            if key == " ":
                self.held, self._due = not self.held, time.monotonic()
            elif key in ("+", "="):
                self.fps = min(240.0, self.fps * 1.5)
            elif key == "-":
                self.fps = max(0.1, self.fps / 1.5)
            if self.left or self.skip or (key == "." and self.held) or (not self.held and time.monotonic() >= self._due):
                return


def look(screen: Screen, stage: Stage, moments: Any, *, episodes: int, fps: float | None, title: str) -> Looked:
    """Show moment after moment until so many episodes have ended, or the one who looks leaves."""
    seen, pace = Looked([], [], 0), _Tempo(screen, fps or stage.fps)
    for moment in moments:
        if not pace.skip:
            screen.show(stage.frame(), status_lines(title, moment, episodes, pace.fps))
            pace.rest(bool(moment.ended))
        if moment.ended:
            pace.skip = False
            seen.returns.append(moment.total)
            seen.lengths.append(moment.step)
            seen = seen._replace(cut=seen.cut + (moment.ended == "cut"))
        if pace.left or len(seen.returns) == episodes:
            break
    return seen


def status_lines(title: str, moment: Moment, episodes: int, fps: float) -> list[str]:
    """Write what stands below a frame."""
    return [describe(moment, episodes), f"observation {brief(moment.observation)}", f"{title}  {fps:.3g} steps/s", KEYS]


def watch_run(
    run: str, *, which: str | None, episodes: int, stochastic: bool, seed: int, root: str, fps: float | None = None,
    view: View = "env", where: Place = "auto", trust: bool = False, how: str = "watch",
) -> dict[str, Any] | None:  # fmt: skip
    """Show episodes of a run's policy, and return the report of those that were played to their end; None: of none."""
    check_place(where)
    played = opened(run, which=which, root=root, stochastic=stochastic, trust=trust, how=how)
    begin = time.perf_counter()
    stage, pool = played.on_stage(view=view, text=where == "terminal" or not has_display())
    try:
        title = f"{played.run.name} · {played.config.system} · {played.checkpoint.name}"
        screen = open_screen(where, title=title)
        try:
            moments = play(played.policy, stage, pool, seed=seed, explore=float(stochastic))
            seen = look(screen, stage, moments, episodes=episodes, fps=fps, title=title)
        finally:
            screen.close()
    finally:
        pool.close()
    if not seen.returns:
        return None
    told = {
        "run": str(played.run.shown), "checkpoint": played.checkpoint.name, "system": played.config.system,
        "env": played.config.env_name, "env_steps": played.env_steps, "episodes": len(seen.returns), "seed": seed,
    }  # fmt: skip
    seconds = time.perf_counter() - begin
    return report_of(told, seen.returns, seen.lengths, seconds, cut=seen.cut, stochastic=stochastic)
