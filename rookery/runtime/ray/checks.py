"""What is held against a cluster before it is used: are there resources for all workers, and is it the same code everywhere?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

from rookery.runtime.interface import Resources, RuntimeRefused
from rookery.runtime.ray.actor import remote
from rookery.runtime.ray.errors import translated

PROBE_SECONDS = 60
Versions = Callable[[], dict[str, str]]


def check_resources(resources: Mapping[str, Resources], counts: Mapping[str, tuple[int, int]]) -> None:
    """Refuse roles whose smallest number of workers the whole cluster has no room for."""
    there = ray.cluster_resources()
    for role, (least, _) in counts.items():
        wanted = resources[role]
        for kind, each in (("CPU", wanted.cpus), ("GPU", wanted.gpus)):
            if least * each > (have := there.get(kind, 0.0)):
                raise RuntimeRefused(
                    f"{least} × {role} of {each:g} {kind} each need {least * each:g}, but this Ray has {have:g} in all: "
                    f"fewer of them, or --{role}.{kind.lower()}s {have / least:.2g}"
                )


def check_machines(versions: Versions, expected: Mapping[str, str]) -> None:
    """Refuse a cluster where a machine has other versions than this one, with the list of all of them."""
    problems = [line for node in ray.nodes() if node["Alive"] for line in _version_skew(node, versions, expected)]
    if problems:
        raise RuntimeRefused("the machines of this cluster do not agree:\n  " + "\n  ".join(problems))


def _version_skew(node: dict[str, Any], versions: Versions, expected: Mapping[str, str]) -> list[str]:
    """List what differs on a machine from here, one line each."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    probe = remote(num_cpus=0, max_retries=0)(lambda versions: versions()).options(scheduling_strategy=affinity)
    place = node.get("NodeManagerAddress", node["NodeID"][:8])
    try:
        theirs = ray.get(probe.remote(versions), timeout=PROBE_SECONDS)
    except Exception as error:
        return [f"{place}: rookery does not work there: {translated(error, 'the probe')}"]
    return [f"{place}: {line}" for line in differences(expected, theirs)]


class VersionCheck:
    """Done in an actor before its worker is made: the same versions as here, or nothing."""

    def __init__(self, prepare: Callable[[], None], versions: Versions, expected: dict[str, str]) -> None:
        self._prepare, self._versions, self._expected = prepare, versions, expected

    def __call__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN) if threading.current_thread() is threading.main_thread() else None
        self._prepare()
        if problems := differences(self._expected, self._versions()):
            raise RuntimeRefused(f"{ray.util.get_node_ip_address()} is another version: " + "; ".join(problems))


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """List everything that is not the same, as `jax 0.10.3, here 0.10.2`."""
    names = sorted({*mine, *theirs})
    return [f"{n} {theirs.get(n, 'missing')}, here {mine.get(n, 'missing')}" for n in names if mine.get(n) != theirs.get(n)]
