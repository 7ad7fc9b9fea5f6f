"""Rollouts of a collector, each into memory that is not clean."""

from __future__ import annotations

from rookery.testing import dirty_rollout
from rookery.workers.acting.collector import Collected, Collector


def collect(worker: Collector, rollouts: int) -> list[Collected]:
    return [worker.collect(dirty_rollout(worker._specs)) for _ in range(rollouts)]
