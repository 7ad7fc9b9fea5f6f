"""Many learners are one: in what they learn, in what they say, and when one of them is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from rookery import Trainer, envs
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.qt_opt import QTOpt
from rookery.algorithms.vtrace import VTrace
from rookery.data import arrays
from rookery.networks import NetworkConfig
from rookery.run import startup
from rookery.run.assemble import assemble
from rookery.run.config import ConfigError, resolve
from rookery.runtime.interface import WorkerLost
from rookery.runtime.local import LocalRuntime
from rookery.runtime.roster import Exhausted
from rookery.types import Batch, Rollout
from rookery.workers.acting.collector import Collector
from rookery.workers.learning import learners
from rookery.workers.learning.learner import Learner, Update
from rookery.workers.learning.learner_rank import BatchShare, LearnerRank, PeerLost
from rookery.workers.learning.learners import Learners

# --------------------------------------------------------------------------------- two processes are one learner

SMALL, LSTM = NetworkConfig(hidden=(8,)), NetworkConfig(hidden=(8,), core="lstm", core_size=4)
CASES = {
    "ppo": PPO(rollout_length=8, epochs=2, minibatches=2, normalise_observations=True, normalise_rewards=True, network=SMALL),
    "impala": VTrace(rollout_length=8, network=LSTM),
    "dqn": DQN(rollout_length=1, gradient_steps=2, num_atoms=5, network=SMALL),
}
B = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[Any]]:
    """Two processes that have joined; each test gives them another agent."""
    runtime = LocalRuntime(apart={"learner": 2}, prepare=startup.prepare)
    handles = [runtime.spawn(LearnerRank, name=f"learner-{i}", role="learner") for i in range(2)]
    address = handles[0].call(LearnerRank.address).result(120)
    for joined in [handle.call(LearnerRank.join, address, i, 2, None) for i, handle in enumerate(handles)]:
        joined.result(120)
    yield handles
    runtime.close()
    assert not runtime.abandoned


def _of_the_update(report: dict[str, float]) -> dict[str, float]:
    """Without what is looked at now and then, by the clock of whoever looks."""
    return {name: value for name, value in report.items() if not name.startswith("health/")}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns_from_the_whole_batch(case: str, ranks: list[Any]) -> None:
    agent = CASES[case].build(envs.spec_of("CartPole-v1"), num_updates=10)
    collector = Collector(agent, lambda: envs.make("CartPole-v1", B))
    alone = Learner(agent, seed=3)
    begun = [rank.call(LearnerRank.begin, agent, 3, 1, 0, None) for rank in ranks]
    assert [future.result(120) is None for future in begun] == [False, True]
    before = None
    for _ in range(3):
        collector.publish(*alone.published())
        rollout = collector.collect().rollout
        rollout = rollout._replace(discount=rollout.discount * np.float32(0.99))
        weight = np.linspace(0.5, 1.5, B).astype(np.float32)
        one = alone.learn(Batch(rollout, weight, np.zeros(B, np.int64)))
        halves = [slice(0, B // 2), slice(B // 2, B)]
        calls = [
            rank.call(LearnerRank.learn, [arrays.columns(rollout, half)], [BatchShare(0, B // 2)], weight[half], 1.0)
            for rank, half in zip(ranks, halves)
        ]
        first, second = (call.result(120) for call in calls)
        before = before or one.params
        assert second.params is None and second.report == {} and first.version == second.version == one.version
        assert first.trained_steps + second.trained_steps == one.trained_steps
        assert _of_the_update(first.report) == pytest.approx(_of_the_update(one.report), rel=1e-3, abs=1e-5)
        paths = jax.tree_util.tree_leaves_with_path(one.params)
        for (path, mine), theirs in zip(paths, jax.tree.leaves(first.params)):
            if ".lost" not in jax.tree_util.keystr(path):  # that is rounding itself
                np.testing.assert_allclose(theirs, mine, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))
        if one.priorities is not None:
            np.testing.assert_allclose(first.priorities, one.priorities, rtol=1e-3, atol=1e-5)
    moved = [float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(*map(jax.tree.leaves, (before, one.params)))]
    assert max(moved) > 1e-4, "the comparison would be of nothing"


def test_of_two_processes_that_fit_labels_the_first_brings_the_target_networks_along(ranks: list[Any]) -> None:
    """What Bellman updaters label with: the same as one learner's, on the whole batch."""
    algorithm = QTOpt(batch_size=B, gradient_steps=1, polyak=0.1, samples=8, elites=2, network=SMALL)
    agent = algorithm.build(envs.spec_of("point-reach"), num_updates=10)
    collector, alone = Collector(agent, lambda: envs.make("point-reach", B)), Learner(agent, seed=3, shares_slow=True)
    for begun in [rank.call(LearnerRank.begin, agent, 3, 1, 0, None, True) for rank in ranks]:
        begun.result(120)
    collector.publish(*alone.published())
    rollout = collector.collect().rollout
    rollout = rollout._replace(extras={"target": np.linspace(-3, 3, B, dtype=np.float32)[None]})
    weight = np.ones(B, np.float32)
    one = alone.learn(Batch(rollout, weight, np.zeros(B, np.int64)))
    first, second = (
        call.result(120)
        for call in [
            rank.call(LearnerRank.learn, [arrays.columns(rollout, half)], [BatchShare(0, B // 2)], weight[half], 1.0)
            for rank, half in zip(ranks, (slice(0, B // 2), slice(B // 2, B)))
        ]
    )
    assert second.slow is None
    told = ranks[0].call(LearnerRank.slow).result(120)
    for mine, theirs, again in zip(*map(jax.tree.leaves, (one.slow, first.slow, told)), strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(theirs, again)
    assert first.report["loss/critic"] == pytest.approx(one.report["loss/critic"], rel=1e-3)


# -------------------------------------------------------------------------------------- lost, with fakes of a rank


class FakeRank:
    """Counts like a LearnerRank, in a thread; `plan` says what its calls do instead."""

    plan: ClassVar[dict[tuple[str, int], Any]]  # (method, how often it was called by then) -> what is raised
    seen: ClassVar[list[tuple[str, Any]]]
    calls: ClassVar[dict[str, int]]

    def _called(self, method: str, what: Any = None) -> None:
        number = self.calls[method] = self.calls.get(method, 0) + 1
        self.seen.append((method, what))
        if (error := self.plan.pop((method, number), None)) is not None:
            raise error

    def address(self) -> str:
        return "here:1"

    def join(self, *args: Any) -> None:
        self._called("join")

    def begin(self, agent: Any, seed: int, devices: int, version: int, snapshot: Any, shares_slow: bool) -> Any:
        self._called("begin", (version, snapshot))
        self.version, self.state = version, 0 if snapshot is None else int(snapshot["state"])
        return {"x": np.full(1, self.state)}

    def warm_up(self, specs: Rollout) -> None:
        self._called("warm_up")

    def learn(self, rollouts: list[Any], shares: list[BatchShare], weight: np.ndarray, discount: float) -> Update:
        self._called("learn", float(rollouts[0].reward.sum()))
        self.version, self.state = self.version + 1, self.state + 1
        return Update(self.version, {"x": np.full(1, self.state)}, {}, None, 4, 1.0, 2, 0.0, 0.0)

    def snapshot(self) -> Any:
        return {"state": self.state, "version": self.version}

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuntime]:
    FakeRank.plan, FakeRank.seen, FakeRank.calls = {}, [], {}
    monkeypatch.setattr(learners, "LearnerRank", FakeRank)
    runtime = LocalRuntime()
    yield runtime
    runtime.close()


def group(runtime: LocalRuntime, losses: dict[str, int], count: int = 2) -> Learners:
    return Learners(runtime, None, seed=0, count=count, devices=1, snapshot=None, losses=losses)  # type: ignore[arg-type]


def batch(number: float) -> Batch:
    row = np.full((1, 4), number, np.float32)
    rollout = Rollout(row, row, row, row, row, {}, (), row, row[0], row[0])
    return Batch(rollout, np.ones(4, np.float32), ())


def test_after_a_loss_all_go_on_from_the_last_copy_and_versions_never_go_down(fake: LocalRuntime) -> None:
    losses = {"learners_lost": 0, "updates_lost": 0}
    many = group(fake, losses)
    versions = [many.learn(batch(1)).version, many.learn(batch(2)).version]
    many.snapshot()  # a checkpoint: two updates
    versions.append(many.learn(batch(3)).version)
    FakeRank.plan["learn", 8] = WorkerLost("killed")  # the fourth update of one of the two
    update = many.learn(batch(4))
    versions.append(update.version)
    assert versions == [1, 2, 3, 4] and losses == {"learners_lost": 1, "updates_lost": 1}
    assert int(update.params["x"][0]) == 3, "updates 1 and 2, and the batch in hand: the third is lost"
    assert many.published()[1] == 4 and many.snapshot() == {"state": 3, "version": 4}
    begun = [what for method, what in FakeRank.seen if method == "begin"]
    assert begun == [(0, None)] * 2 + [(3, {"state": 2, "version": 2})] * 2
    assert [what for method, what in FakeRank.seen if method == "learn"][-2:] == [8.0, 8.0], "the batch in hand, again"


@pytest.mark.parametrize("at", [("begin", 3), ("join", 4), ("learn", 3)])
def test_a_loss_while_they_start_again_is_another_try(fake: LocalRuntime, at: tuple[str, int]) -> None:
    losses = {"learners_lost": 0, "updates_lost": 0}
    many = group(fake, losses)
    FakeRank.plan["learn", 2], FakeRank.plan[at] = PeerLost("broken"), WorkerLost("killed again")
    assert many.learn(batch(1)).version == 1
    assert losses == {"learners_lost": 2, "updates_lost": 0}


def test_too_many_losses_end_the_run(fake: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "LOSSES", 2)
    many = group(fake, losses := {"learners_lost": 0, "updates_lost": 0})
    FakeRank.plan |= {("learn", n): WorkerLost("the reason") for n in range(1, 12)}
    with pytest.raises(Exhausted, match="the reason") as error:
        many.learn(batch(1))
    assert error.value.exit_code == 7 and losses["learners_lost"] == 3


def test_what_a_rank_raises_itself_is_no_loss(fake: LocalRuntime) -> None:
    many = group(fake, losses := {"learners_lost": 0, "updates_lost": 0})
    FakeRank.plan["learn", 1] = ArithmeticError("not a number")
    with pytest.raises(ArithmeticError):
        many.learn(batch(1))
    assert losses["learners_lost"] == 0


def test_what_is_said_of_an_update_is_of_all_columns(fake: LocalRuntime) -> None:
    update = group(fake, {"learners_lost": 0, "updates_lost": 0}).learn(batch(1))
    assert update.trained_steps == 8 and update.lag_mean == 1.0 and update.lag_max == 2


# ------------------------------------------------------------------------------------------------------ for real


def test_a_killed_rank_is_noticed_and_training_goes_on_and_resumes(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(
        env="CartPole-v1", num_envs=4, groups=1, rollout_length=5, network={"hidden": (4,)}, runs=str(tmp_path),
        eval_episodes=0, total_steps=10**7, checkpoint_every=10**6,
    )  # fmt: skip
    with Trainer("impala", **options, learners=2, run="many") as trainer:
        while trainer.advance().updates < 3:
            pass
        pids = _children(trainer)
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        killed, version = time.monotonic(), trainer.progress.version
        while trainer.advance().workers["learners_lost"] == 0:
            assert time.monotonic() - killed < 20, "by the error of its call, not by a time-out"
            assert trainer.progress.version >= version
            version = trainer.progress.version
        while trainer.advance().updates < version + 3:
            assert trainer.progress.version >= version
        assert trainer.progress.workers["updates_lost"] <= version
        path = trainer.save()
        pids += _children(trainer)
    assert not [pid for pid in set(pids) if Path(f"/proc/{pid}").exists()], "nothing is left"
    with Trainer("impala", **options, run="one") as trainer:  # and where there are no learners of their own
        trainer.restore(path)
        saved = trainer.advance().updates
        assert saved >= version + 3
        while trainer.advance().updates < saved + 2:
            pass


def _children(trainer: Trainer) -> list[int]:
    return [handle._worker.pid for handle in trainer._runtime._children if not handle._stopped]


def test_shares_that_cannot_be_equal_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 columns \(environments\), which --learners 3 .* multiple of 3"):
        assemble(resolve("ppo", env="CartPole-v1", num_envs=8, learners=3))
    with pytest.raises(ConfigError, match=r"512 columns \(samples\), which --learners 5 "):
        assemble(resolve("dqn", env="CartPole-v1", learners=5))
    with pytest.raises(ConfigError, match=r"--learner.* need --runtime ray"):
        assemble(resolve("ppo", env="CartPole-v1", learner={"cpus": 2.0}))
    with pytest.raises(ConfigError, match="--learners 0: it must be at least 1"):
        assemble(resolve("ppo", env="CartPole-v1", learners=0))
    assert assemble(resolve("ppo", env="CartPole-v1", num_envs=8, learners=2, devices=2)).plan.counts["learner"] == 2
    assert resolve("ppo", env="CartPole-v1", runtime="ray", learner={"gpus": 1.0}).run.learner_processes == 1
