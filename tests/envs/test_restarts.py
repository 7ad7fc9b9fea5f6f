"""What fails is rebuilt within a budget, in a pool and in a whole run."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import bad_envs
import numpy as np
import pytest
from bad_envs import Counter, Faulty

import rookery
from rookery import envs
from rookery.envs import EnvironmentFailed, Restarts
from rookery.envs.processes import fork_server
from rookery.run import checkpoint

OPTIONS = {"num_envs": 4, "rollout_length": 8, "network": {"hidden": (4,)}, "eval_episodes": 0}


def failing():
    """A pool that fails at every third step."""
    pool = envs.make(partial(Faulty, "raises"), 2)
    return pool, Restarts(pool, allowed=3)


def fail_once(pool, restarts):
    for action in (0, 0, 1):
        pool.send(np.array([0, action]))
        step = restarts.recv()
    return step


def test_what_fails_is_rebuilt_and_told():
    pool, restarts = failing()
    restarts.reset(0)
    assert fail_once(pool, restarts).first.tolist() == [False, True]
    (incident,) = restarts.take()
    assert incident.env_ids == (1,) and "the simulator is gone" in incident.message and restarts.take() == []


def test_over_the_budget_it_ends_with_the_last_reason_and_the_flag():
    pool, restarts = failing()
    restarts.reset(0)
    for _ in range(3):
        fail_once(pool, restarts)
    with pytest.raises(EnvironmentFailed, match=r"simulator is gone[\s\S]*3 times \(--env-restarts\)"):
        fail_once(pool, restarts)


def test_a_run_goes_on_after_failures_and_counts_them(tmp_path):
    trainer = rookery.Trainer(
        "a2c", env=partial(Faulty, "raises"), runs=str(tmp_path), total_steps=2000, env_processes=0,
        env_restarts=10**6, **OPTIONS,
    )
    with trainer:
        for _ in trainer:
            pass
        result = trainer.finish()
    assert result.metrics["env_failures"] >= 5 and result.metrics["env_steps"] >= 2000
    log = (Path(result.run) / "log.txt").read_text()
    assert "the simulator is gone" in log and "rebuilt" in log


@pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")
def test_a_run_survives_killed_workers(tmp_path):
    trainer = rookery.Trainer(
        "a2c", env=bad_envs.Slow, runs=str(tmp_path), total_steps=3000, env_processes=2, **OPTIONS
    )
    server = lambda: fork_server.shared().pid
    children = lambda: [int(pid) for pid in Path(f"/proc/{server()}/task/{server()}/children").read_text().split()]
    killed = 0
    with trainer:
        for progress in trainer:
            if killed < 5 and progress.updates % 8 == 7 and children():
                os.kill(children()[0], signal.SIGKILL)
                killed += 1
        result = trainer.finish()
    assert killed == 5 and 1 <= result.metrics["env_failures"] <= 5
    assert result.status == "done" and result.metrics["env_steps"] >= 3000
    until = time.monotonic() + 2
    while children():  # the fork server buries them
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")
def test_a_crash_loop_ends_the_run_with_the_last_checkpoint_intact(tmp_path):
    trainer = rookery.Trainer(
        "a2c", env=_DiesLater, runs=str(tmp_path), total_steps=10**6, env_processes=1, env_restarts=2,
        checkpoint_every=1, **OPTIONS,
    )
    with pytest.raises(EnvironmentFailed, match=r"exited with status 5[\s\S]*2 times"), trainer:
        for _ in trainer:
            pass
    path, skipped = checkpoint.newest(trainer.run.checkpoints)
    assert path is not None and not skipped
    assert "exited with status 5" in (trainer.run.path / "result.json").read_text()
    from rookery.commands.status import status_of

    assert status_of(EnvironmentFailed("", 0)) == 3


class _DiesLater(Counter):
    def __init__(self):
        super().__init__(length=10**9)

    def step(self, action):
        if self.steps == 40:
            os._exit(5)
        return super().step(action)


def test_rollouts_of_a_rebuilt_environment_belong_to_a_new_stream():
    """The ledger: no (stream, step) twice, and the row of the failure is no transition."""
    import jax

    from rookery.algorithms.a2c import A2C
    from rookery.data.chunks import INCARNATIONS
    from rookery.networks import NetworkConfig
    from rookery.workers.acting.collector import Collector

    factory = partial(Faulty, "raises")
    agent = A2C(rollout_length=7, network=NetworkConfig(hidden=(4,))).build(envs.spec_of(factory))
    collector = Collector(agent, lambda: envs.make(factory, 3), env_restarts=10**6)
    collector.publish(agent.init(jax.random.key(0)).params, 0)
    seen, failures, invalid = set(), 0, 0
    for _ in range(60):
        collected = collector.collect()
        rollout = collected.rollout
        for t, env in np.ndindex(rollout.valid.shape):
            row = (int(rollout.stream[env]), int(rollout.step[env]) + t)
            assert row not in seen
            seen.add(row)
        failures += len(collected.incidents)
        invalid += int((rollout.valid == 0).sum())
    assert failures >= 3 and invalid >= failures
    streams = {stream for stream, _ in seen}
    assert {stream // INCARNATIONS for stream in streams} == {0, 1, 2}
    assert 3 < len(streams) <= 3 + failures  # two failures within a rollout end one stream
    collector.close()


def test_the_failure_can_come_from_another_process():
    import pickle

    error = pickle.loads(pickle.dumps(EnvironmentFailed("gone", 3, (2, 3))))
    assert str(error) == "gone" and error.env_id == 3 and error.lost == (2, 3)
