"""Trains on a cluster with a ledger before the learner, tells how it stands, and closes its books when it is told to.

A program of its own, because the drills let it live in a network namespace and a process can join one cluster only.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

import ray

from rookery.run import startup
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Resources
from rookery.runtime.ray import RayRuntime
from rookery.runtime.roster import span
from rookery.testing import SPEC, ScriptedPool, counting_agent
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job
from rookery.types import Rollout
from rookery_bench.audit import Audited


def make_pool(num_envs: int, groups: int) -> ScriptedPool:
    return ScriptedPool(num_envs, groups, on_step=lambda slot: time.sleep(0.002))


def main(*, address: str | None, collectors: str, num_envs: int) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    runtime = Audited(
        RayRuntime(
            address=address, resources={"collector": Resources()}, counts={"collector": span(collectors)},
            prepare=startup.prepare, versions=fingerprint,
        )
    )  # fmt: skip
    topology = ActorLearner(num_envs=num_envs, collectors=collectors, groups=1)
    driver = topology.drive(Job(counting_agent(3), SPEC, make_pool, runtime, seed=0))
    told = 0.0
    for progress in driver:
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            tell(progress.workers | {"updates": progress.updates, "nodes": nodes(runtime)})
        if select.select([sys.stdin], [], [], 0)[0] and progress.snapshot is not None:
            break
    assert progress.snapshot is not None
    saved = progress.snapshot()
    waiting = [Rollout(**part) for part in saved["tables"]["queue"]["parts"]]
    counted = {name: int(saved["meters"][name]) for name in ("trained_steps", "env_steps")}
    violations = runtime.ledger.closed(waiting, **counted)
    lives, incarnations = saved["lives"]["collector"], runtime.ledger.incarnations
    tell({"violations": violations, "lives": lives, "incarnations": incarnations} | counted)
    driver.close()


def nodes(runtime: Audited) -> list[str]:
    """Where the collectors live that are not lost."""
    made = [life for life in runtime.lives if life.lost is None and life.answered is not None]
    return sorted(life.handle.ready.result()[0] for life in made)


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
