"""What is drawn, whoever draws it: of each environment a panel, of each group a line, and how to read them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rookery.analysis.curves import POINTS, Curve, band_of, curve
from rookery.analysis.groups import RunGroup
from rookery.analysis.history import EVAL, METRIC_OF, RETURN, WINDOW
from rookery.run.directory import RunError

X_NAMES = {"steps": "environment steps", "seconds": "seconds", "updates": "updates", "episodes": "episodes"}
Y_NAMES = {RETURN: "return", EVAL: "return of the greedy policy"}
MIDDLE_NAMES = {"mean": "mean", "iqm": "interquartile mean", "median": "median"}


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is asked for of a chart."""

    x: str = "steps"
    y: str = RETURN
    middle: str = "mean"
    band: str = "auto"
    confidence: float = 0.95
    smooth: int = 1
    points: int = POINTS
    title: str = ""
    log_y: bool = False
    panels: bool = True  # one for each environment; False: all lines in one


@dataclass(frozen=True)
class Chart:
    """Curves by panel and group, and how to read them."""

    look: Look
    groups: tuple[RunGroup, ...]
    panels: dict[str, dict[str, Curve]] = field(default_factory=dict)  # title -> label -> curve
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        return [group.label for group in self.groups]

    @property
    def curves(self) -> list[Curve]:
        return [curve for lines in self.panels.values() for curve in lines.values()]

    @property
    def is_dots(self) -> bool:
        """Whether no run has more than one point: one evaluation at the end, say."""
        return all(len(curve.x) == 1 for curve in self.curves)

    @property
    def x_name(self) -> str:
        return X_NAMES[self.look.x]

    @property
    def y_name(self) -> str:
        return Y_NAMES.get(self.look.y, self.look.y)

    def caption(self, *, bands: bool = True) -> str:
        """Say how to read the lines and, where they are drawn, the bands."""
        look, counts = self.look, sorted({len(curve.runs) for curve in self.curves})
        what = f", over the last {WINDOW} training episodes" if look.y in (RETURN, METRIC_OF[RETURN]) else ""
        if self.is_dots:
            shown = "a dot for each" if bands else f"their {MIDDLE_NAMES[look.middle]}"
            return f"Runs have one point each, at their end: {shown}."
        if counts[-1] == 1:
            return f"One run each{what}." if len(self.curves) > 1 else f"One run{what}."
        seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        names = {"bootstrap": f"{look.confidence:.0%} bootstrap interval".replace("%", " %"), "minmax": "least to greatest"}
        used = dict.fromkeys(band_of(look.band, count) for count in counts if count > 1)
        shown = " or ".join(names[band] for band in used if band != "none")
        text = f"Line: {MIDDLE_NAMES[look.middle]} of {seeds}{what}." + (f" Band: {shown}." if shown and bands else "")
        early = " Dotted, after ×: without a run that ended early." if bands else " One ended early: left out from there on."
        return text + early * any(any(curve.died) for curve in self.curves)


def chart_of(groups: Sequence[RunGroup], look: Look, notes: Sequence[str] = ()) -> Chart:
    """Compute every curve. Raises RunError, with what there is instead, where no run has the metric."""
    panels: dict[str, dict[str, Curve]] = {}
    said = list(notes)
    for group in groups:
        for env in group.envs if look.panels else [""]:
            runs = group.on(env) if look.panels else group.runs
            found = curve(runs, x=look.x, y=look.y, middle=look.middle, band=look.band, confidence=look.confidence,
                          smooth=look.smooth, points=look.points)  # fmt: skip
            title = env if look.panels else ", ".join(dict.fromkeys(env for group in groups for env in group.envs))
            if found is not None:
                panels.setdefault(title, {})[group.label] = found
            empty = [run.name for run in runs if not len(run.series(look.y, look.x).x)]
            if empty and found is not None:
                said.append(f"{', '.join(empty)}: no {look.y}, so it has no part in the line of {group.label}.")
    if not panels:
        raise RunError(_nothing(groups, look, said))
    drawn = {label for lines in panels.values() for label in lines}
    said += [f"{group.label}: no {look.y}, so it has no line." for group in groups if group.label not in drawn]
    if look.log_y and any(np.nanmin(found.runs) <= 0 for lines in panels.values() for found in lines.values()):
        raise RunError(f"--log-y: {look.y} has values at or below 0, which have no place on such an axis.")
    made = Chart(look, tuple(group for group in groups if group.label in drawn), panels, tuple(said))
    once = "every run was evaluated once, at its end: rookery train … --eval-every N (updates) gives a curve."
    return dataclasses.replace(made, notes=(*said, once)) if made.is_dots and look.y in (EVAL, METRIC_OF[EVAL]) else made


def _nothing(groups: Sequence[RunGroup], look: Look, notes: Sequence[str]) -> str:
    """Say why there is nothing to draw, and what could be."""
    runs = [run for group in groups for run in group.runs]
    known = list(dict.fromkeys(name for run in runs for name in run.metrics))
    has = [name for name in (RETURN, EVAL) if any(len(run.series(name).x) for run in runs)]
    if not known and not has:
        return " ".join([f"no rows yet in {', '.join(run.name for run in runs[:5])}: nothing to draw.", *notes])
    near = difflib.get_close_matches(look.y, [*has, *known], n=1)
    if look.y in (RETURN, EVAL, *METRIC_OF.values()):
        advice = f" Draw --y {has[0]}." if has else " No episode has ended yet, or none was evaluated."
    elif near:
        advice = f" Did you mean {near[0]!r}?"
    else:
        advice = f" There are: {', '.join([*has, *known])}."
    return f"no run has {look.y!r} over {X_NAMES[look.x]}.{advice}"


def short(value: float) -> str:
    """Write a number of an axis in a few characters: 250k, 1.5M, -0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def elided(text: str, width: int) -> str:
    """Shorten a text in its middle: how it ends tells as much as how it begins."""
    return text if len(text) <= width else f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"
