"""Central inference with hosts that are Ray actors: it goes on when one is killed, and only its environments begin anew."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import pid_of, runtime_of
from waiting import until

from rookery.data.chunks import INCARNATIONS
from rookery.testing import SPEC, ScriptedPool, checkpointed, counting_agent, record, rows_of
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job
from rookery.types import Rollout

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")


def test_a_host_that_is_killed_is_replaced_and_only_its_environments_begin_anew() -> None:
    old = 1000  # updates, which no rollout takes: what is discarded for its age begins new streams, as what is lost does
    topology = ActorLearner(num_envs=8, collectors=2, groups=2, inference="central", inference_lag=old)
    runtime = runtime_of(host=2)
    ledger = record(runtime)
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups)
    driver = topology.drive(Job(counting_agent(3), SPEC, make, runtime, seed=0))
    lives = lambda env: {row.stream % INCARNATIONS for row in ledger.rows if row.stream // INCARNATIONS == env}
    progress = until(driver, lambda p: p.updates >= 10 and all(map(lives, range(8))))  # something was learned of each
    assert progress.workers["hosts"] == 2 and pid_of(runtime, "host-0") != os.getpid()
    os.kill(pid_of(runtime, "host-1"), signal.SIGKILL)
    progress = until(driver, lambda p: p.workers["hosts_lost"] == 1 and p.workers["hosts"] == 2)
    progress = until(driver, lambda p: all({0} < lives(env) for env in range(4, 8)))  # what was lost came back in new streams
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    driver.close()  # type: ignore[attr-defined]
    parts = saved["tables"]["queue"]["parts"]
    ledger.check(in_order=False, waiting=[row for part in parts for row in rows_of(Rollout(**part))])
    assert all(lives(env) == {0} for env in range(4)), "the other host went on"
    assert progress.env_failures == 1 and max(ledger.lags) <= topology.max_lag()
    assert 1 <= progress.workers["rollouts_discarded"] <= 2
    assert set(progress.items) == {edge.name for edge in topology.plan({"main": counting_agent(3)}, SPEC).edges}
