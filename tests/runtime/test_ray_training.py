"""Training with collectors that are Ray actors: as on `local`, and it goes on when they are killed."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from engine_fakes import SPEC, ScriptedPool, checkpointed, counting_agent
from simulation import Ledger, rows_of

from rookery import Trainer
from rookery.data.chunks import INCARNATIONS
from rookery.run import startup
from rookery.run.versions import fingerprint
from rookery.runtime import roster
from rookery.runtime.interface import Resources
from rookery.runtime.ray import RayRuntime
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import LIFE, Job, Progress
from rookery.topologies.sync import Sync
from rookery.types import Batch, Rollout
from rookery.workers.learner import Learner, Update

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
AGENT = counting_agent(3)
pytestmark = pytest.mark.usefixtures("cluster")


class Recorded(RayRuntime):
    """Keeps a ledger of what the learner is given, and knows the processes of its collectors."""

    def __init__(self, ledger: Ledger | None = None, collectors: int = 2) -> None:
        super().__init__(
            resources={"collector": Resources()}, counts={"collector": (collectors, collectors)},
            prepare=startup.prepare, versions=fingerprint,
        )  # fmt: skip
        self.ledger = ledger = ledger or Ledger()

        class RecordedLearner(Learner):
            def learn(self, batch: Batch) -> Update:
                ledger.write(batch, self.version)
                time.sleep(0.005)
                return super().learn(batch)

        self._recorded = RecordedLearner

    def spawn(self, worker: Callable[..., Any], *args: Any, name: str, **kwargs: Any) -> Any:
        return super().spawn(self._recorded if worker is Learner else worker, *args, name=name, **kwargs)

    def pid(self, name: str) -> int:
        handle = next(handle for handle in self._handles if handle.name == name)
        handle.ready.result(60)
        return ray.get(handle.actor.__ray_call__.remote(lambda host: os.getpid()))


def drive(topology: Any, runtime: Recorded, snapshot: Any = None) -> Iterator[Progress]:
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups)
    return topology.drive(Job(AGENT, SPEC, make, runtime, seed=0), snapshot)


def until(driver: Iterator[Progress], condition: Callable[[Progress], bool], seconds: float = 60.0) -> Progress:
    deadline = time.monotonic() + seconds
    for progress in driver:
        if condition(progress):
            return progress
        assert time.monotonic() < deadline, f"not after {seconds} s: {progress.workers}, {progress.updates} updates"
    raise AssertionError


def audited(progress: Progress, ledger: Ledger) -> Any:
    """Drains; what was learned from and what is in the snapshot is all that was counted, each step once."""
    assert progress.snapshot is not None
    saved = checkpointed(progress.snapshot())
    waiting = [row for part in saved["queue"]["parts"] for row in rows_of(Rollout(**part))]
    ledger.check(in_order=False, waiting=waiting)
    meters = saved["meters"]
    assert meters["trained_steps"] == sum(row.valid for row in ledger.rows)
    assert meters["env_steps"] == meters["trained_steps"] + sum(row.valid for row in waiting)
    return saved


def test_collectors_that_are_killed_are_replaced_and_the_ledger_is_clean() -> None:
    topology = ActorLearner(num_envs=4, collectors=2, groups=1)
    runtime = Recorded()
    begin = time.monotonic()
    driver = drive(topology, runtime)
    until(driver, lambda p: p.workers["collectors"] == 2 and p.updates > 5)
    start_up = time.monotonic() - begin
    taken = []
    for kills, place in enumerate((0, 1), start=1):
        os.kill(runtime.pid(f"collector-{place}"), signal.SIGKILL)
        killed = time.monotonic()
        lost = until(driver, lambda p, n=kills: p.workers["collectors_lost"] == n)
        noticed = time.monotonic() - killed
        went_on = until(driver, lambda p, u=lost.updates: p.updates > u)
        until(driver, lambda p: p.workers["collectors"] == 2)
        taken.append((noticed, time.monotonic() - killed))
        until(driver, lambda p, u=went_on.updates: p.updates > u + 20)
    print(f"start-up {start_up:.1f} s; noticed and replaced after {taken}")  # how fast it is, `rookery bench` says
    assert all(noticed < 5.0 for noticed, _ in taken), "by the error of its calls, not by a time-out"
    progress = until(driver, lambda p: True)
    saved = audited(progress, runtime.ledger)
    lives = {(row.stream // INCARNATIONS, row.stream % INCARNATIONS // LIFE) for row in runtime.ledger.rows}
    assert {(0, 0), (0, 1), (2, 0), (2, 1)} <= lives and saved["lives"] == [1, 1]
    assert max(runtime.ledger.lags) <= topology.max_lag()
    driver.close()

    again = Recorded(runtime.ledger)  # and continued from there
    driver = drive(topology, again, saved)
    audited(until(driver, lambda p: p.updates > saved["meters"]["updates"] + 20), again.ledger)
    driver.close()


def test_a_collector_that_is_stopped_for_too_long_is_ended_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = roster.Terms  # only with calls: a start may take longer
    monkeypatch.setattr("rookery.topologies.job.Terms", lambda **terms: patient(**terms | {"call_deadline": 3.0}))
    runtime = Recorded(collectors=1)
    driver = drive(ActorLearner(num_envs=2, collectors=1, groups=1), runtime)
    until(driver, lambda p: p.updates > 5)
    pid = runtime.pid("collector-0")
    os.kill(pid, signal.SIGSTOP)
    progress = until(driver, lambda p: p.workers["collectors_lost"] == 1)
    progress = until(driver, lambda p, u=progress.updates: p.updates > u + 10)
    audited(progress, runtime.ledger)
    driver.close()
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(), "it is ended, too"


def test_sync_waits_for_the_replacement_and_never_learns_from_old_parameters() -> None:
    runtime = Recorded()
    driver = drive(Sync(num_envs=4, collectors=2), runtime)
    until(driver, lambda p: p.updates > 10)
    os.kill(runtime.pid("collector-1"), signal.SIGKILL)
    until(driver, lambda p: p.workers["collectors_lost"] == 1)
    progress = until(driver, lambda p: p.updates > 30 and p.snapshot is not None)
    audited(progress, runtime.ledger)
    driver.close()
    assert set(runtime.ledger.lags) == {0}


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
        with pytest.raises(roster.Exhausted, match="lost 2 times within 60 s") as error:
            while True:
                trainer.advance()
        assert error.value.exit_code == 7 and path.name in trainer.last_good()


def digest(params: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


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
    assert all(seen["local"][update] == seen["ray"][update] for update in range(1, 9))
    with Trainer("a2c", **options, runtime="ray", run="again") as trainer:
        trainer.restore(path)
        while trainer.progress is None or trainer.progress.updates < 8:
            progress = trainer.advance()
            assert progress.updates <= 4 or digest(progress.params) == seen["local"][progress.updates]
