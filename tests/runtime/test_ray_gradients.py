"""Workers that learn, as Ray actors: killed and replaced, and nothing is applied twice or counted without being applied."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import pid_of, runtime_of
from waiting import until

from rookery.runtime.ray import Kept, RayRuntime
from rookery.testing import SPEC, ScriptedPool, checkpointed, summing_agent
from rookery.testing import slow_steps as slow
from rookery.topologies.async_gradients import AsyncGradients
from rookery.topologies.gossip import Gossip, _GossipRing
from rookery.topologies.job import Job, Progress
from rookery.topologies.parameter_server import ParameterServer
from rookery.workers.learning.peer import PeerStep

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
AGENT = summing_agent()
pytestmark = pytest.mark.usefixtures("cluster")


def drive(topology: Any) -> tuple[RayRuntime, Iterator[Progress]]:
    runtime = runtime_of(**topology.plan({"main": AGENT}, SPEC).fleets)
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups, on_step=slow(0.002))
    return runtime, topology.drive(Job(AGENT, SPEC, make, runtime, seed=0))


def survive(role: str, topology: Any) -> Any:
    """Kills one of two workers in the middle of its work; the snapshot after both have worked again."""
    runtime, driver = drive(topology)
    until(driver, lambda p: p.workers[f"{role}s"] == 2 and p.updates > 5)
    os.kill(pid_of(runtime, f"{role}-1"), signal.SIGKILL)
    until(driver, lambda p: p.workers[f"{role}s_lost"] == 1)
    back = until(driver, lambda p: p.workers[f"{role}s"] == 2)
    progress = until(driver, lambda p: p.updates > back.updates + 10)
    assert progress.snapshot is not None and progress.workers["calls_lost"] >= 1
    saved = checkpointed(progress.snapshot())
    driver.close()  # type: ignore[attr-defined]
    assert saved["lives"][role] == [0, 1] and None not in saved["workers"][role]
    return saved


@pytest.mark.parametrize(
    "role, topology",
    [("worker", AsyncGradients(num_envs=4, workers=2)), ("bundle", ParameterServer(num_envs=4, workers=2, shards=2))],
)
def test_a_killed_worker_is_replaced_and_what_is_counted_was_applied_once(role: str, topology: Any) -> None:
    saved = survive(role, topology)
    state, meters = saved["policies"]["main"]["state"], saved["meters"]
    assert state["params/sum"] == meters["trained_steps"] == meters["env_steps"] > 0
    assert state["params/offset"] == state["updates"] == meters["updates"]


def test_a_killed_peer_is_replaced_by_its_neighbours_parameters_which_never_pass_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[Any] = []
    begun: list[int] = []  # the offsets that the lives of the second peer began with
    stepped = _GossipRing._stepped

    def look(ring: _GossipRing, place: int, step: PeerStep, message: Any) -> None:
        passed.append(message)
        if place == 1 and step.update.version == 1:  # the first update of a life: it adds one
            begun.append(int(ray.get(message.ref())["offset"]) - 1)
        stepped(ring, place, step, message)

    monkeypatch.setattr(_GossipRing, "_stepped", look)
    saved = survive("peer", Gossip(num_envs=4, peers=2, max_staleness=3))
    assert passed and all(type(message) is Kept for message in passed)
    meters, steps = saved["meters"], saved["ring"]["steps"]
    assert meters["trained_steps"] == meters["env_steps"] and sum(steps) // 2 == meters["updates"]
    assert abs(steps[0] - steps[1]) <= 4
    # the first life starts at 0, or half way to a neighbour that is at most 4 steps ahead
    assert len(begun) == 2 and begun[0] <= 2 < begun[1], "the new one began with what its neighbour had learned"
