"""Is the cluster alive? The head is asked for heartbeats, and every machine is probed for a connection.

Ray itself would end this process, unsaid, after a minute without an answer of its head; and of a machine that is cut off it
may learn after a minute, or never, if its head can reach it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from rookery.runtime.ray.cluster import raylet
from rookery.runtime.ray.errors import ClusterLost
from rookery.runtime.ray.handle import RayHandle
from rookery.runtime.ray.reachability import LOOK_SECONDS, SILENT_SECONDS, Address, Reachability

PULSE_SECONDS, LOST_SECONDS = 2.0, 15.0  # the head is asked this often, and given up when it is silent for so long
_logger = logging.getLogger(__name__)


class Liveness:
    """Two threads: one feels the pulse of the head, one cuts off the workers of machines that cannot be reached."""

    def __init__(self, handles: Sequence[RayHandle]) -> None:
        """handles: of the workers that live now; whoever owns the list changes it."""
        self._handles = handles
        self._closed = False
        self.pulse = time.monotonic()  # when the head last answered
        self._machines: dict[str, Address] = {}  # the others, by the id of their node
        self._cut: frozenset[str] = frozenset()  # those that have been silent for too long

    def start(self) -> None:
        for target, name in ((self._feel, "ray-pulse"), (self._listen, "ray-links")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        self._closed = True

    @property
    def lost(self) -> bool:
        """Is the Ray of this machine gone, or its head silent for too long?"""
        return raylet.gone.is_set() or time.monotonic() - self.pulse > LOST_SECONDS

    def require(self) -> None:
        """Raise ClusterLost where the cluster is."""
        raylet.require()
        if (silent := time.monotonic() - self.pulse) > LOST_SECONDS:
            raise ClusterLost(
                f"the head of the Ray cluster has not answered for {silent:.0f} s. Resume the run from its last checkpoint; "
                "with --address, on a cluster that is alive."
            )

    def _feel(self) -> None:
        """Ask the head for heartbeats. Ray itself would end this process, unsaid, after a minute without one."""
        while not self._closed:
            with contextlib.suppress(Exception):
                nodes, here = ray.nodes(), ray.get_runtime_context().get_node_id()
                others = [node for node in nodes if node["Alive"] and node["NodeID"] != here]
                self._machines = {n["NodeID"]: (n["NodeManagerAddress"], n["NodeManagerPort"]) for n in others}
                self.pulse = time.monotonic()
            time.sleep(PULSE_SECONDS)

    def _listen(self) -> None:
        """Probe all machines: Ray may take a minute to give up one that is cut off, and never does if its head can reach it."""
        reachability = Reachability()
        while not self._closed:
            silent = frozenset(reachability.look(machines := self._machines))
            for node in silent - self._cut:
                _logger.warning("%s:%d cannot be reached: its workers are given up", *machines[node])
            self._cut = silent
            for handle in [*self._handles]:
                if (node := handle.node or "") in silent:
                    handle.cut_off(f"{handle.name} is cut off: {machines[node][0]} has been silent for {SILENT_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    # ------------------------------------------------------------------------------------------- where to place workers

    def placement(self) -> dict[str, Any]:
        """Give options of an actor that avoid machines that are cut off: Ray would put a worker there until it has noticed."""
        if not self._cut:
            return {}
        names = ",".join(sorted(self._cut))
        there = {"label_selector": {"ray.io/node-id": f"in({names})"}}  # where there is no room elsewhere; it may be back soon
        return {"label_selector": {"ray.io/node-id": f"!in({names})"}, "fallback_strategy": [there]}

    def available_resources(self) -> dict[str, float]:
        """Count what is free on the machines that can be reached, by kind."""
        if not self._cut:
            return ray.available_resources()
        there: dict[str, float] = {}
        for node, resources in ray._private.state.available_resources_per_node().items():
            for kind, amount in resources.items():
                there[kind] = there.get(kind, 0.0) + (amount if node not in self._cut else 0.0)
        return there
