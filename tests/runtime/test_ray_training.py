"""Training with collectors that are Ray actors: as on `local`, and it goes on when they are killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import Deadlines, pid_of, runtime_of
from waiting import until

from rookery import Trainer
from rookery.data.chunks import INCARNATIONS
from rookery.runtime import roster
from rookery.runtime.ray import RayRuntime
from rookery.testing import SPEC, ScriptedPool, checkpointed, counting_agent, digest, record, rows_of
from rookery.testing import RowLedger as Ledger
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.launch import LIFE
from rookery.topologies.sync import Sync
from rookery.types import Rollout

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
AGENT = counting_agent(3)
pytestmark = pytest.mark.usefixtures("cluster")


def drive(topology: Any, runtime: RayRuntime, snapshot: Any = None) -> Iterator[Progress]:
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups)
    return topology.drive(Job(AGENT, SPEC, make, runtime, seed=0), snapshot)


def audited(progress: Progress, ledger: Ledger) -> Any:
    """Drains; what was learned from and what is in the snapshot is all that was counted, each step once."""
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    waiting = [row for part in saved["tables"]["queue"]["parts"] for row in rows_of(Rollout(**part))]
    ledger.check(in_order=False, waiting=waiting)
    meters = saved["meters"]
    assert meters["trained_steps"] == sum(row.valid for row in ledger.rows)
    assert meters["env_steps"] == meters["trained_steps"] + sum(row.valid for row in waiting)
    return saved


def test_collectors_that_are_killed_or_stopped_are_replaced_and_the_ledger_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, deadlines = ActorLearner(num_envs=4, collectors=2, groups=1), Deadlines(monkeypatch)
    runtime = runtime_of(collector=2)
    ledger = record(runtime, pause=0.005)
    driver = drive(topology, runtime)
    lives = lambda: {(row.stream // INCARNATIONS, row.stream % INCARNATIONS // LIFE) for row in ledger.rows}
    until(driver, lambda p: p.workers["collectors"] == 2 and {(0, 0), (2, 0)} <= lives())  # something was learned of each
    killed, stopped = (pid_of(runtime, f"collector-{place}") for place in (0, 1))
    os.kill(killed, signal.SIGKILL)
    at = time.monotonic()
    lost = until(driver, lambda p: p.workers["collectors_lost"] == 1)
    assert time.monotonic() - at < 5.0, "by the error of its calls, not by a time-out"
    until(driver, lambda p: "collector-0" in {handle.name for handle in runtime._handles})
    assert time.monotonic() - at < 5.5, "replaced at once: the rest is its own start-up"
    until(driver, lambda p: p.updates > lost.updates)
    until(driver, lambda p: (0, 1) in lives())  # it has compiled: from now on, it answers at once

    os.kill(stopped, signal.SIGSTOP)
    with deadlines.of(1.0):
        until(driver, lambda p: p.workers["collectors_lost"] == 2)
    saved = audited(until(driver, lambda p: (2, 1) in lives() and p.snapshot is not None), ledger)
    assert saved["lives"]["collector"] == [1, 1]
    assert max(ledger.lags) <= topology.max_lag()
    driver.close()
    command = Path(f"/proc/{stopped}/cmdline")
    assert not command.exists() or not command.read_bytes(), "one that is stopped is ended, too"

    again = runtime_of(collector=2)  # and continued from there
    record(again, ledger, pause=0.005)
    driver = drive(topology, again, saved)
    audited(until(driver, lambda p: p.updates > saved["meters"]["updates"] + 20), ledger)
    driver.close()


def test_sync_waits_for_the_replacement_and_never_learns_from_old_parameters() -> None:
    runtime = runtime_of(collector=2)
    ledger = record(runtime, pause=0.005)
    driver = drive(Sync(num_envs=4, collectors=2), runtime)
    until(driver, lambda p: p.updates > 10)
    os.kill(pid_of(runtime, "collector-1"), signal.SIGKILL)
    until(driver, lambda p: p.workers["collectors_lost"] == 1)
    progress = until(driver, lambda p: p.updates > 30 and p.snapshot is not None)
    audited(progress, ledger)
    driver.close()
    assert set(ledger.lags) == {0}


class Doomed(gymnasium.Env):
    """Takes its process with it at the third step, once `file` is there."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self._file, self._steps = file, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps > 2 and os.path.exists(self._file):
            os._exit(1)
        return np.zeros(1, np.float32), 0.0, self._steps % 7 == 0, False, {}


def test_a_crash_loop_ends_the_run_and_leaves_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = roster.Terms.__init__
    monkeypatch.setattr(roster.Terms, "__init__", lambda self, **given: terms(self, **given | {"losses": 1}))
    file = tmp_path / "doom"
    options = dict(runtime="ray", num_envs=2, groups=1, rollout_length=5, network={"hidden": (4,)}, eval_episodes=0)
    options["env_processes"] = 0  # in the collector's own process
    with Trainer("impala", env=Doomed, env_options={"file": str(file)}, runs=str(tmp_path), **options) as trainer:
        while trainer.advance().updates < 3:
            pass
        path = trainer.save()
        file.touch()
        with pytest.raises(roster.Exhausted, match="lost 2 times without enough answers") as error:
            while True:
                trainer.advance()
        assert error.value.exit_code == 7 and path.name in trainer.last_good()


def test_a_synchronous_run_is_the_same_on_ray_as_on_local_and_resumes_there_bit_for_bit(tmp_path: Path) -> None:
    options = dict(
        env="CartPole-v1", num_envs=4, collectors=2, rollout_length=8, network={"hidden": (4,)}, total_steps=10**6,
        runs=str(tmp_path), eval_episodes=0,
    )  # fmt: skip
    seen: dict[str, dict[int, str]] = {"local": {}, "ray": {}}
    for runtime in seen:
        with Trainer("a2c", **options, runtime=runtime, run=runtime) as trainer:
            while trainer.progress is None or trainer.progress.updates < 8:
                progress = trainer.advance()
                seen[runtime][progress.updates] = digest(progress.params)
                if progress.updates == 4 and progress.snapshot is not None:
                    path = trainer.save()
            if runtime == "ray":
                assert {"collector-0", "collector-1"} <= {handle.name for handle in trainer._runtime._handles}, "as actors"
    assert all(seen["local"][update] == seen["ray"][update] for update in range(1, 9))
    with Trainer("a2c", **options, runtime="ray", run="again") as trainer:
        trainer.restore(path)
        while trainer.progress is None or trainer.progress.updates < 8:
            progress = trainer.advance()
            assert progress.updates <= 4 or digest(progress.params) == seen["local"][progress.updates]
