"""What a numeric option may be, said where it is declared and checked in one place.

    discount: Share = 0.99
    value_clip: Positive | None = None
    hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (64, 64)

A range is a note on the type: whoever reads the type (the command line, config.json) sees a plain number. `problems` finds
every value of a dataclass that is outside its own, NaN and infinities among them. Upper ends are there so that a slip of the
finger is answered at once; what a machine can really hold is found from the shapes, before anything is allocated.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """From `least` to `most`, both included; `above` and `below` are ends that are not."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        ends = {"more than": self.above, "at least": self.least, "less than": self.below, "at most": self.most}
        return " and ".join(f"{word} {_number(end)}" for word, end in ends.items() if math.isfinite(end)) or "a finite number"


    @property
    def short(self) -> str:
        """Short form for a list of options: ≥1, >0, 0..1. Upper ends that are there for slips alone are left out."""
        if (high := min(self.most, self.below)) < 1000:
            return f" {_number(self.least)}..{_number(high)}"
        if math.isfinite(self.above):
            return f">{_number(self.above)}"
        return f"≥{_number(self.least)}" if math.isfinite(self.least) else ""


MANY = 10**6  # environments, steps of a rollout, minibatches: more than anybody has had of them
Count = Annotated[int, Range(1, MANY)]
Natural = Annotated[int, Range(0, MANY)]  # 0: without
Long = Annotated[int, Range(1, 10**15)]  # steps and updates over a run's life
Seed = Annotated[int, Range(0, 2**31 - 1)]
Workers = Annotated[int, Range(1, 4096)]
Units = Annotated[int, Range(1, 65_536)]  # of a layer
Share = Annotated[float, Range(0, 1)]
Rate = Annotated[float, Range(0, 1000)]  # of learning
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Finite = Annotated[float, Range()]


def problems(part: Any, prefix: str = "") -> Iterator[str]:
    """Yield a sentence for each number of a dataclass, nested ones included, that is out of its range, by its flag."""
    its: Any = type(part)
    for name, kind in _hints(its).items():
        value, flag = getattr(part, name), f"--{prefix}{name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            yield from problems(value, f"{prefix}{name}.".replace("_", "-"))
            continue
        for number, allowed in _numbers(value, kind):
            if number not in allowed:
                shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
                yield f"{flag} {shown}: it must be {allowed}"
                break


def range_of(kind: Any) -> Range | None:
    """Find the range on a type or, of a union or tuple, on its numbers."""
    found = [note for note in getattr(kind, "__metadata__", ()) if isinstance(note, Range)]
    return found[0] if found else next(filter(None, map(range_of, typing.get_args(kind))), None)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _numbers(value: Any, kind: Any) -> Iterator[tuple[float, Range]]:
    """Yield each number in a value with its range; none where the type has no range, as in a user's own dataclass."""
    if (allowed := range_of(kind)) is not None:
        for number in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(number, (int, float)):
                yield number, allowed


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
