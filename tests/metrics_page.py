"""docs/metrics.md as a value: which names it has for which file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", re.M)


def names(file: str) -> list[str]:
    """Those of one file's section, with PID, POLICY and N for what differs."""
    (section,) = (part for part in re.split(r"^## ", PAGE.read_text(), flags=re.M) if part.startswith(f"{file}\n"))
    return ROW.findall(section)


def undocumented(file: str, keys: Iterable[str]) -> list[str]:
    known = [re.escape(name).replace("PID", r"\d+").replace("POLICY", r"\w+").replace("_N", r"_\d+") for name in names(file)]
    return sorted(key for key in set(keys) if not re.fullmatch("|".join(known), key))
