"""The second learner as a Ray actor: killed in the middle of its work, training goes on, and it comes back."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
from actors import pid_of, runtime_of
from waiting import until

from rookery import envs
from rookery.algorithms.sac import SAC
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig, ViewsConfig
from rookery.testing import checkpointed
from rookery.topologies.job import Job
from rookery.topologies.two_learners import TwoLearners


@pytest.mark.usefixtures("cluster")
def test_training_goes_on_while_the_second_learner_is_gone_and_it_is_replaced() -> None:
    spec = envs.spec_of("pixel-reach", side=8)
    agent = SAC(
        batch_size=4, gradient_steps=1, random_steps=20, network=NetworkConfig(hidden=(4,)), views=ViewsConfig(kind="shift"),
        replay=ReplayBuffer(capacity=200, min_size=20), contrastive_every=1,
    ).build(spec)  # fmt: skip
    topology = TwoLearners(num_envs=2, auxiliary_ratio=None)
    runtime = runtime_of(**topology.plan({"main": agent}, spec).fleets)
    make = lambda num_envs, groups: envs.make("pixel-reach", num_envs, groups=groups, side=8)
    driver = topology.drive(Job(agent, spec, make, runtime, seed=0))
    until(driver, lambda p: p.items.get("gradients", 0) > 3)
    os.kill(pid_of(runtime, "auxiliary_learner-0"), signal.SIGKILL)
    lost = until(driver, lambda p: p.workers["auxiliary_learners_lost"] == 1)
    until(driver, lambda p: p.updates > lost.updates + 5)
    back = until(driver, lambda p: p.items["gradients"] > lost.items["gradients"] + 3)
    assert back.workers["auxiliary_learners"] == 1 and back.snapshot is not None
    saved = checkpointed(back.snapshot())
    driver.close()  # type: ignore[attr-defined]
    assert saved["lives"]["auxiliary_learner"] == [1]
    assert saved["meters"]["items"]["drawn"] == saved["meters"]["items"]["gradients"], "what was lost is counted nowhere"
