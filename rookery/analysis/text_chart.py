"""A chart in the terminal: dots of braille in the lines' colours, or letters where there are no colours or no such characters.

    500 ┤         ⢀⣀⡤⠤⠒⠉⠉⠉⠉   ppo
    250 ┤    ⣀⠤⠒⠊⠁
      0 ┤⠤⠒⠊⠉
        └───────────────────
         0      150k     300k
"""

from __future__ import annotations

import itertools
import math
import textwrap
from dataclasses import dataclass, field

import numpy as np

from rookery.analysis.chart import Chart, elided, short
from rookery.analysis.curves import Curve

COLOURS = (39, 208, 42, 176, 220, 117, 245)  # of the 256 of a terminal: readable on black and on white, also for few colours
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell
LEAST, MOST = 30, 110  # columns


@dataclass(frozen=True)
class Canvas:
    """Cells that lines are drawn into: the dots or the letter of each, and whose it is."""

    width: int
    height: int
    dots: np.ndarray = field(init=False)  # [height, width]
    owner: np.ndarray = field(init=False)  # [height, width], -1: nobody

    def __post_init__(self) -> None:
        object.__setattr__(self, "dots", np.zeros((self.height, self.width), int))
        object.__setattr__(self, "owner", np.full((self.height, self.width), -1))

    def put(self, x: float, y: float, owner: int) -> None:
        """Set the dot at x and y, each from 0 to 1, y upwards."""
        column = min(int(x * self.width * 2), self.width * 2 - 1)
        row = min(int((1 - y) * self.height * 4), self.height * 4 - 1)
        if self.owner[row // 4, column // 2] != owner:  # one cell has one colour: the last line's
            self.dots[row // 4, column // 2] = 0
        self.dots[row // 4, column // 2] |= DOTS[row % 4][column % 2]
        self.owner[row // 4, column // 2] = owner


def text_chart(chart: Chart, *, width: int = 80, height: int = 14, colour: bool = True, ascii_only: bool = False) -> str:
    """Draw every panel of a chart, one below the other, in lines of at most `width` columns."""
    width = min(max(width, LEAST), MOST)
    letters = ascii_only or (not colour and len(chart.labels) > 1)
    blocks = [chart.look.title] if chart.look.title else []
    for title, lines in chart.panels.items():
        drawn = _panel(chart, lines, width, height, colour=colour, letters=letters, ascii_only=ascii_only)
        blocks.append("\n".join([elided(f"{title}: {chart.y_name}", width), *drawn]))
    if len(chart.labels) > 1:
        blocks.append(_key(chart, width, colour=colour, letters=letters, ascii_only=ascii_only))
    blocks.append("\n".join(textwrap.wrap(chart.caption(bands=False), width)))
    text = "\n\n".join(blocks)
    return text.replace("−", "-").replace("…", "...") if ascii_only else text


def _panel(
    chart: Chart, lines: dict[str, Curve], width: int, height: int, *, colour: bool, letters: bool, ascii_only: bool
) -> list[str]:
    known = np.concatenate([found.middle[np.isfinite(found.middle)] for found in lines.values()])
    scale = np.log10 if chart.look.log_y else np.asarray
    left, right = min(found.x[0] for found in lines.values()), max(found.x[-1] for found in lines.values())
    left = 0.0 if left >= 0 and (left < 0.2 * right or left == right) else left
    low, high, step = nice_scale(float(known.min()), float(known.max())) if not chart.look.log_y else (
        float(np.log10(known.min())), float(np.log10(known.max())) + 1e-9, 0.0)  # fmt: skip
    ticks = _ticks(low, high, step, height, log=chart.look.log_y)
    margin = max(len(text) for text in ticks.values())
    inner = width - margin - 2
    canvas = Canvas(inner, height)
    for label, found in lines.items():
        shown = np.isfinite(found.middle)
        xs = (found.x[shown] - left) / max(right - left, 1e-12)
        ys = (scale(found.middle[shown]) - low) / max(high - low, 1e-12)
        dense = np.linspace(xs[0], xs[-1], inner * 8) if len(xs) > 1 else xs
        for x, y in zip(dense, np.interp(dense, xs, ys)):
            canvas.put(float(x), float(np.clip(y, 0, 1)), chart.labels.index(label))
    tick, bar, corner, rule = ("|", "|", "+", "-") if ascii_only else ("┤", "│", "└", "─")
    rows = []
    for row in range(height):
        cells = _row(canvas, row, colour=colour, letters=letters)
        rows.append(f"{ticks.get(row, ''):>{margin}} {tick if row in ticks else bar}{cells}".rstrip())
    return [*rows, f"{'':>{margin}} {corner}{rule * inner}", f"{'':>{margin + 2}}{_x_labels(chart, left, right, inner)}"]


def nice_scale(low: float, high: float) -> tuple[float, float, float]:
    """Widen a range to whole steps of 1, 2, 2.5 or 5 times a power of ten, about four of them. -> low, high, step."""
    if high <= low:
        low, high = low - max(abs(low) * 0.1, 0.5), high + max(abs(high) * 0.1, 0.5)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(times for times in (1, 2, 2.5, 5, 10) if times * power >= rough * 0.999)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _ticks(low: float, high: float, step: float, height: int, *, log: bool) -> dict[int, str]:
    """Place the labels of the upward axis. -> row -> text"""
    values = [low + i * (high - low) / 4 for i in range(5)] if log else list(np.arange(low, high + step / 2, step))
    place = lambda value: min(int((1 - (value - low) / (high - low)) * height), height - 1)
    return {place(value): short(10**value if log else round(value, 12) + 0.0) for value in values}


def _x_labels(chart: Chart, left: float, right: float, width: int) -> str:
    minutes = chart.look.x == "seconds" and right > 600
    ends = [short(float(f"{value / 60 if minutes else value:.3g}")) for value in (left, (left + right) / 2, right)]
    name = "minutes" if minutes else chart.x_name
    last = f"{ends[2]} {name}" if len(ends[2]) + len(name) + 1 + width // 2 < width else ends[2]
    line = f"{ends[0]:<{width}}"
    for text, at in ((ends[1], width // 2 - len(ends[1]) // 2), (last, width - len(last))):
        if not line[max(at - 1, 0) : at + len(text)].strip():
            line = line[:at] + text + line[at + len(text) :]
    return line.rstrip()


def _row(canvas: Canvas, row: int, *, colour: bool, letters: bool) -> str:
    """Write a row of cells; the colour changes where the owner does."""
    text = ""
    for owner, cells in itertools.groupby(range(canvas.width), key=lambda column: int(canvas.owner[row, column])):
        columns = list(cells)
        if owner < 0:
            text += " " * len(columns)
            continue
        dots = "".join(chr(0x2800 + int(canvas.dots[row, column])) for column in columns)
        marks = LETTERS[owner % len(LETTERS)] * len(columns) if letters else dots
        text += _coloured(marks, owner) if colour else marks
    return text


def _coloured(text: str, owner: int) -> str:
    return f"\x1b[38;5;{COLOURS[owner % len(COLOURS)]}m{text}\x1b[0m"


def _key(chart: Chart, width: int, *, colour: bool, letters: bool, ascii_only: bool) -> str:
    """Name the lines, as many beside each other as fit."""
    rows: list[str] = []
    used = 0
    for i, label in enumerate(chart.labels):
        mark, shown = LETTERS[i % len(LETTERS)] if letters else "━━", elided(label, width - 4)
        size = len(mark) + 1 + len(shown)
        text = f"{_coloured(mark, i)} {shown}" if colour else f"{mark} {shown}"
        if rows and used + 3 + size <= width:
            rows[-1], used = f"{rows[-1]}   {text}", used + 3 + size
        else:
            rows.append(text)
            used = size
    return "\n".join(rows)
