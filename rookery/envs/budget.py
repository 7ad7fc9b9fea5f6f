"""How often something that fails is started again: counted by progress, not by the clock.

A budget per minute never ends a crash loop that back-off slows down, and ends a quick run whose failures are rare. So each
loss takes one restart, and what is done in between gives restarts back. The same rule holds for an environment
(`restarts.Restarts`) and for a place in a fleet (`runtime.roster.Roster`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GOOD_STEPS = 50  # of an environment: what they give back is one restart; a whole episode gives back all


@dataclass
class Budget:
    """The restarts of one place."""

    restarts: int
    spent: float = 0.0

    def spend(self) -> bool:
        """Takes one for a loss. False: there is none left."""
        if self.spent > self.restarts - 1:
            return False
        self.spent += 1
        return True

    def earn(self, restarts: float) -> None:
        """Gives back for what was done since the last loss."""
        self.spent = max(0.0, self.spent - restarts)

    @property
    def in_a_row(self) -> int:
        """Losses without much progress in between, for a back-off that doubles."""
        return math.ceil(self.spent)
