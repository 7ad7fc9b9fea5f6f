"""check_topology passes topologies that keep their contracts, and names what is wrong with those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from topologies_of_own import OneByOne

from rookery.runtime.roster import Exhausted
from rookery.testing import ContractBroken, check_topology, counting_agent
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.async_gradients import AsyncGradients
from rookery.topologies.parameter_server import ParameterServer
from rookery.topologies.sync import Sync

GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "one by one": (OneByOne(), {}),
    "sync": (Sync(num_envs=4, collectors=2), dict(losses=("collector",))),
    "actor-learner": (
        ActorLearner(num_envs=6, collectors=3, groups=2, rollouts_per_batch=2), dict(losses=("collector",))
    ),
    "central": (ActorLearner(num_envs=4, collectors=2, inference="central"), dict(partial=True)),
    "async-gradients": (
        AsyncGradients(num_envs=4, workers=2), dict(losses=("worker",))
    ),
    "parameter-server": (ParameterServer(num_envs=4, workers=2, shards=2), dict(losses=("bundle",))),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_topology_that_keeps_its_contracts_passes(name: str) -> None:
    topology, options = GOOD[name]
    check_topology(topology, updates=6, **options)


BROKEN = {
    "twice": "steps were learned from, trained_steps is",
    "again": r"step \d of episode \d of environment \d was learned from \d times",
    "drops": "of .* steps that were played are not in env_steps",
    "forgets counters": "a resumed run begins with updates 0, its snapshot has 6",
    "forgets environments": "after a resume environments begin anew",
    "old parameters": r"data was \d updates old, max_lag\(\) promises 0",
    "silent": r"drive\(\) was silent for 60 s",
    "no state": "a snapshot has",
    "open": "does not close the runtime",
    "refuses": "the topology refuses the agent that it is checked with: it never does",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_topology_that_does_not_is_told_what_is_wrong(fault: str) -> None:
    with pytest.raises(ContractBroken, match=BROKEN[fault]):
        check_topology(OneByOne(fault=fault), updates=6, schedules=1)


def test_an_edge_that_is_declared_and_never_counted_is_named() -> None:
    with pytest.raises(ContractBroken, match=r"declared and never counted: \['whispers'\]"):
        check_topology(OneByOne(fault="silent edge"), updates=6, schedules=0)


def test_an_edge_that_is_counted_and_not_declared_ends_the_run() -> None:
    with pytest.raises(KeyError, match="'whispers' is no edge of the plan"):
        check_topology(OneByOne(fault="edges"), updates=6, schedules=0)


def test_an_agent_without_a_ledger_is_taken_where_only_counters_are_asked_for() -> None:
    with pytest.raises(ContractBroken, match="keeps no ledger"):
        check_topology(OneByOne(), agent=counting_agent(), updates=6, schedules=0)
    check_topology(OneByOne(), agent=counting_agent(), updates=6, schedules=0, exact=False)


def test_a_role_that_nobody_has_is_named_and_a_worker_that_is_not_replaced_ends_the_run() -> None:
    with pytest.raises(ContractBroken, match="no worker of the role 'actor'"):
        check_topology(OneByOne(), updates=6, losses=("actor",), schedules=0)
    with pytest.raises(Exception, match="collector-0 was killed") as ended:
        check_topology(OneByOne(), updates=6, losses=("collector",), schedules=0)
    assert not isinstance(ended.value, Exhausted)
