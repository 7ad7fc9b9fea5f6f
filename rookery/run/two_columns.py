"""Text in two columns, what is typed and what it means, for a terminal of any width."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

TYPE_CHECKING = False
if TYPE_CHECKING:  # `rookery --help` is there at once
    from collections.abc import Iterator, Sequence

WIDEST, NARROWEST = 120, 40
UNBROKEN = "\u00a0"  # a space where no line is broken
Section = tuple[str, str, "Sequence[tuple[str, str]]"]  # title, what it is about, and (option, text) of each line


def page(usage: Sequence[str], about: str, sections: Sequence[Section], width: int | None = None) -> str:
    """Lay out a page: the usage, what it is about, and the sections, whose texts all begin in one column."""
    width = min(max(width or columns(), NARROWEST), WIDEST)
    labels = [label for _, _, lines in sections for label, _ in lines]
    column = min(max(map(len, labels), default=0), max(22, int(0.36 * width) - 4))
    told = [*_wrapped(f"usage: {usage[0]}", width, 7)]
    for more in usage[1:]:
        told += _wrapped(f"       {more}", width, 7)
    if about:
        told += ["", *_wrapped(about, width, 0)]
    for title, says, lines in sections:
        told += ["", _bold(title) + ":"] if not says else ["", *_titled(title, says, width)]
        for label, text in lines:
            told += two_columns(label, text, column, width)
    return "\n".join(told).replace(UNBROKEN, " ")


def fitted(text: str, width: int | None = None) -> str:
    """Lay out a text whose lines are `  label    meaning` anew where they are wider than the terminal."""
    width = max(width or columns(), NARROWEST)
    lines = text.splitlines()
    if max(map(len, lines)) <= width:
        return text
    cut = [re.fullmatch(r"(  \S.*?)(?: {2,}(\S.*))?", line) for line in lines]
    pairs = [(found[1].strip(), " ".join((found[2] or "").split())) if found else None for found in cut]
    column = min(max(len(pair[0]) for pair in pairs if pair), int(0.4 * width))
    told: list[str] = []
    paragraph = [""]
    for line, pair in zip(lines, pairs):
        if pair is not None:
            told += two_columns(*pair, column, width)
        elif line.startswith("   "):  # what the label before it means
            told += [" " * (column + 4) + part for part in textwrap.wrap(line.strip(), width - column - 4)]
        elif told and told[-1] and line and told[-1] is paragraph[-1]:  # goes on
            told[-1:] = paragraph = _wrapped(f"{told[-1]} {line}", width, 0)
        else:
            told += (paragraph := _wrapped(line, width, 0) or [""])
    return "\n".join(told) + ("\n" if text.endswith("\n") else "")


def two_columns(label: str, text: str, column: int, width: int) -> list[str]:
    """Lay out one line: a label that is too wide for its column has a line, or more, of its own."""
    start = column + 4
    texts = textwrap.wrap(text, width - start, break_long_words=False, break_on_hyphens=False)
    if len(label) <= column and texts:
        first = f"  {label:<{column}}  {texts.pop(0)}"
    else:
        first = "\n".join(_broken(f"  {label}", width))
    return [*first.split("\n"), *(" " * start + line for line in texts)]


def _broken(label: str, width: int) -> Iterator[str]:
    """Break a label that no terminal of this width can hold, between its words or else at its choices."""
    while len(label) > width and (at := max(label.rfind(" ", 12, width + 1), label.rfind("|", 12, width))) > 0:
        yield label[: at + 1].rstrip()
        label = " " * 6 + label[at + 1 :]
    yield label


def columns() -> int:
    """Return the columns of the terminal; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def _wrapped(text: str, width: int, hang: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False)


def _titled(title: str, says: str, width: int) -> list[str]:
    lines = _wrapped(f"{title}: {says[:1].lower() + says[1:] if says[1:2].islower() else says}", width, 2)
    return [lines[0].replace(title, _bold(title), 1), *lines[1:]]


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
