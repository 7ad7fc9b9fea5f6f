"""Sealed bytes: what never changes again is written to disk once, and every checkpoint that needs it links to the same file.

A table of many gigabytes changes by little between two checkpoints: rows that were stored stay as they are until they go. So
its full chunks are handed to a checkpoint as `Sealed`: a name that no other bytes will ever have, and a way to read them. What
an earlier checkpoint of the run holds under that name is hard-linked; only what is new is read and written. A chunk that has
left the table goes from the disk with the last checkpoint that links it.

Where the table lives apart from whoever saves it, only the bytes of what is new travel (see workers/replay/shards.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

NAME = re.compile(r"chunk-[0-9a-f]{16}-[0-9]{1,9}-[0-9]{1,18}\.bin")


class Gone(Exception):
    """What a Sealed promised is gone, with the worker that held it. What was being saved is not saved; another snapshot,
    which knows of the loss, can be."""


class Sealed:
    """A leaf of a snapshot: uint8 [nbytes]."""

    def __init__(self, name: str, nbytes: int, read: Callable[[], np.ndarray]) -> None:
        assert NAME.fullmatch(name), name
        self.name, self.nbytes, self.read = name, nbytes, read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.read()
