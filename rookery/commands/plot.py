"""`rookery plot`: learning curves of runs, as a picture or in the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rookery.commands.parsing import runs_and_options
from rookery.ranges import Range

Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Learning curves of runs, with intervals over seeds.

    Runs of the same system and options are one line; each environment is a panel.

      rookery plot ppo-seeds a2c-seeds --x seconds
      rookery plot 'runs/ppo-*' --text
    """

    run: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]] = ()
    """Runs by name or path, directories of runs (--seeds makes one), or patterns in quotes."""
    x: Literal["steps", "seconds", "updates", "episodes"] = "steps"
    """Over what."""
    y: str = "return"
    """return (of training), eval (of the greedy policy), or any number in metrics.jsonl, e.g. loss/value."""
    out: Name = None
    """A .png, .svg or .pdf to write; None: plot.png beside the runs."""
    middle: Literal["mean", "iqm", "median"] = "mean"
    """What the line is, over seeds."""
    band: Literal["auto", "bootstrap", "minmax", "none"] = "auto"
    """What the band is; auto: a bootstrap interval from five seeds on, else from the least to the greatest."""
    confidence: Annotated[float, Range(0.5, below=1)] = 0.95
    """Of the bootstrap interval."""
    smooth: Annotated[int, Range(1, 200)] = 1
    """Points, of 200 along the axis, to average over."""
    group_by: Name = None
    """What makes a line: system, env, run, seed or an option's name; None: system and options."""
    labels: Names = ()
    """Names of the lines, in their order."""
    title: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = ""
    """Above everything."""
    log_y: Flag = False
    """Logarithmic upward axis."""
    dark: Flag = False
    """Light lines on dark paper."""
    show: Flag = False
    """Open a window as well, where there is a display."""
    text: Flag = False
    """Draw in the terminal instead: needs no matplotlib."""
    runs: str = "runs"
    """The directory that holds the runs."""
    json: Flag = False
    """One line of JSON with every curve, instead of words."""


def plot(args: list[str]) -> int:
    options = runs_and_options(args, PlotOptions, "rookery plot")
    from rookery.analysis import figure, find
    from rookery.analysis.chart import Look, chart_of

    if options.out is not None:
        figure.check_name(options.out)
    drawn_as_text = options.text and options.out is None
    if not drawn_as_text:
        figure.require_matplotlib("rookery plot", ", or draw in the terminal with --text")
    found = find(options.run, root=options.runs, by=options.group_by, labels=options.labels)
    look = Look(
        x=options.x, y=options.y, middle=options.middle, band=options.band, confidence=options.confidence,
        smooth=options.smooth, title=options.title, log_y=options.log_y, panels=options.group_by != "env",
    )  # fmt: skip
    chart = chart_of(found.groups, look, found.notes)
    for note in chart.notes:
        print(f"rookery: {note}", file=sys.stderr)
    path = None if drawn_as_text else _picture(chart, options, _place(chart, options))
    if options.json:
        print(json.dumps({"out": None if path is None else str(path), "curves": _plain(chart)}))
        return 0
    if options.text:
        print(_as_text(chart))
    if path is not None:
        print(path)
    return 0


def _picture(chart: Any, options: PlotOptions, path: Path) -> Path:
    """Draw and write a picture, and show it where that was asked for."""
    from rookery.analysis import figure

    shown = _window() if options.show else None
    figure.save(figure.draw(chart, dark=options.dark, on=shown), path)
    if shown is not None:
        from matplotlib import pyplot

        pyplot.show()
    return path


def _window() -> Any:
    """Open an empty figure in a window; None, with a sentence, where there is no display."""
    from matplotlib import pyplot

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        window = pyplot.figure()
        if pyplot.get_backend().lower() != "agg":
            return window
        print("rookery: --show: matplotlib has no backend that opens windows; pip install PyQt6 gives it one", file=sys.stderr)
    else:
        print("rookery: --show: there is no display; the picture is written all the same", file=sys.stderr)
    return None


def _place(chart: Any, options: PlotOptions) -> Path:
    """Choose where a picture goes that was given no name: into the only run or group, else beside the runs."""
    if options.out is not None:
        return Path(options.out)
    stem = "-".join(["plot", *([re.sub(r"\W+", "-", options.y)] if options.y != "return" else []),
                     *([options.x] if options.x != "steps" else [])])  # fmt: skip
    for place in (Path(options.runs) / options.run[0], Path(options.run[0])):
        if len(options.run) == 1 and place.is_dir():
            return place / f"{stem}.png"
    names = "-".join(re.sub(r"[^\w.=+]+", "-", label).strip("-") for label in chart.labels)[:80].strip("-")
    return Path(options.runs) / f"{names}-{stem}.png"


def _as_text(chart: Any) -> str:
    import shutil

    from rookery.analysis.text_chart import text_chart

    size = shutil.get_terminal_size((80, 24))
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    height = min(max(size.lines // 2, 10), 18)
    return text_chart(chart, width=size.columns - 1, height=height, colour=coloured, ascii_only=not unicode)


def _plain(chart: Any) -> list[dict[str, Any]]:
    """Convert the curves to plain values: what is missing is None."""
    import numpy as np

    numbers = lambda values: [float(value) if np.isfinite(value) else None for value in values]
    runs = {(group.label, env): [run.name for run in group.on(env)] for group in chart.groups for env in group.envs}
    return [
        {"group": label, "env": env, "runs": runs.get((label, env), []), "x": numbers(curve.x), "there": curve.there.tolist(),
         **{name: numbers(getattr(curve, name)) for name in ("middle", "low", "high")}}
        for env, lines in chart.panels.items() for label, curve in lines.items()
    ]  # fmt: skip
