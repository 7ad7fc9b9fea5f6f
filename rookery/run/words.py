"""Values as words of the command line, there and back: those of `--env-options NAME=VALUE`."""

from __future__ import annotations

import json
from typing import Any

PYTHON = {"True": True, "False": False, "None": None}  # as people who write environments say them


def value_of(word: str) -> Any:
    """Read a value of --env-options: JSON, Python's True, False and None, or else the word itself."""
    if word in PYTHON:
        return PYTHON[word]
    try:
        return json.loads(word)
    except ValueError:
        return word


def text(value: Any) -> str:
    """Write a value so that `value_of` reads it back."""
    return value if isinstance(value, str) and value_of(value) == value else json.dumps(value)
