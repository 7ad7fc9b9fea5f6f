"""What runs tell when they are laid beside each other: learning curves and comparisons over seeds, with intervals.

    from rookery import analysis

    found = analysis.find(["ppo", "a2c"])                        # runs, directories of runs, patterns
    analysis.plot(found, "curves.png", x="seconds")              # as `rookery plot`; needs pip install 'rookery[plot]'
    print(analysis.report(analysis.compare(found)))              # as `rookery compare`
    analysis.iqm([1, 2, 3, 9]); analysis.bootstrap([1, 2, 3, 9])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookery.analysis import comparison as _comparison
from rookery.analysis.chart import Chart, Look, chart_of
from rookery.analysis.comparison import Comparison, Question
from rookery.analysis.curves import Curve, curve
from rookery.analysis.groups import NamedRuns, RunGroup, find
from rookery.analysis.history import RunHistory, Series, read
from rookery.analysis.statistics import (
    Interval,
    Profile,
    bootstrap,
    difference,
    iqm,
    probability_of_improvement,
    profile,
    student,
)
from rookery.analysis.text_chart import text_chart
from rookery.analysis.verdicts import report

__all__ = [
    "Chart", "Comparison", "Curve", "Interval", "Look", "NamedRuns", "Profile", "Question", "RunGroup", "RunHistory", "Series",
    "bootstrap", "chart_of", "compare", "curve", "difference", "find", "iqm", "plot", "probability_of_improvement", "profile",
    "read", "report", "student", "text_chart",
]  # fmt: skip


def plot(found: NamedRuns, out: str | Path | None = None, *, dark: bool = False, **look: Any) -> Any:
    """Draw learning curves, with the options of `rookery plot` (`x="seconds"`, `y="eval"`); write them where `out` says.

    -> a matplotlib figure, which a notebook shows."""
    from rookery.analysis import figure

    figure.require_matplotlib("plot")
    figure.prepare_notebook()
    drawn = figure.draw(chart_of(found.groups, Look(**look), found.notes), dark=dark)
    if out is not None:
        figure.save(drawn, out)
    return drawn


def compare(found: NamedRuns, **question: Any) -> Comparison:
    """Compare groups of runs, with the options of `rookery compare` (`metric="eval"`, `at_steps=100_000`)."""
    return _comparison.compare(found.groups, Question(**question), found.notes)
