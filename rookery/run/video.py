"""`rookery video`: write a policy playing to a file, .mp4 or .gif. The extra `video` encodes: imageio with its ffmpeg.

Frames are of one size, even on both sides, as codecs want them: small ones are enlarged by a whole number, large ones made
smaller by one. A file is there whole or not at all: it is written beside its place and then moved there.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from rookery.envs.rendering import CannotDraw
from rookery.envs.stage import Stage, View
from rookery.ranges import Range, Seed
from rookery.run.config import ConfigError
from rookery.run.playing import MAX_STEPS, Moment, brief, opened, play
from rookery.types import Array

MISSING = "{what} needs imageio and imageio-ffmpeg: pip install 'rookery[video]'"
KINDS = (".mp4", ".gif")
LEAST, MOST = 360, 1280  # pixels of the longer side
LINE = 20  # pixels of a line of text below the picture, with --overlay
HOLD_SECONDS = 0.5  # that the last frame of an episode stays
GIF_FPS = 50.0  # viewers play quicker ones slowly


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """Write episodes of the policy of a run, or of a checkpoint, to a video file."""

    out: str | None = None
    """The file, .mp4 or .gif; None: videos/CHECKPOINT.mp4 in the run's directory."""
    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: Annotated[int, Range(1, 1000)] = 1
    """One after another, in one file."""
    max_steps: Annotated[int, Range(1, 10**6)] = MAX_STEPS
    """An episode is cut after so many."""
    fps: Annotated[float, Range(0.1, 240)] | None = None
    """Steps per second; None: as fast as the environment is meant to be seen."""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions as at the end of the training, instead of taking the best ones."""
    overlay: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write step, reward and return below each frame."""
    seed: Seed = 1
    """Of the environment."""
    view: View = "env"
    """As the environment draws itself, or as the agent sees it."""
    runs: str = "runs"
    """The directory that holds the runs."""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """Import the code that the run's config names, though you have not signed it."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """One JSON line instead of the text."""


class Filmed(NamedTuple):
    """What is in a video."""

    frames: int
    fps: float
    size: tuple[int, int]  # width, height
    returns: list[float]
    lengths: list[int]


def require_video(what: str) -> None:
    """Refuse what needs an encoder where there is none."""
    if find_spec("imageio") is None or find_spec("imageio_ffmpeg") is None:
        raise ConfigError(MISSING.format(what=what))


def write_video(run: str, options: VideoOptions) -> dict[str, Any]:
    """Play and write, and return what `rookery video --json` prints."""
    require_video("rookery video")
    if options.out is not None:
        check_kind(Path(options.out))
    played = opened(
        run, which=options.which, root=options.runs, stochastic=options.stochastic, trust=options.trust, how="video"
    )
    out = played.run.path / "videos" / f"{played.checkpoint.name}.mp4" if options.out is None else Path(options.out)
    stage, pool = played.on_stage(view=options.view, text=False)
    try:
        moments = play(
            played.policy, stage, pool, seed=options.seed, explore=float(options.stochastic), max_steps=options.max_steps
        )  # fmt: skip
        film = filmed(moments, stage, out, episodes=options.episodes, fps=options.fps, overlay=options.overlay)
    finally:
        pool.close()
    assert film is not None, "it was wanted to the end"
    shown = str(played.run.shown_as(out)) if options.out is None else str(out)
    return {
        "run": str(played.run.shown), "checkpoint": played.checkpoint.name, "system": played.config.system,
        "env": played.config.env_name, "out": shown, **film._asdict(), "seconds": round(film.frames / film.fps, 3),
        "actions": "sampled" if options.stochastic else "greedy", "seed": options.seed,
    }  # fmt: skip


def check_kind(path: Path) -> None:
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"--out {path}: a video is a file that ends in {' or '.join(KINDS)}")


def filmed(
    moments: Iterable[Moment], stage: Stage, out: Path, *, episodes: int = 1, fps: float | None = None, overlay: bool = False,
    wanted: Callable[[], bool] = lambda: True,
) -> Filmed | None:  # fmt: skip
    """Write moments until so many episodes have ended; None, and no file, where it was no longer wanted."""
    rate, frames = fps or stage.fps, 0
    if out.suffix.lower() == ".gif":
        rate = min(rate, GIF_FPS)
    returns: list[float] = []
    lengths: list[int] = []
    with VideoFile(out, rate) as file:
        for moment in moments:
            if not wanted():
                return None
            picture = prepared(stage.frame(), captions(moment) if overlay else ())
            for _ in range(max(1, round(HOLD_SECONDS * rate)) if moment.ended else 1):
                file.add(picture)
                frames += 1
            if moment.ended:
                returns.append(moment.total)
                lengths.append(moment.step)
                if len(returns) == episodes:
                    break
        file.keep()
    return Filmed(frames, rate, file.size, returns, lengths)


class VideoFile:
    """A file of frames; without `keep` nothing is left of it."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.size = path, fps, (0, 0)
        self._part = path.with_name(f".{path.stem}.part{path.suffix.lower()}")
        self._writer: Any = None
        self._kept = False

    def __enter__(self) -> VideoFile:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error
        return self

    def add(self, picture: Array) -> None:
        """Add a frame; the first one decides how large all are."""
        if self._writer is None:
            self.size = (picture.shape[1], picture.shape[0])
            self._writer = self._open()
        picture = fitted(picture, self.size)
        if isinstance(self._writer, subprocess.Popen):
            self._writer.stdin.write(np.ascontiguousarray(picture).data)  # type: ignore[union-attr]
        else:
            self._writer.append_data(picture)

    def keep(self) -> None:
        self._kept = True

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self._finish()
            if self._kept and kind is None:
                self._part.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink()

    def _open(self) -> Any:
        if self.path.suffix.lower() == ".gif":
            import imageio.v2

            return imageio.v2.get_writer(self._part, mode="I", duration=1000 / self.fps, loop=0)
        import imageio_ffmpeg

        width, height = self.size
        words = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        words += ["-s", f"{width}x{height}", "-r", f"{self.fps:g}", "-i", "-", "-an", "-c:v", "libx264", "-pix_fmt", "yuv420p"]
        words += ["-crf", "20", "-movflags", "+faststart", str(self._part)]
        # not imageio's own way, which forks a process that holds JAX; in a group of its own, Ctrl-C is for us alone
        return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if not isinstance(writer, subprocess.Popen):
            if writer is not None:
                writer.close()
            return
        _, said = writer.communicate()
        if writer.returncode:
            told = said.decode(errors="replace").strip().splitlines() or [f"status {writer.returncode}"]
            raise ConfigError(f"{self.path} cannot be written: ffmpeg says: {told[-1]}")


