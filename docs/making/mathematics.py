"""Equations: LaTeX in a fence called math, which GitHub renders by itself, drawn for the site in the colour of the text.

Nothing is fetched and no script runs in the reader's browser: matplotlib, which `rookery plot` needs anyway, knows the letters.
"""

from __future__ import annotations

import html
from functools import cache
from typing import Any, NamedTuple

SIZE = 17.0  # points
GAP = 13.0  # between two lines


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Draw a block: a line of the picture for each that `\\\\` ends, aligned at its `&`."""
    bare = source.replace(r"\begin{aligned}", "").replace(r"\end{aligned}", "").replace(r"\frac", r"\dfrac")
    lines = [line.strip() for line in bare.split(r"\\")]
    rows = [[part.strip() for part in line.split("&")] for line in lines if line]
    said = html.escape(" ".join(source.split()))
    return f'<div class="math" role="img" aria-label="{said}">{drawing(tuple(map(tuple, rows)))}</div>'


class Part(NamedTuple):
    """What stands between two &, in points; its y axis points up from the baseline."""

    points: Any  # [N, 2]
    codes: Any  # [N]
    width: float
    height: float  # above the baseline
    depth: float  # below it


@cache
def drawing(rows: tuple[tuple[str, ...], ...]) -> str:
    """Draw rows of parts as one SVG: the parts before the first & end where those after it begin."""
    drawn = [[part(text) for text in row] for row in rows]
    left = max((row[0].width for row in drawn if len(row) > 1), default=0.0)
    shapes, y, width = [], 0.0, 0.0
    for row in drawn:
        x = left - row[0].width if len(row) > 1 else 0.0
        base = y + max(one.height for one in row)
        for one in row:
            shapes.append(outline(one, x, base))
            x += one.width
        width, y = max(width, x), base + max(one.depth for one in row) + GAP
    w, h = width + 2, y - GAP + 4
    path = f'<path d="{"".join(shapes)}"/>'
    return f'<svg viewBox="-1 -2 {w:.1f} {h:.1f}" width="{w:.0f}" height="{h:.0f}" aria-hidden="true">{path}</svg>'


@cache
def part(text: str) -> Part:
    """Typeset LaTeX of one line."""
    try:
        from matplotlib import rc_context
        from matplotlib.font_manager import FontProperties
        from matplotlib.textpath import TextPath, text_to_path
    except ImportError as error:
        raise ImportError("the equations of the site need matplotlib: pip install 'rookery[docs,plot]'") from error
    with rc_context({"mathtext.fontset": "cm"}):
        prop = FontProperties(size=SIZE)
        path = TextPath((0, 0), f"${text}$", size=SIZE, prop=prop, usetex=False)
        width, height, depth = text_to_path.get_text_width_height_descent(f"${text}$", prop, ismath=True)
        return Part(path.vertices, path.codes, width, height - depth, depth)


def outline(one: Part, x: float, base: float) -> str:
    """Write a part as SVG path data, with its baseline at `base`, where y points down."""
    words, at = [], 0
    while at < len(one.codes):
        letter, count = {1: ("M", 1), 2: ("L", 1), 3: ("Q", 2), 4: ("C", 3), 79: ("Z", 1)}[int(one.codes[at])]
        pairs = one.points[at : at + count]
        words.append("Z" if letter == "Z" else letter + " ".join(f"{x + px:.2f} {base - py:.2f}" for px, py in pairs))
        at += count
    return "".join(words)
