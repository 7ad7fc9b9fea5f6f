"""Evolution is bit-reproducible, whoever evaluates and whoever is lost, and nothing that grows with the network travels."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from rookery import Trainer, envs
from rookery.algorithms.ars import ARS
from rookery.algorithms.es import ES
from rookery.algorithms.ppo import PPO
from rookery.networks import NetworkConfig
from rookery.run.config import ConfigError
from rookery.runtime.interface import WorkerLost
from rookery.runtime.local import LocalHandle, LocalRuntime
from rookery.testing import checkpointed
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.evolution import Evolution
from rookery.topologies.job import Job
from rookery.topologies.sync import Sync
from rookery.types import Agent
from rookery.workers.acting.evolution_worker import EvolutionWorker, digest

SMALL = NetworkConfig(hidden=(4,))
ALGORITHMS = {
    "es": ES(network=SMALL, sigma=0.5, learning_rate=0.1, max_episode_steps=30),
    "ars": ARS(sigma=0.5, learning_rate=0.1, max_episode_steps=30, best=3),
}
ONE = Evolution(population=12, num_envs=3)


class Step(NamedTuple):
    """What one generation left behind."""

    params: bytes
    env_steps: int
    returns: tuple[float, ...]
    mean: float


@cache
def agent_of(name: str) -> Agent:
    return ALGORITHMS[name].build(envs.spec_of("CartPole-v1"))


def run(
    agent: Agent, topology: Evolution, updates: int, *, runtime: Any = None, seed: int = 0, save_at: int = -1,
    snapshot: Any = None, until: Callable[[], bool] = lambda: True,
) -> tuple[list[Step], Any, Any]:  # fmt: skip
    make = lambda num_envs, groups: envs.make("CartPole-v1", num_envs, groups=groups)
    driver = topology.drive(Job(agent, envs.spec_of("CartPole-v1"), make, runtime or LocalRuntime(), seed), snapshot)
    steps, saved, returns, progress = [], None, [], None  # type: list[Step], Any, list[float], Any
    before = int(snapshot["meters"]["updates"]) if snapshot else 0
    for progress in driver:
        returns += [episode.total_reward for episode in progress.finished]
        if progress.updates == len(steps) + before:
            continue  # a sign of life
        mean = progress.report["population_return_mean"]
        steps.append(Step(digest(progress.params), progress.env_steps, tuple(returns), mean))
        returns = []
        if progress.updates == save_at:
            saved = checkpointed(progress.snapshot())
        if progress.updates >= updates and until():
            break
    driver.close()
    return steps, saved, progress


@cache
def undisturbed(name: str) -> tuple[list[Step], Any, Any]:
    return run(agent_of(name), ONE, 6, save_at=3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_runs_of_a_seed_are_the_same_bit_for_bit_and_another_seed_is_not(name: str) -> None:
    steps, _, progress = undisturbed(name)
    assert run(agent_of(name), ONE, 6)[0] == steps
    assert len({step.params for step in steps}) == 6 and any(step.returns for step in steps)
    assert progress.trained_steps == progress.env_steps == steps[-1].env_steps > steps[0].env_steps
    other, _, _ = run(agent_of(name), ONE, 1, seed=1)
    assert other[0].mean != steps[0].mean and other[0].params != steps[0].params


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_is_restored_goes_on_as_the_one_that_was_saved(name: str) -> None:
    steps, saved, progress = undisturbed(name)
    rest, _, resumed = run(agent_of(name), ONE, 6, snapshot=saved)
    assert rest == steps[3:]
    started = {"parameters": 1}  # the resumed worker is given them, too
    assert Counter(resumed.items) == Counter(progress.items) + Counter(started)


def test_the_number_of_workers_changes_nothing() -> None:
    steps, _, _ = undisturbed("es")
    many, _, progress = run(agent_of("es"), Evolution(population=12, num_envs=9, workers=3), 6)
    assert many == steps
    assert progress.workers == {"workers": 3, "workers_lost": 0, "shares_lost": 0}


def test_the_edges_that_a_run_counts_are_those_of_its_graph() -> None:
    agent, (_, _, progress) = agent_of("es"), undisturbed("es")
    edges = {edge.name: edge for edge in ONE.plan({"main": agent}, envs.spec_of("CartPole-v1")).edges}
    assert set(progress.items) == set(edges)
    assert progress.items == {"scores": 6 * 4, "generations": 6, "parameters": 1}
    assert {"staleness_mean", "staleness_max", "sample_reuse"} <= set(progress.report)


# ------------------------------------------------------------------------------------------ losses and late answers


class Watched(LocalRuntime):
    """Workers whose calls the test may spoil: `spoil(name, method, number of the call) -> WorkerLost or None`."""

    def __init__(self, spoil: Callable[[str, str, int], BaseException | None] = lambda *_: None, worker: Any = None) -> None:
        super().__init__()
        self.spoil, self.worker, self.calls = spoil, worker, Counter()  # type: Any, Any, Counter[str]
        self.wire: list[tuple[str, int, int]] = []  # method, generation, bytes of what is passed or answered (by any thread)
        self.spawned = 0

    def spawn(self, worker: Any, *args: Any, name: str, role: str = "", **kwargs: Any) -> Any:
        if role != "worker":
            return super().spawn(worker, *args, name=name, role=role, **kwargs)
        self.spawned += 1
        self.wire.append(("state", 0, len(pickle.dumps(kwargs["state"]))))
        return Spoiled(self, super().spawn(self.worker or worker, *args, name=name, role=role, **kwargs))


class Spoiled:
    def __init__(self, runtime: Watched, handle: LocalHandle) -> None:
        self.runtime, self.handle, self.name, self.ready = runtime, handle, handle.name, handle.ready
        self.kill, self.lost = handle.kill, None  # type: Any, BaseException | None

    def call(self, asked: Callable[..., Any], *args: Any) -> Future:
        runtime, method = self.runtime, asked.__name__
        runtime.calls[self.name, method] += 1  # type: ignore[index]
        self.lost = self.lost or runtime.spoil(self.name, method, runtime.calls[self.name, method])  # type: ignore[index]
        generation = args[0] if method == "evaluate" else getattr(args[0], "number", 0)
        note = lambda what: runtime.wire.append((method, generation, len(pickle.dumps(what))))
        note(args)
        if self.lost is not None:
            future: Future = Future()
            future.set_exception(self.lost)
            return future
        answer = self.handle.call(asked, *args)
        answer.add_done_callback(lambda f: None if f.cancelled() else note(f.result()))
        return answer


def test_a_worker_that_is_lost_is_replaced_and_its_share_evaluated_by_others() -> None:
    def spoil(name: str, method: str, call: int) -> BaseException | None:
        dies = (name, method, call) in {("worker-0", "evaluate", 2), ("worker-1", "learn", 3), ("worker-0", "evaluate", 6)}
        return WorkerLost(f"{name} was killed") if dies else None

    runtime = Watched(spoil)
    filled = lambda: runtime.spawned == 5  # six updates may be over while the last place waits to be filled again
    topology = Evolution(population=12, num_envs=6, workers=2)
    steps, _, progress = run(agent_of("es"), topology, 6, runtime=runtime, until=filled)
    assert steps[:6] == undisturbed("es")[0], "the update is the same, to the bit"
    assert progress.workers["workers_lost"] == 3 and runtime.spawned == 5
    assert progress.items["parameters"] == 5, "a replacement is given the parameters once"


def test_the_loss_of_the_only_worker_does_not_hang_the_run() -> None:
    dies = lambda name, method, call: WorkerLost("killed") if method == "evaluate" and call in (3, 4, 9) else None
    steps, _, progress = run(agent_of("es"), ONE, 6, runtime=Watched(dies))
    assert steps == undisturbed("es")[0] and progress.workers["workers_lost"] == 3


def test_answers_of_an_older_generation_are_dropped_and_counted() -> None:
    """worker-1 is slow: a backup answers in its place, and its own answer comes a generation late."""
    late = threading.Event()

    class Slow(EvolutionWorker):
        def evaluate(self, generation: int, share: int) -> Any:
            score = super().evaluate(generation, share)
            if generation == 1 and threading.current_thread().name == "worker-1" and not late.is_set():
                assert late.wait(60)
            elif generation == 2:
                late.set()
            return score

    topology = Evolution(population=12, num_envs=6, workers=2, backups=True)
    steps, _, progress = run(agent_of("es"), topology, 6, runtime=Watched(worker=Slow))
    assert steps == undisturbed("es")[0]
    assert progress.report["scores_dropped"] >= 1 and progress.workers["workers_lost"] == 0
    assert progress.items["scores"] == 24 + progress.report["scores_dropped"]


def test_a_copy_that_has_come_apart_is_found_out_and_given_the_learners_state() -> None:
    class Drifting(EvolutionWorker):
        def learn(self, generation: Any) -> None:
            super().learn(generation)
            if generation.number == 2:
                state = self._learner._state
                self._learner._state = state._replace(params=jax.tree.map(lambda x: x * 1.001, state.params))
                self._digest = digest(self._learner.params)

    steps, _, progress = run(agent_of("es"), ONE, 6, runtime=Watched(worker=Drifting))
    assert steps == undisturbed("es")[0]
    assert progress.report["copies_mended"] == 1 and progress.items["parameters"] == 2


# ------------------------------------------------------------------------------------------------------- the wire


def wire(hidden: tuple[int, ...]) -> Counter[str]:
    """Bytes by method, of the two generations that are awaited; a third is asked for before the run ends."""
    algorithm = ES(network=NetworkConfig(hidden=hidden), max_episode_steps=5)
    runtime = Watched()
    run(algorithm.build(envs.spec_of("CartPole-v1")), Evolution(population=8, num_envs=4, workers=2), 2, runtime=runtime)
    found: Counter[str] = Counter()
    for method, generation, size in runtime.wire:
        found[method] += size if generation < 2 else 0
    return found


def test_the_bytes_of_a_generation_do_not_depend_on_the_network() -> None:
    small, large = wire((4,)), wire((200, 200))
    assert abs(small["learn"] - large["learn"]) < 64 and large["learn"] > 2 * 2 * 8 * 4  # how long a number is written varies
    assert abs(small["evaluate"] - large["evaluate"]) < 64 and large["evaluate"] < 100_000
    assert large["state"] > 2 * 4 * 41_000 > 10 * small["state"], "parameters travel once, to each of two workers"
    assert set(large) == {"state", "evaluate", "learn"}, "and nothing else does"


def test_updates_do_not_depend_on_the_number_of_cores() -> None:
    """Workers on a cluster have one core each, the learner all of them: their copies must not come apart."""
    code = """
