"""What a run shows while it trains: a live panel in a terminal, lines of columns elsewhere, nothing with --json.

A display takes plain values (`Row`) and draws. It starts no thread, so that drawing costs nothing when nobody calls,
and it never raises into training: a closed pipe or terminal only makes it silent.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

PHASES = ("env", "inference", "transfer", "learn", "wait")
COLOURS = {"env": "green", "inference": "cyan", "transfer": "yellow", "learn": "magenta", "wait": "bright_black"}
BLOCKS, SPARKS, ASCII_SPARKS = " ▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", "_.-=+*#@"
MAX_WIDTH = 110
HISTORY = 400


@dataclass(frozen=True, kw_only=True)
class Header:
    """What does not change during a run."""

    name: str
    system: str
    env: str
    path: Path | str
    num_params: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a run stands. Counters are cumulative; rates are recent; shares are between 0 and 1."""

    seconds: float
    env_steps: int
    total_steps: int | None = None
    trained_steps: int = 0
    updates: int = 0
    episodes: int = 0
    return_mean: float | None = None
    eval_return_mean: float | None = None
    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    policy_lag_mean: float = 0.0  # in updates
    learner_idle: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)  # share of time by PHASES; "start" is start-up, if known
    report: dict[str, float] = field(default_factory=dict)  # of the last update, by the algorithm's own names
    eta_seconds: float | None = None
    starting: bool = False  # no update is done yet: there are no rates
    waiting: str | None = None  # why nothing was learned, or collected, since the last row


class Display(Protocol):
    def update(self, row: Row) -> None: ...
    def message(self, text: str) -> None: ...  # a line of its own, above what is drawn
    def close(self) -> None: ...


def open_display(header: Header, *, json: bool = False, stream: TextIO | None = None) -> Display:
    """Open the display that fits: quiet for --json, live in a terminal, else plain lines."""
    stream = stream or sys.stdout
    if json:
        return QuietDisplay()
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(header, console=console)
    return PlainDisplay(header, stream=stream)


class QuietDisplay:
    """Draws nothing: standard output belongs to the JSON."""

    def update(self, row: Row) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


# -------------------------------------------------------------------------------------------------------- plain


COLUMNS = (("time", 9), ("steps", 13), ("return", 10), ("evaluated", 10), ("steps/s", 9), ("updates/s", 10), ("lag", 7),
           ("idle", 5), ("ETA", 9))  # and their widths: 98 characters with the gaps  # fmt: skip
HEAD = "  ".join(f"{name:>{width}}" for name, width in COLUMNS)
HEAD_EVERY = 30  # lines


class PlainDisplay:
    """A line of columns every few seconds, "-" where nothing is known yet: `awk '{print $2, $3}'` gives a curve. The names of
    the columns are repeated now and then; metrics.jsonl has all the rest."""

    def __init__(self, header: Header, *, stream: TextIO | None = None, period_seconds: float = 5.0) -> None:
        self._stream: TextIO | None = stream or sys.stdout
        self._period = period_seconds
        self._next = 0.0
        self._lines = 0
        self._waited: str | None = None  # what for, as it was said last
        self._pending: Row | None = None
        parameters = "" if header.num_params is None else f" parameters {header.num_params}"
        told = f"run {header.name} system {header.system} env {header.env}{parameters}"
        short_enough = len(told) + len(place := f" path {header.path}") <= MAX_WIDTH
        self._print(told + place if short_enough else f"{told}\n{place.strip()}")

    def update(self, row: Row) -> None:
        self._pending = row
        if time.monotonic() >= self._next:
            self._flush()

    def message(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        """Print the last row, if it has not been."""
        self._flush()
        self._stream = None

    def _flush(self) -> None:
        row, self._pending = self._pending, None
        if row is None:
            return
        if self._lines % HEAD_EVERY == 0:
            self._print(HEAD)
        self._lines += 1
        self._print(plain_line(row))
        if row.waiting and row.waiting != self._waited:
            self._print(textwrap.fill(row.waiting, MAX_WIDTH, subsequent_indent="  "))
        self._waited = row.waiting
        self._next = time.monotonic() + self._period

    def _print(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            print(_encodable(text, self._stream.encoding), file=self._stream, flush=True)
        except (OSError, ValueError):  # the reader went away (`| head`); the run goes on
            with contextlib.suppress(OSError, ValueError):  # nor does whatever else is printed fail
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)
            self._stream = None


def plain_line(row: Row) -> str:
    """Format a row as the columns that HEAD names; before the first update there are no rates."""
    known: list[tuple[float | None, str]] = [
        (row.return_mean, ".2f"), (row.eval_return_mean, ".2f"), (row.env_steps_per_s, ".0f"), (row.updates_per_s, ".1f"),
        (row.policy_lag_mean, ".2f"), (row.learner_idle, ".0%"),
    ]  # fmt: skip
    known = known[:2] + [(None, "")] * 4 if row.starting else known
    numbers = ["-" if value is None else format(value, form) for value, form in known]
    eta = "-" if row.eta_seconds is None or row.starting else _hours(row.eta_seconds)
    cells = [_hours(row.seconds), str(row.env_steps), *numbers, eta]
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS))


