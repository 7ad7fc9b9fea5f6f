"""How a run writes and reads its files: JSON that every reader takes, whole or not at all, and nothing that raises.

Training must not end because a disk is full or gone: `RowFile` and `LogFile` warn once and go on, and pick up again
when the disk does.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TAIL_BYTES = 64 << 10
DIGEST = "digest"

_logger = logging.getLogger(__name__)


def plain(value: Any, not_finite: Callable[[float], Any] = str) -> Any:
    """Convert `value` to what JSON can hold; `not_finite` says what becomes of NaN and infinities ("nan", "inf" by default)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    if isinstance(value, Mapping):
        return {str(key): plain(child, not_finite) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(child, not_finite) for child in value]
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and jax
        return plain(value.tolist(), not_finite)
    return str(value)


def sealed(value: dict[str, Any]) -> bytes:
    """Write a JSON object with its own digest at the end: `unsealed` detects any changed byte."""
    return _rendered(value | {DIGEST: hashlib.sha256(_rendered(value)).hexdigest()})


def unsealed(data: bytes) -> dict[str, Any]:
    """Read the object that `sealed` wrote. Raises ValueError unless it is that, byte for byte."""
    value = _object(data)
    if DIGEST not in value or sealed({name: value[name] for name in value if name != DIGEST}) != data:
        raise ValueError("does not match its digest: it was cut short or changed")
    return value


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file. Raises OSError."""
    replace(path, _rendered(value))


def _rendered(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def replace(path: Path, data: bytes) -> None:
    """Replace a file atomically: whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file, or {} if there is none."""
    with contextlib.suppress(OSError):
        return _object(path.read_bytes())
    return {}


def _object(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(data), dict):
            return value
    return {}


class RowFile:
    """A file of JSON objects, one per line, appended to. Opened at the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_rows = 0
        self._handle: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row through to the file. NaN and infinities become null. Never raises for the disk."""
        self.write((json.dumps(plain(row, lambda _: None), allow_nan=False) + "\n").encode())

    def write(self, lines: bytes, rows: int = 1) -> None:
        """Write whole lines, all of them or none. Never raises for the disk."""
        size = None
        try:
            if self._handle is None:
                self._handle = _open_lines(self.path)
            size = os.lseek(self._handle, 0, os.SEEK_END)
            if os.write(self._handle, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if size is not None and self._handle is not None:
                with contextlib.suppress(OSError):  # half a line would be invalid JSON
                    os.ftruncate(self._handle, size)
            self.lost_rows += rows
            if self.lost_rows == rows:
                _logger.warning("%s: rows are being lost: %s; training goes on", self.path, error.strerror)

    def read(self) -> Iterator[dict[str, Any]]:
        """Read the rows written so far; a last line that is still being written is left out."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                if row := _object(line):
                    yield row

    def last(self) -> dict[str, Any]:
        """Read the last whole row, or {}, without reading the whole file."""
        rows = self.tail()
        return rows[-1] if rows else {}

    def tail(self) -> list[dict[str, Any]]:
        """Read the last whole rows, about a minute of them, without reading the whole file."""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return [row for line in file.read().split(b"\n") if (row := _object(line))]
        return []

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the rows that are not wanted."""
        self.close()
        if self.path.exists():
            rows = [row for row in self.read() if wanted(row)]
            replace(self.path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _open_lines(path: Path) -> int:
    """Open for appending; half a line that a killed process left is cut off."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.lseek(handle, 0, os.SEEK_END)
    tail = os.pread(handle, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(handle, size - len(tail) + tail.rfind(b"\n") + 1)
    return handle


class LogFile(logging.FileHandler):
    """A log file that never raises and never prints a traceback: a failing disk is told of once, on stderr."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failed:
            self._failed = True
            with contextlib.suppress(OSError, ValueError):
                print(f"warning: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
