"""docs/testing.md: its example runs, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rookery import testing

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0]


@pytest.mark.parametrize("name", re.findall(r"^def (\w+)", EXAMPLE, re.M))
def test_the_example_runs(name: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE, str(PAGE), "exec"), names)
    names[name]()


def test_what_is_named_is_there_and_checks_and_schedules_are_named() -> None:
    page = PAGE.read_text()
    for name in re.findall(r"`(check_\w+|random_\w+|\w+_agent|scripted_\w+|kill_\w+)\b", page):
        assert name in testing.__all__, name
    named = [name for name in testing.__all__ if name.startswith(("check_", "kill_")) and name not in ("checkpointed",)]
    assert named and all(f"`{name}(" in page for name in named)


def test_all_public_names_are_there() -> None:
    assert all(hasattr(testing, name) for name in testing.__all__)
