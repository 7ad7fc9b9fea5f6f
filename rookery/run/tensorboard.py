"""A copy of the metrics for TensorBoard.

tensorboardX is an extra, imported only when asked for. Its SummaryWriter is not used: that one passes every event
through a queue of `multiprocessing` (pickle) to a thread, and once the thread has died of a full disk, the tenth event
blocks the caller for ever. Its event file is written here directly, a few scalars a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rookery.run.boards import MissingExtra, missing
from rookery.run.versions import flat


class TensorBoard:
    """Writes scalars to an event file in `directory`, and first the config as a text. Raises MissingExtra without
    tensorboardX, else OSError or ValueError: rookery/run/boards.py drops it then."""

    def __init__(self, directory: Path, *, config: Mapping[str, Any] | None = None) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import text
        except ImportError as error:
            raise MissingExtra(f"{missing('tensorboard', 'tensorboardX')} ({error})") from error
        self._event = Event
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventsWriter(str(Path(directory) / "events"))
        if config:
            self._write(Event(wall_time=datetime.now().timestamp(), step=0, summary=text("config", table(config))))

    def write(self, values: Mapping[str, float | None], step: int) -> None:
        """Write numbers at so many environment steps; what is no finite number is left out."""
        event = self._event(wall_time=datetime.now().timestamp(), step=int(step))
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                event.summary.value.add(tag=name, simple_value=float(value))
        self._write(event)

    def _write(self, event: Any) -> None:
        if self._writer is not None:
            self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def table(config: Mapping[str, Any]) -> str:
    """Write options as a table in Markdown, which TensorBoard shows as one."""
    cell = lambda value: str(value).replace("|", "\\|").replace("\n", " ")
    rows = (f"| {cell(key)} | {cell(value)} |" for key, value in flat(dict(config)))
    return "\n".join(["| option | value |", "|---|---|", *rows])
