"""Learners beside the learner: they read a table at a rate of their own, and their gradients are applied on arrival."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from rookery.data.replay import Replay
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import Plan
from rookery.topologies.staleness import Staleness
from rookery.types import PyTree
from rookery.workers.learning.absorbing import Absorbed
from rookery.workers.learning.auxiliary_worker import AuxiliaryWorker
from rookery.workers.learning.gradient_worker import Found
from rookery.workers.learning.learner import Learner


class Applying(NamedTuple):
    """A gradient in the learner's line."""

    future: Future[Absorbed]
    found: Found


class SecondLearner:
    """The fleet of an auxiliary loss, and its gradients on their way. A part of a Pipeline."""

    def __init__(self, plan: Plan, launched: Launched, name: str, *, ratio: float | None, staleness: Staleness) -> None:
        """ratio: gradients for each update of the learner, at most; None: as many as come."""
        node = plan.node(name)
        drawn = next(edge for edge in plan.into(name) if edge.source in launched.tables)
        table = launched.tables[drawn.source]
        assert isinstance(table, Replay), f"{drawn.source}: only a replay in the driver is read beside the learner"
        self.fleet: Fleet[AuxiliaryWorker] = launched.fleets[name]
        self.table, self.seat, self.name = table, launched.seats[node.agent], name
        self.edges = drawn.name, plan.between(name, self.seat.node.name).name
        self._learner: Handle[Learner] = self.seat.learner  # type: ignore[assignment]
        self._ratio, self._staleness = ratio, staleness
        self._asked, self._applying = 0, deque[Applying]()
        self._began, self._counted = time.perf_counter(), 0  # of this process

    @property
    def busy(self) -> bool:
        return self.fleet.busy or bool(self._applying)

    def waiting(self) -> list[Future[Any]]:
        return [one.future for one in self._applying]

    def ask(self, meters: Meters) -> None:
        """Give every idle worker a batch, as far as the ratio allows."""
        while self._may_ask(meters) and (who := self.fleet.next()) is not None and (taken := self.table.draw()) is not None:
            self.fleet.call(who, taken, AuxiliaryWorker.find, taken.batch)
            self._asked += 1

    def _may_ask(self, meters: Meters) -> bool:
        under_way = self._asked + meters.items.get(self.edges[0], 0)
        return self._ratio is None or under_way + 1 <= self._ratio * meters.updates

    def take(self, ready: Iterable[Future[Any]], meters: Meters, queued: int) -> None:
        """Send what was found to the learner, and tell the workers what it has made of it. queued: updates in its line."""
        for taken, found in self.fleet.take(ready):
            self.table.release(taken.slot)
            self._asked -= 1
            if found is None:  # its worker is gone: another batch is drawn
                continue
            meters.moved(self.edges[0])
            meters.spend(self.name, found.busy_seconds)
            if self._staleness.admits(self.seat.version + queued - found.version):
                self._applying.append(Applying(self._learner.call(Learner.absorb, found.tree), found))
        while self._applying and self._applying[0].future.done():
            future, found = self._applying.popleft()
            self.seat.publish_beside(future.result(), meters)
            meters.moved(self.edges[1])
            self._counted += 1
            seconds = max(1e-9, time.perf_counter() - self._began)
            rate = {"auxiliary_updates": float(meters.items[self.edges[1]]), "auxiliary_updates_per_s": self._counted / seconds}
            meters.others |= found.report | self._staleness.report() | rate

    def snapshot(self) -> PyTree:
        return self._staleness.snapshot()