def _hours(seconds: float) -> str:
    """Format a duration without a space, however long it is: 0:07, 3:05:00, 51:00:00."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


# --------------------------------------------------------------------------------------------------------- live


class LiveDisplay:
    """A panel that is redrawn in place. A frame takes 2-5 ms of the interpreter, hence 5 a second and not more."""

    def __init__(self, header: Header, *, console: Console | None = None, period_seconds: float = 0.2) -> None:
        self._console = console or Console()
        self._header = header
        self._period = period_seconds
        self._next = 0.0
        self._row: Row | None = None
        self._history: list[float] = []
        self._live: Live | None = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._guard(self._live.start)

    def update(self, row: Row) -> None:
        self._row = row
        shown = row.eval_return_mean if row.return_mean is None else row.return_mean
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._period
        if shown is not None and math.isfinite(shown) and not row.starting:
            self._history.append(shown)
            if len(self._history) > HISTORY:  # halve, so that it always spans the whole run
                self._history = self._history[::2]
        self._draw()

    def message(self, text: str) -> None:
        if self._live is not None:
            shown = Text(_encodable(text, self._console.encoding))
            self._guard(lambda: self._console.print(shown))

    def close(self) -> None:
        """Leave the last panel on the screen and give the terminal back."""
        if self._row is not None:
            self._draw()
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):
                live.stop()

    def _draw(self) -> None:
        live, row = self._live, self._row
        if live is not None and row is not None:
            drawn = draw(self._header, row, self._history, self._console)
            self._guard(lambda: live.update(drawn, refresh=True))

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, ValueError):  # the terminal went away
            self._live = None


def draw(header: Header, row: Row, history: Sequence[float], console: Console) -> Panel:
    """Draw the panel, for the width, the encoding and the colours of `console`."""
    ascii_only = console.options.ascii_only
    letters = ascii_only or console.no_color or console.color_system is None
    width = min(console.width, MAX_WIDTH)
    inner = max(width - 4, 20)
    dot = " - " if ascii_only else " · "
    parts = [header.system, header.env]
    if header.num_params is not None:
        parts.append(f"{short(header.num_params)} parameters")
    path = _encodable(str(header.path), console.encoding)
    lines = [
        _progress(row, inner, ascii_only),
        *_wrap(_return_cells(row, history, ascii_only), "return", inner),
        *_wrap(_speed_cells(row), "speed", inner),
        *_stall_lines(row, inner),
        *_time_lines(row, inner, letters=letters),
        *_report_lines(row, inner),
    ]
    if len(path) > inner - 2:  # the end of a path tells more than its beginning
        path = "..." + path[5 - inner :]
    title = Text(_encodable(dot.join(parts), console.encoding), style="bold")
    return Panel(
        Group(*lines), title=title, title_align="left", subtitle=Text(path, style="dim"), subtitle_align="left",
        width=width, border_style="blue", padding=(0, 1),
    )  # fmt: skip


def _progress(row: Row, width: int, ascii_only: bool) -> Text:
    elapsed = clock(row.seconds)
    if not row.total_steps:
        return Text.assemble((f"{row.env_steps:,}", "bold"), " steps", (f"   {elapsed}", "dim"))
    share = min(max(row.env_steps / row.total_steps, 0.0), 1.0)
    eta = "" if row.eta_seconds is None or share == 1.0 else f"   {clock(row.eta_seconds)} left"
    count = short if width < 90 else "{:,}".format
    right = f" {math.floor(100 * share):3d}%   {count(row.env_steps)} / {count(row.total_steps)} steps   {elapsed}{eta}"
    room = max(width - len(right), 8)
    filled = bar(share, room, ascii_only)
    return Text.assemble((filled, "blue"), (("." if ascii_only else "░") * (room - len(filled)), "bright_black"), right)


def _return_cells(row: Row, history: Sequence[float], ascii_only: bool) -> list[Text]:
    cells = [Text("no episode has ended yet", style="dim")]
    if row.return_mean is not None:
        cells = [Text(number(row.return_mean), style="bold green")]
    if len(history) > 1:
        cells[0] = cells[0] + Text("  ") + Text(f"{sparkline(history, 20, ascii_only):20}", style="green")
    if row.eval_return_mean is not None:
        cells.append(Text.assemble(("evaluated ", "dim"), (number(row.eval_return_mean), "bold")))
    if row.episodes:
        cells.append(Text.assemble(f"{row.episodes:,}", (" episodes", "dim")))
    return cells


def _report_lines(row: Row, width: int) -> list[Text]:
    """List the terms of the loss, then whatever else the algorithm reports, a line or two of each."""
    cells: dict[str, list[Text]] = {"loss": [], "report": []}
    for name, value in row.report.items():
        term = name.removeprefix("loss/")
        cells["report" if term == name else "loss"].append(Text.assemble((f"{term} ", "dim"), f"{value:.3g}"))
    return [line for label, group in cells.items() for line in _wrap(group, label, width)[:2]]


def _speed_cells(row: Row) -> list[Text]:
    if row.starting:
        return [] if row.waiting else [Text("starting: the programs are compiled before the first update", style="dim")]
    return [
        Text.assemble((f"{row.env_steps_per_s:,.0f}", "bold"), (" steps/s", "dim")),
        Text.assemble((f"{row.updates_per_s:,.1f}", "bold"), (" updates/s", "dim")),
        Text.assemble(("policy lag ", "dim"), f"{row.policy_lag_mean:.1f}"),
        Text.assemble(("learner idle ", "dim"), (f"{row.learner_idle:.0%}", "red" if row.learner_idle > 0.5 else "")),
    ]


def _stall_lines(row: Row, width: int) -> list[Text]:
    """Say whom the table holds back and what for, folded to the width."""
    folded = textwrap.wrap((row.waiting or "").removeprefix("waiting: "), width - 8)
    return [Text.assemble((f"{'' if i else 'waiting':8}", "dim"), (line, "yellow")) for i, line in enumerate(folded)]


def _time_lines(row: Row, width: int, *, letters: bool) -> list[Text]:
    """Draw a stacked bar of where the time goes, and its legend. Letters where there are no colours."""
    shares = {name: row.phases[name] for name in PHASES if row.phases.get(name, 0) > 0}
    if not shares:
        return []
    stacked, legend = Text(f"{'time':8}", style="dim"), []
    mark = "" if letters else "■"
    for name, cells in zip(shares, apportion(list(shares.values()), width - 8)):
        stacked.append((name[0].upper() if letters else "█") * cells, style=COLOURS[name])
        text = f"{name[0].upper()}{name[1:]}" if letters else name
        legend.append(Text.assemble((mark, COLOURS[name]), (f"{text} ", "dim"), f"{shares[name]:.0%}"))
    return [stacked, *_wrap(legend, "", width)]


def _wrap(cells: Sequence[Text], label: str, width: int) -> list[Text]:
    """Lay cells out in a row, closer together if that saves a line, on as many lines as they need."""
    lines: list[Text] = []
    wide = 8 + sum(cell.cell_len + 3 for cell in cells) - 3
    gap = "   " if wide <= width else "  "
    for cell in cells:
        if lines and lines[-1].cell_len + len(gap) + cell.cell_len <= width:
            lines[-1].append(gap).append_text(cell)
        else:
            lines.append(Text(f"{'' if lines else label:8}", style="dim") + cell)
    return lines


# ----------------------------------------------------------------------------------------------------- elements


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """Draw the filled part of a bar of `width` cells, to an eighth of a cell."""
    if ascii_only:
        return "#" * math.floor(share * width)
    eighths = math.floor(share * width * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Draw `values` as a line of `width` characters at most, scaled between their least and greatest."""
    count = min(width, len(values))
    groups = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    glyphs = ASCII_SPARKS if ascii_only else SPARKS
    return "".join(glyphs[min(int(8 * (mean - low) / (high - low)), 7) if high > low else 0] for mean in means)


def apportion(shares: Sequence[float], cells: int) -> list[int]:
    """Round shares to whole cells that sum to `cells`, by the largest remainder."""
    total = sum(shares)
    exact = [share / total * cells for share in shares]
    counts = [math.floor(value) for value in exact]
    for index in sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])[: cells - sum(counts)]:
        counts[index] += 1
    return counts


def number(value: float) -> str:
    """Format a return: 12,345 or 183.4 or 0.973."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def short(count: float) -> str:
    """Format a count: 124k, 1.24M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * size:  # what rounds to a thousand of the smaller unit is one of this
            return f"{count / size:.3g}{letter}" if count / size < 999.5 else f"{count / size:.0f}{letter}"
    return f"{count:.0f}"


def clock(seconds: float) -> str:
    """Format a duration: 0:07, 12:30, 3:05:00, 2 d 3 h."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _encodable(text: str, encoding: str | None) -> str:
    """Replace characters that the stream cannot show by question marks."""
    return text.encode(encoding or "utf-8", errors="replace").decode(encoding or "utf-8")
