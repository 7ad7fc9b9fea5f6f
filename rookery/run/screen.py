"""Where frames are shown: a terminal, drawn in half blocks of colour, or a window.

Both are used the same way: `show(frame, lines)` draws, `wait(seconds)` passes the time until the next frame and returns the key
that was pressed in it, and `close` leaves everything as it was, also when a signal ends the command.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TextIO

import numpy as np

from rookery import signals
from rookery.run.config import ConfigError
from rookery.types import Array

Depth = Literal["24-bit", "256", "none"]
Place = Literal["auto", "window", "terminal"]
HALF, RAMP = "▀", " .:-=+*#%@"
CUBE = np.array([0, 95, 135, 175, 215, 255])  # the levels of the 256 colours
SIZE = 640  # pixels of a window's longer side, at least
NO_TERMINAL = (
    "frames are shown in a terminal or a window: standard output is no terminal, and there is no display. "
    "`rookery video RUN` writes them to a file"
)


class Screen(Protocol):
    def show(self, frame: Any, lines: Sequence[str]) -> None: ...
    def wait(self, seconds: float) -> str: ...  # "q", " ", "n" ...; "" for none
    def close(self) -> None: ...


def open_screen(place: Place, *, title: str) -> Screen:
    """Open a window where there is a display and pygame, else the terminal; ConfigError where neither is there."""
    if place == "window" or (place == "auto" and has_display() and find_spec("pygame") is not None):
        from rookery.run.window import CannotOpen, WindowScreen

        try:
            return WindowScreen(title)
        except CannotOpen as error:
            if place == "window":
                raise
            print(f"rookery: {error}; the terminal is used", file=sys.stderr)
    if not sys.stdout.isatty():
        raise ConfigError(NO_TERMINAL)
    return TerminalScreen(sys.stdout)


def check_place(place: Place) -> None:
    """Refuse a window where there is no display for one, before anything is loaded."""
    if place == "window" and not (has_display() or os.environ.get("SDL_VIDEODRIVER")):
        raise ConfigError("there is no display for a window: --where terminal, or `rookery video RUN` for a file")


def has_display(environ: Mapping[str, str] = os.environ) -> bool:
    return sys.platform in ("darwin", "win32") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


# ------------------------------------------------------------------------------------------------------ a terminal


class TerminalScreen:
    """The alternate screen of a terminal, so that what stood there is there again afterwards."""

    def __init__(
        self, stream: TextIO, *, keys: int | None = None, depth: Depth | None = None,
        size: Callable[[], os.terminal_size] = shutil.get_terminal_size,
    ) -> None:  # fmt: skip
        """keys: the file number that keys come from; by default standard input, where that is a terminal."""
        self._stream, self._depth, self._size = stream, depth or colour_depth(os.environ), size
        self._keys = _terminal_of(sys.stdin) if keys is None else keys
        self._before: Any = None
        self._closed = False
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)  # keys without Enter; Ctrl-C stays a signal
        signals.before_leaving(self.close)
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")

    def show(self, frame: Any, lines: Sequence[str]) -> None:
        columns, rows = self._size()
        room = max(1, rows - len(lines) - 1)
        drawn = text_lines(frame, columns, room) if isinstance(frame, str) else (
            [] if frame is None else half_blocks(frame, columns, room, self._depth))  # fmt: skip
        below = [line[: columns - 1] for line in lines]
        text = "\r\n".join(f"{line}\x1b[0m\x1b[K" for line in [*drawn, "", *below][:rows])
        self._write(f"\x1b[?2026h\x1b[H{text}\x1b[J\x1b[?2026l")  # drawn at once, where the terminal can

    def wait(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 or seconds == 0:
            if self._keys is None:
                time.sleep(max(0.0, left))
            elif select.select([self._keys], [], [], max(0.0, left))[0]:
                key = os.read(self._keys, 16)
                return "q" if key in (b"\x1b", b"\x04", b"") else key[:1].decode(errors="replace")  # Escape, Ctrl-D
            if seconds == 0:
                break
        return ""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, ValueError, termios.error):
            self._write("\x1b[?2026l\x1b[0m\x1b[?25h\x1b[?1049l")
        if self._keys is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _terminal_of(stream: Any) -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return stream.fileno() if stream.isatty() else None
    return None


def colour_depth(environ: Mapping[str, str]) -> Depth:
    """Return how many colours a terminal says that it has."""
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") in ("dumb", ""):
        return "none"
    return "24-bit" if environ.get("COLORTERM") in ("truecolor", "24bit") else "256"


def text_lines(text: str, columns: int, rows: int) -> list[str]:
    """Cut a text rendering to what fits; escapes of colour in it count as nothing and stay."""
    return [line if "\x1b" in line else line[:columns] for line in text.expandtabs().splitlines()[:rows]]


def half_blocks(picture: Array, columns: int, rows: int, depth: Depth) -> list[str]:
    """Draw [H, W, 3] uint8 in at most `columns` times `rows` characters, two pixels in each: the upper is its colour."""
    height, width = picture.shape[:2]
    share = min(columns / width, 2 * rows / height)
    wide, high = max(1, int(width * share)), max(2, int(height * share) // 2 * 2)
    small = resized(picture, high, wide)
    if depth == "none":
        level = (small[0::2].astype(int) + small[1::2]).sum(axis=-1) * (len(RAMP) - 1) // (2 * 3 * 255)
        return ["".join(RAMP[x] for x in row).rstrip() for row in level]
    left = " " * ((columns - wide) // 2)
    codes = _codes(small, depth)
    return [left + _row(codes[2 * line], codes[2 * line + 1], depth) for line in range(high // 2)]


def resized(picture: Array, height: int, width: int) -> Array:
    """Resize [H, W, 3] by the mean of what falls together; enlarged, by the nearest."""
    return _along(_along(picture.astype(np.float32), height, 0), width, 1).round().astype(np.uint8)


def _along(values: Array, size: int, axis: int) -> Array:
    given = values.shape[axis]
    if size == given:
        return values
    edges = np.arange(size) * given // size
    if size > given:
        return values.take(edges, axis=axis)
    counts = np.diff(np.append(edges, given)).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    return np.add.reduceat(values, edges, axis=axis) / counts


def _codes(picture: Array, depth: Depth) -> list[list[str]]:
    """Return the numbers of the colours [H][W], as escapes hold them."""
    if depth == "24-bit":
        return [[f"2;{r};{g};{b}" for r, g, b in row] for row in picture.tolist()]
    index = np.abs(picture[..., None].astype(int) - CUBE).argmin(axis=-1)
    return [[f"5;{16 + 36 * r + 6 * g + b}" for r, g, b in row] for row in index.tolist()]


def _row(upper: list[str], lower: list[str], depth: Depth) -> str:
    """Write a line of half blocks; a colour is written only where it changes."""
    parts, before = [], ("", "")
    for above, below in zip(upper, lower):
        changed = [f"38;{above}"] * (above != before[0]) + [f"48;{below}"] * (below != before[1])
        parts.append(f"\x1b[{';'.join(changed)}m{HALF}" if changed else HALF)
        before = above, below
    return "".join(parts)
