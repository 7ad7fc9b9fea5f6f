"""Draw learning curves with matplotlib: PNG, SVG or PDF, on white or on dark paper, for eyes that see all colours or few.

Labels stand at the ends of the lines where they are short and there is one panel, else in a row above; never on a curve.
"""

from __future__ import annotations

import math
import sys
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rookery.analysis.chart import Chart, elided, short
from rookery.analysis.curves import Curve
from rookery.run.directory import RunError
from rookery.run.tensorboard import MissingExtra

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 160
SHORT, LONG = 18, 60  # characters of a label that fit beside a panel, and above
THIN = 5  # single seeds are drawn up to this many, of up to
LINES = 4  # as many groups


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of paper, ink and lines. The lines are Okabe and Ito's, darker or lighter where the paper needs it."""

    paper: str
    ink: str
    quiet: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Theme(
    paper="#ffffff", ink="#1f2328", quiet="#59636e", grid="#e4e8ec",
    lines=("#0072b2", "#d55e00", "#00855f", "#b3569b", "#c08a00", "#3a9ad9", "#5b5b5b"),
)  # fmt: skip
DARK = Theme(
    paper="#0d1117", ink="#e6edf3", quiet="#9aa4af", grid="#262c34",
    lines=("#58b4f0", "#ff8a3d", "#2fcf9f", "#e08fc9", "#f2cc45", "#9fb8ff", "#b8b8b8"),
)  # fmt: skip
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))  # from the eighth line on, colours come again


def draw(chart: Chart, *, dark: bool = False, on: Any = None) -> Any:
    """Draw a chart. -> a matplotlib figure, by default a new one without a window."""
    theme = DARK if dark else LIGHT
    titles = list(chart.panels)
    columns = min(3, len(titles)) if len(titles) != 4 else 2
    rows = math.ceil(len(titles) / columns)
    beside = len(titles) == 1 and 1 < len(chart.labels) <= 6 and max(map(len, chart.labels)) <= SHORT
    above = len(chart.labels) > 1 and not beside
    width, height = (6.8, 4.2) if len(titles) == 1 else (4.0 * columns + 0.4, 3.1 * rows + 0.4)
    beside_each_other, legend = _legend_shape(chart, width) if above else (0, 0.0)
    height += max(0.0, legend - 0.3)  # many labels take nothing from the panels
    with style(theme):
        figure = new_figure(on, width, height)
        caption = textwrap.fill(chart.caption(), round(width * 17))
        bottom = 0.22 + 0.15 * caption.count("\n")
        if above:
            _legend(figure, chart, theme, beside_each_other, below=0.44 if chart.look.title else 0.08)
        top = (0.42 if chart.look.title else 0.06) + legend
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for i, (axis, title) in enumerate(zip(axes, titles)):
            _panel(axis, chart, title, theme, thin=len(chart.labels) <= LINES)
            axis.set_ylabel(chart.y_name if i % columns == 0 else "")
            axis.set_xlabel(axis.get_xlabel() if i + columns >= len(titles) else "")
        for axis in axes[len(titles) :]:
            axis.remove()
        room = 0.18 + 0.088 * max(map(len, chart.labels)) if beside else 0.0
        figure.set_layout_engine("constrained", rect=(0, bottom / height, 1 - room / width, 1 - (bottom + top) / height))
        if chart.look.title:
            figure.text(0.1 / width, 1 - 0.12 / height, chart.look.title, ha="left", va="top", fontsize=13, weight="bold")
        figure.text(0.1 / width, 0.06 / height, caption, ha="left", va="bottom", fontsize=8, color=theme.quiet)
        figure.draw_without_rendering()  # all has its place and its colours now, whoever draws it later
        if beside:
            _label_ends(axes[0], chart, next(iter(chart.panels.values())), theme)
    return figure


def save(figure: Any, path: Path | str) -> Path:
    """Write a figure. Raises RunError where the name says no format, or the place cannot be written to."""
    path = check_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with style(LIGHT):
            metadata = {"Date": None} if path.suffix == ".svg" else {}  # the same picture is the same file
            figure.savefig(path, dpi=DPI, facecolor=figure.get_facecolor(), metadata=metadata)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}. Give another --out.") from error
    return path


def check_name(path: Path | str) -> Path:
    """Return a picture's path. Raises RunError where its name says no format that is drawn."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise RunError(f"--out {path}: the name of a picture ends in {', '.join(SUFFIXES)}")
    return path


def require_matplotlib(command: str, instead: str = "") -> None:
    """Raise MissingExtra where matplotlib is not installed; imports nothing."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(f"{command} needs matplotlib: pip install 'rookery[plot]'{instead}")


def prepare_notebook() -> None:
    """Make a notebook show figures, as importing pyplot does; nothing elsewhere."""
    if "ipykernel" in sys.modules:
        from matplotlib import pyplot

        pyplot.switch_backend(pyplot.get_backend())


# ----------------------------------------------------------------------------------------------------------- panels


def _panel(axis: Any, chart: Chart, title: str, theme: Theme, *, thin: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for label, curve in chart.panels[title].items():
        _line(axis, curve, *_pen(chart, label, theme), thin=thin and 1 < len(curve.runs) <= THIN)
    shown = elided(title, 64 if len(chart.panels) == 1 else 34) * (len(chart.panels) > 1 or title not in chart.look.title)
    axis.set_title(shown, loc="left", fontsize=10.5, color=theme.ink, weight="bold" if len(chart.panels) > 1 else "normal")
    minutes = chart.look.x == "seconds" and axis.get_xlim()[1] > 600
    axis.set_xlabel("minutes" if minutes else chart.x_name)
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value / 60 if minutes else value)))
    if chart.look.log_y:
        axis.set_yscale("log")
    else:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.grid(True, axis="y", color=theme.grid, linewidth=0.8)
    axis.margins(x=0.01, y=0.06)
    curves = chart.panels[title].values()
    if 0 <= min(curve.x[0] for curve in curves) < 0.2 * axis.get_xlim()[1] or chart.is_dots:
        axis.set_xlim(0, 1.04 * max(curve.x[-1] for curve in curves) if chart.is_dots else None)


