"""Refiners between tables, as a part of a Pipeline: what they draw from several tables, and what goes back there.

    replay ──┐
             ├──▶ refiner × R ──▶ refined ──▶ learner
    logged ──┘                                   │
      ▲────────── priorities, by key ────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from rookery.data import arrays
from rookery.data.interface import Part, Taken
from rookery.data.refined import Refined
from rookery.runtime.roster import Life
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import Plan
from rookery.workers.learning.learner import Update
from rookery.workers.learning.refiner import Refiner


class Refining:
    """A fleet of refiners, the tables that it draws from and the one that it fills."""

    def __init__(self, plan: Plan, launched: Launched, name: str) -> None:
        self.fleet = launched.fleets[name]
        drawn = [edge for edge in plan.into(name) if edge.source in launched.tables]
        made = next(edge for edge in plan.out_of(name) if edge.target in launched.tables)
        self.sources, self.into = [launched.tables[edge.source] for edge in drawn], launched.tables[made.target]
        self.drawn, self.made = [edge.name for edge in drawn], made.name

    def ask(self, who: Life, part: Part) -> bool:
        """Give a refiner a batch of each table, to be refined into `part`. False: the first table has none yet; those after it
        never make anyone wait."""
        drawn: list[Taken] = []
        for table in self.sources:
            if (taken := table.take()) is None:
                assert not drawn, "of several tables that are drawn from at once, only the first may refuse"
                self.into.abandon(part)
                return False
            drawn.append(taken)
        self.fleet.call(who, (part, drawn), Refiner.refine, *(taken.batch for taken in drawn))
        return True

    def take(self, ready: Iterable[Future[Any]], meters: Meters) -> None:
        """Hand refined batches on; one whose refiner is gone is not refined, and its items are drawn again."""
        for (part, drawn), refined in self.fleet.take(ready):
            for table, taken, edge in zip(self.sources, drawn, self.drawn):
                table.release(taken.slot)
                meters.moved(edge)
            if refined is None:
                self.into.abandon(part)
                continue
            age = meters.updates - refined.version
            self.into.commit(Part(part.slot, part.place, refined._replace(age=age)))
            meters.moved(self.made)
            meters.spend("refine", refined.seconds)


class Sources:
    """The tables that refined batches were drawn from, as their learner sees them."""

    def __init__(self, plan: Plan, launched: Launched, refined: str) -> None:
        """refined: the name of the table of refined batches."""
        table = launched.tables[refined]
        assert isinstance(table, Refined), refined
        self._refined = table
        names = [edge.source for refiner in plan.into(refined) for edge in plan.into(refiner.source)]
        self._tables = {name: launched.tables[name] for name in names if name in launched.tables}
        counts = [plan.node(name).batch for name in self._tables]
        self._order = np.argsort(arrays.spread_evenly(counts)) if len(counts) > 1 else slice(None)
        self._ends = np.cumsum(counts)[:-1]

    def learned(self, taken: Taken, update: Update) -> None:
        """Note the lag of a refined batch, and send the new priorities of its columns to the tables that they came from."""
        self._refined.used(taken.slot, update.version - 1)
        if update.priorities is None:
            return
        keys, priorities = (np.split(column[self._order], self._ends) for column in (taken.batch.key, update.priorities))
        for table, own, new in zip(self._tables.values(), keys, priorities, strict=True):
            table.update(own, new)

    def metrics(self) -> dict[str, float]:
        """Report of each table, by its own name."""
        found: dict[str, float] = {}
        for name, table in self._tables.items():
            found |= {f"{name}/{metric.partition('/')[2]}": value for metric, value in table.metrics().items()}
        return found
