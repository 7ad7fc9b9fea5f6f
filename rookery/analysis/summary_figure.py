"""Draw a comparison: the aggregates with their intervals, the performance profiles, and the probability of improvement."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from rookery.analysis.chart import elided, short
from rookery.analysis.comparison import Comparison
from rookery.analysis.figure import DARK, LIGHT, Theme, new_figure, style
from rookery.analysis.verdicts import heading

AGGREGATES = (("iqm", "IQM"), ("mean", "mean"), ("median", "median"))
MOST = 12  # pairs
BAR: dict[str, Any] = {"linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
MARK: dict[str, Any] = {"markersize": 11, "markeredgewidth": 2.4}


def draw(comparison: Comparison, *, dark: bool = False, title: str = "") -> Any:
    """Draw a comparison. -> a matplotlib figure without a window."""
    theme = DARK if dark else LIGHT
    pairs = comparison.pairs[:MOST]
    rows = max(len(comparison.groups) * 1.0, len(pairs) * 0.8, 3.0)
    width, height = 10.6 if pairs else 7.4, 2.1 + 0.36 * rows
    with style(theme):
        figure = new_figure(None, width, height)
        caption = textwrap.fill(heading(comparison, interval="Bars"), round(width * 17))
        bottom = 0.25 + 0.15 * caption.count("\n")
        legend = 0.36 + (0.34 if title else 0.0)
        axes = figure.subplots(1, 3 if pairs else 2, width_ratios=[1.15, 1.2, 1.0][: 3 if pairs else 2])
        _aggregates(axes[0], comparison, theme)
        _profiles(axes[1], comparison, theme)
        if pairs:
            _probabilities(axes[2], comparison, theme)
        figure.set_layout_engine("constrained", rect=(0, bottom / height, 1, 1 - (bottom + legend) / height), wspace=0.06)
        _names(figure, comparison, theme, (0.1 / width, 1 - (legend - 0.18) / height))
        if title:
            figure.text(0.1 / width, 1 - 0.12 / height, title, ha="left", va="top", fontsize=13, weight="bold")
        figure.text(0.1 / width, 0.06 / height, caption, ha="left", va="bottom", fontsize=8, color=theme.quiet)
    return figure


def _names(figure: Any, comparison: Comparison, theme: Theme, place: tuple[float, float]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_colour(theme, i), linewidth=3) for i, _ in enumerate(comparison.groups)]
    labels = [elided(group.label, 40) for group in comparison.groups]
    figure.legend(handles, labels, loc="center left", bbox_to_anchor=place, ncols=len(labels), frameon=False, fontsize=9.5,
                  handlelength=1.2, borderaxespad=0, columnspacing=1.4)  # fmt: skip


def _aggregates(axis: Any, comparison: Comparison, theme: Theme) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    count = len(comparison.groups)
    for row, (name, _) in enumerate(AGGREGATES):
        for i, group in enumerate(comparison.groups):
            found, y = getattr(group, name), row + (i - (count - 1) / 2) * min(0.22, 0.7 / count)
            if found.is_known:
                axis.plot([found.low, found.high], [y, y], color=_colour(theme, i), **BAR)
            axis.plot([found.value], [y], "|", color=_colour(theme, i), **MARK)
    axis.set_yticks(range(len(AGGREGATES)), [shown for _, shown in AGGREGATES])
    axis.set_ylim(len(AGGREGATES) - 0.5, -0.5)
    _finish(axis, theme, "normalised score" if comparison.scale else comparison.metric, "Aggregates")
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _profiles(axis: Any, comparison: Comparison, theme: Theme) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for i, group in enumerate(comparison.groups):
        shape = group.profile
        axis.step(shape.score, shape.share, color=_colour(theme, i), linewidth=1.8, where="post")
        if np.isfinite(shape.low).all():
            axis.fill_between(shape.score, shape.low, shape.high, color=_colour(theme, i), alpha=0.10, linewidth=0, step="post")
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}".replace("%", " %")))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    _finish(axis, theme, "normalised score" if comparison.scale else comparison.metric, "Share of runs above a score")


def _probabilities(axis: Any, comparison: Comparison, theme: Theme) -> None:
    labels = [group.label for group in comparison.groups]
    pairs = comparison.pairs[:MOST]
    axis.axvline(0.5, color=theme.quiet, linewidth=1, linestyle=(0, (3, 3)))
    for row, pair in enumerate(pairs):
        colour, found = _colour(theme, labels.index(pair.better)), pair.probability
        if found.is_known:
            axis.plot([found.low, found.high], [row, row], color=colour, **BAR)
        axis.plot([found.value], [row], "|", color=colour, **MARK)
    axis.set_yticks(range(len(pairs)), [f"{elided(pair.better, 18)}\n> {elided(pair.other, 18)}" for pair in pairs])
    axis.set_ylim(len(pairs) - 0.4, -0.6)
    axis.set_xlim(-0.03, 1.03)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "½", "", "1"])
    axis.tick_params(axis="y", length=0)
    _finish(axis, theme, "probability", "Probability of improvement")


def _finish(axis: Any, theme: Theme, x_name: str, title: str) -> None:
    axis.set_xlabel(x_name)
    axis.set_title(title, loc="left", fontsize=10.5, color=theme.ink)
    axis.grid(True, axis="x", color=theme.grid, linewidth=0.8)


def _colour(theme: Theme, i: int) -> str:
    return theme.lines[i % len(theme.lines)]