from rookery.run import startup
startup.prepare()
import numpy as np
from rookery import envs
from rookery.algorithms.es import ES
from rookery.networks import NetworkConfig
from rookery.workers.acting.evolution_worker import Generation, digest
from rookery.workers.learning.learner import Learner
from rookery.algorithms.perturbed import Seen
agent = ES(network=NetworkConfig(hidden=(256, 256))).build(envs.spec_of("CartPole-v1"))
learner = Learner(agent, seed=0)
rng = np.random.default_rng(0)
state = {"state": {k: rng.normal(size=v.shape).astype(v.dtype) for k, v in learner.snapshot()["state"].items()}, "version": 0}
state["state"] |= {k: np.abs(v) for k, v in state["state"].items() if "optimizer" in k or "m2" in k or "count" in k}
learner = Learner(agent, seed=0, snapshot=state)
for number in range(3):
    seen = Seen(np.full((1, 64), 9, np.float32), *rng.random((2, 1, 64, 4)).astype(np.float32))
    total = rng.normal(size=64).astype(np.float32)
    learner.learn(Generation(number, total, np.full(64, 9, np.int32), {"seen": (seen,)}).batch())
print(digest(learner.params).hex())
"""
    root = Path(__file__).parents[2]
    found = set()
    for cores in ({"NPROC": "1"}, {}):
        environment = {name: value for name, value in os.environ.items() if name != "NPROC"} | cores
        there = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, timeout=200
        )
        assert there.returncode == 0, there.stderr
        found.add(there.stdout.strip())
    assert len(found) == 1


# --------------------------------------------------------------------------------------------------------- refusals

REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no whole episodes": (PPO(), Evolution(), {}, "Evolution cannot drive PPO: .* use Sync"),
    "fixed rollouts": (ES(), Sync(), {}, "Sync cannot drive ES: .* use Evolution"),
    "fixed rollouts, decoupled": (ARS(), ActorLearner(), {}, "ActorLearner cannot drive ARS: .* use Evolution"),
    "clipped": (ES(), Evolution(), {"env_options": {"reward_clip": 1.0}}, "drop reward_clip and reward_scale"),
    "odd": (ES(), Evolution(population=7), {}, "come in pairs; try --population 8"),
    "unshared": (ES(), Evolution(num_envs=3, workers=2), {}, "cannot be shared by --workers 2: try --num-envs 2"),
    "uncut": (ES(), Evolution(population=64, num_envs=48), {}, "shares of 48 environments .*: try --num-envs 32"),
    "no so many": (ARS(best=9), Evolution(population=16, num_envs=8), {}, "--best 9: .* only 8 directions"),
    "alone": (ES(), Evolution(population=1), {}, "--population 1: it must be at least 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused_with_what_can(case: str) -> None:
    algorithm, topology, options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        Trainer(algorithm, env="CartPole-v1", topology=topology, **options)


def test_devices_are_refused() -> None:
    job = Job(agent_of("es"), envs.spec_of("CartPole-v1"), lambda n, g: envs.make("CartPole-v1", n), LocalRuntime(), 0, 2)
    with pytest.raises(ValueError, match=r"--devices 2: .* use --workers"):
        next(ONE.drive(job))


@pytest.mark.parametrize("name, env, options", [
    ("es", "identity", {"sigma": 0.3, "learning_rate": 0.1, "network": {"hidden": ()}, "population": 64, "num_envs": 32}),
    ("ars", "point-reach", {"population": 32, "num_envs": 16, "best": 8, "sigma": 0.1, "learning_rate": 0.2}),
])  # fmt: skip
def test_learns_a_toy(name: str, env: str, options: dict[str, Any], tmp_path: Path) -> None:
    bars = {"identity": 7.0, "point-reach": -8.0}
    with Trainer(name, env=env, runs=str(tmp_path), total_steps=100_000, max_episode_steps=30, stop_eval_return=bars[env],
                 eval_every=5, **options) as trainer:  # fmt: skip
        for _ in trainer:
            pass
        assert trainer.eval_return_mean is not None and trainer.eval_return_mean >= bars[env]
