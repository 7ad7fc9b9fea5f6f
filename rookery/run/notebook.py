"""The panel of a run in a notebook: one output of the cell, replaced in place. It needs IPython alone, which is there."""

from __future__ import annotations

import io
import itertools
import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from rookery.run.display import HISTORY, Header, Row, draw

WIDTH = 90
MESSAGES = 8  # the last ones are shown
PERIOD_SECONDS = 0.5  # a frame is some kilobytes to the browser
STYLE = "white-space:pre;overflow-x:auto;line-height:1.25;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace"
GREY = (128, 128, 128)
COLOURS = TerminalTheme(  # to be read on white and on black: black, red, green, yellow, blue, magenta, cyan, white
    GREY, GREY, [GREY, (220, 60, 60), (22, 163, 74), (190, 130, 20), (59, 130, 246), (168, 85, 247), (8, 145, 178), GREY]
)  # fmt: skip
PAGE = f'<pre style="{STYLE}">{{code}}</pre>'
_numbers = itertools.count(1)


def in_notebook() -> bool:
    """Say whether this process is the kernel of a notebook (Jupyter, VS Code, Colab)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """Draws what LiveDisplay draws, as HTML with a plain text beside it for whoever reads the notebook elsewhere."""

    def __init__(self, header: Header, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._header = header
        self._period = period_seconds
        self._next = 0.0
        self._row: Row | None = None
        self._history: list[float] = []
        self._messages: list[str] = []
        self._id = f"rookery-{next(_numbers)}-{header.name}"
        self._shown = self._closed = False

    def update(self, row: Row) -> None:
        self._row = row
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._period
        shown = row.eval_return_mean if row.return_mean is None else row.return_mean
        if shown is not None and not row.starting:
            self._history.append(shown)
            if len(self._history) > HISTORY:
                self._history = self._history[::2]
        self._draw()

    def message(self, text: str) -> None:
        self._messages = [*self._messages, text][-MESSAGES:]
        self._draw()

    def close(self) -> None:
        """Leave the last panel in the notebook."""
        if not self._closed:
            self._draw()
        self._closed = True

    def _draw(self) -> None:
        if self._closed:
            return
        bundle = drawn(self._header, self._row, self._history, self._messages)
        try:
            from IPython.display import display

            display(bundle, raw=True, display_id=self._id, update=self._shown)
            self._shown = True
        except Exception:  # whoever looks at the notebook went away; the run goes on
            self._closed = True


def drawn(header: Header, row: Row | None, history: list[float], messages: list[str]) -> dict[str, Any]:
    """Draw the panel below the messages: MIME type -> text. Without colours, letters stand for them."""
    bundle = {}
    for kind, plain in (("text/html", False), ("text/plain", True)):
        console = Console(
            file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system=None if plain else "standard",
            legacy_windows=False, force_jupyter=False, no_color=plain,
        )  # fmt: skip
        lines: list[Any] = [Text(text, overflow="fold") for text in messages]
        if row is not None:
            lines.append(draw(header, row, history, console))
        console.print(Group(*lines))
        page = console.export_text if plain else lambda console=console: console.export_html(
            theme=COLOURS, inline_styles=True, code_format=PAGE
        )  # fmt: skip
        bundle[kind] = page().rstrip("\n")
    return bundle
