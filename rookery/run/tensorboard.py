"""An optional copy of the metrics for TensorBoard. What counts is in metrics.jsonl; this may fail without harm.

tensorboardX is an extra, imported only when asked for. Its SummaryWriter is not used: that one passes every event
through a queue of `multiprocessing` (pickle) to a thread, and once the thread has died of a full disk, the tenth event
blocks the caller for ever. Its event file is written here directly, a few scalars a second.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MISSING = "--tensorboard needs tensorboardX: pip install 'rookery[tensorboard]'"
_logger = logging.getLogger(__name__)


class MissingExtra(Exception):
    """Something that was asked for needs a package that is not installed."""

    exit_code = 2


class TensorBoard:
    """Writes scalars to an event file in `directory`. Raises MissingExtra without tensorboardX; never when writing."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
        except ImportError as error:
            raise MissingExtra(f"{MISSING} ({error})") from error
        self._event = Event
        self._writer: Any = None
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(Path(directory) / "events"))
        except OSError as error:
            self._give_up(error)

    def write(self, scalars: Mapping[str, Any], env_steps: int) -> None:
        """Write the numbers of a row at `env_steps`; what is no finite number is left out."""
        if self._writer is None:
            return
        event = self._event(wall_time=datetime.now().timestamp(), step=int(env_steps))
        for name, value in scalars.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                event.summary.value.add(tag=name, simple_value=float(value))
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        _logger.warning("TensorBoard events cannot be written (%s); training goes on without them", error)


def require_tensorboard(*, wanted: bool) -> None:
    """Raise MissingExtra when it was asked for and is not installed; imports nothing."""
    if wanted and find_spec("tensorboardX") is None:
        raise MissingExtra(MISSING)