def _line(axis: Any, curve: Curve, colour: str, dash: Any, *, thin: bool) -> None:
    """Draw a group: its band, its seeds where they are few, its middle, and a cross where a seed ended too early."""
    if len(curve.x) == 1:
        axis.plot(np.full(len(curve.runs), curve.x[-1]), curve.runs[:, -1], "o", color=colour, markersize=6, alpha=0.85)
        return
    whole = curve.there == curve.there.max()
    whole[: int(whole.argmax())] = True  # before all have begun there is nothing to warn of
    axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    if thin:
        axis.plot(curve.x, curve.runs.T, color=colour, alpha=0.28, linewidth=0.8, solid_capstyle="round")
    fewer = np.where(~whole | np.roll(~whole, 1) | np.roll(~whole, -1), curve.middle, math.nan)
    axis.plot(curve.x, np.where(whole, curve.middle, math.nan), color=colour, linestyle=dash, linewidth=2.0)
    if not whole.all():
        axis.plot(curve.x, fewer, color=colour, linestyle=(0, (1, 1.4)), linewidth=1.6)  # dotted: fewer seeds
    for run, died in zip(curve.runs, curve.died):
        if died:
            end = np.flatnonzero(np.isfinite(run))[-1]
            axis.plot(curve.x[end], run[end], "x", color=colour, markersize=7, markeredgewidth=1.8)


def _label_ends(axis: Any, chart: Chart, lines: dict[str, Curve], theme: Theme) -> None:
    """Write each label beside the end of its line, apart from the others."""
    to_axes = axis.transAxes.inverted()
    ends = {label: curve.middle[np.isfinite(curve.middle)][-1] for label, curve in lines.items()}
    places = {label: to_axes.transform(axis.transData.transform((0, y)))[1] for label, y in ends.items()}
    if chart.look.log_y:
        places = {label: to_axes.transform((0, axis.transData.transform((1, y))[1]))[1] for label, y in ends.items()}
    gap = 12.5 / (axis.get_window_extent().height * 72 / axis.figure.dpi)
    for label, place in zip(sorted(places, key=places.__getitem__), _apart(sorted(places.values()), gap)):
        colour, _ = _pen(chart, label, theme)
        axis.text(1.02, place, label, transform=axis.transAxes, color=colour, va="center", fontsize=10,
                  weight="bold", in_layout=False)  # fmt: skip


def _apart(places: list[float], gap: float) -> list[float]:
    """Move sorted places apart, to `gap` from each other, as little as may be and within 0 and 1 where they fit."""
    blocks: list[tuple[float, int]] = []  # centre and number of those that touch
    for place in places:
        blocks.append((place, 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
        centre, number = blocks[-1]
        half = gap * (number - 1) / 2
        blocks[-1] = (min(max(centre, half), max(1 - half, half)), number)
    return [centre + gap * (i - (number - 1) / 2) for centre, number in blocks for i in range(number)]


def _legend_shape(chart: Chart, width: float) -> tuple[int, float]:
    """Count the labels that fit beside each other above the panels, and the inches that all take. -> (columns, inches)"""
    longest = min(max(map(len, chart.labels)), LONG)
    columns = max(1, min(len(chart.labels), int(width * 12.5 // (longest + 7))))
    return columns, 0.08 + 0.21 * math.ceil(len(chart.labels) / columns)


def _legend(figure: Any, chart: Chart, theme: Theme, columns: int, *, below: float) -> None:
    """Write the labels above the panels, `below` inches from the top."""
    from matplotlib.lines import Line2D

    pens = [_pen(chart, label, theme) for label in chart.labels]
    handles = [Line2D([], [], color=colour, linestyle=dash, linewidth=2.4) for colour, dash in pens]
    figure.legend(
        handles, [elided(label, LONG) for label in chart.labels], loc="upper left", ncols=columns, frameon=False, fontsize=9.5,
        handlelength=2.4, borderaxespad=0, columnspacing=1.6,
        bbox_to_anchor=(0.1 / figure.get_figwidth(), 1 - below / figure.get_figheight()),
    )  # fmt: skip


def _pen(chart: Chart, label: str, theme: Theme) -> tuple[str, Any]:
    i = chart.labels.index(label)
    return theme.lines[i % len(theme.lines)], DASHES[i // len(theme.lines) % len(DASHES)]


def new_figure(on: Any, width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    if on is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        on = Figure(figsize=(width, height))
        FigureCanvasAgg(on)
    else:
        on.set_size_inches(width, height)
    return on


def style(theme: Theme) -> Any:
    import matplotlib

    return matplotlib.rc_context({
        "figure.facecolor": theme.paper, "axes.facecolor": theme.paper, "savefig.facecolor": theme.paper,
        "text.color": theme.ink, "axes.labelcolor": theme.quiet, "axes.edgecolor": theme.quiet, "axes.linewidth": 0.8,
        "xtick.color": theme.quiet, "ytick.color": theme.quiet, "xtick.labelsize": 9, "ytick.labelsize": 9,
        "axes.labelsize": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "svg.fonttype": "path", "svg.hashsalt": "rookery", "text.parse_math": False, "font.family": "DejaVu Sans",
    })  # fmt: skip
