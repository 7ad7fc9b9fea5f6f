"""The clock of `--seconds`: time that is trained for. Start-up is not, else a short run would be over while it is compiled.

Start-up is what passes before the first update of this process while nothing is waited for: imports, compilation, workers
that are started. A replay that is filled before it is learned from counts, because that is what was asked for.
"""

from __future__ import annotations

from typing import Any

LONGEST_START = 600.0  # seconds: whoever has not begun by then has not been held up by a compiler


class TrainingClock:
    def __init__(self) -> None:
        self.start_up = 0.0  # seconds of this process that do not count
        self._seen: float | None = None
        self._learned = False

    def look(self, seconds: float, progress: Any, *, updates_before: int) -> None:
        """See how far a run is, `seconds` after it began. updates_before: those that a checkpoint brought along."""
        self._learned = self._learned or progress.updates > updates_before
        if not self._learned and progress.waiting is None:
            self.start_up = min(self.start_up + seconds - (self._seen or 0.0), LONGEST_START)
        self._seen = seconds

    def over(self, budget: float | None, seconds: float, progress: Any) -> str | None:
        """Return why a run ends that has trained for its budget; None: it has not."""
        if budget is None or seconds - self.start_up < budget:
            return None
        nothing = "" if self._learned else f", and nothing was learned: {progress.waiting or 'no worker answered in time'}"
        return f"{budget:g} seconds are over{nothing}"