# ------------------------------------------------------------------------------------------------------------ frames


def prepared(frame: Any, captions: Sequence[str] = ()) -> Array:
    """Make a frame of a video: uint8 [H, W, 3], not too small, not too large, even on both sides; captions: below it."""
    if frame is None:
        raise CannotDraw("the environment draws in a window of its own, of which there are no frames: --view agent draws it")
    picture = written(frame.splitlines()) if isinstance(frame, str) else np.asarray(frame)
    side = max(picture.shape[:2])
    if side < LEAST:
        scale = math.ceil(LEAST / side)
        picture = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    elif side > MOST:
        step = math.ceil(side / MOST)
        picture = picture[::step, ::step]
    if captions:
        strip = fitted(written(captions, size=14), (picture.shape[1], LINE * len(captions) + 4))
        picture = np.concatenate([picture, strip])
    return fitted(picture, (picture.shape[1] + picture.shape[1] % 2, picture.shape[0] + picture.shape[0] % 2))


def captions(moment: Moment) -> list[str]:
    """Write where an episode stands, in two short lines."""
    first = f"step {moment.step}  return {moment.total:.5g}"
    second = "" if moment.action is None else f"action {brief(moment.action, 4)}  reward {moment.reward:.3g}"
    return [f"{first}  {moment.ended}", second]


def fitted(picture: Array, size: tuple[int, int]) -> Array:
    """Cut or fill [H, W, 3] to (width, height); what is filled repeats the edge."""
    width, height = size
    picture = picture[:height, :width]
    missing = (height - picture.shape[0], width - picture.shape[1])
    return np.pad(picture, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge") if any(missing) else picture


def written(lines: Sequence[str], *, size: int = 16) -> Array:
    """Draw lines of text, bright on dark, as [H, W, 3]."""
    import re

    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    plain = [re.sub(r"\x1b\[[0-9;]*m|[\x00-\x1f]", "", line) for line in lines] or [""]
    width = max(16, *(math.ceil(font.getlength(line)) + 12 for line in plain))
    image = Image.new("RGB", (width, (size + 6) * len(plain) + 4), (24, 26, 33))
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(plain):
        pen.text((6, 2 + number * (size + 6)), line, fill=(230, 232, 240), font=font)
    return np.array(image)
