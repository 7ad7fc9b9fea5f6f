"""The ledger finds what is learned from twice, left out or out of order; and who came and went is noted."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.data.chunks import INCARNATIONS
from rookery.runtime.interface import WorkerLost
from rookery.types import Rollout
from rookery.workers.acting.collector import Collector
from rookery.workers.learning.learner import Learner
from rookery_bench.audit import Audited, Ledger

T = 4


def rollout(*columns: tuple[int, int, int]) -> Rollout:
    """columns: stream, step, version."""
    streams, steps, versions = (np.array(numbers) for numbers in zip(*columns))
    ones = np.ones((T, len(columns)), np.float32)
    return Rollout(None, None, ones, ones, ones, {}, (), np.broadcast_to(versions, ones.shape).copy(), streams, steps)


def judged(*rollouts: Rollout, waiting: tuple[Rollout, ...] = (), steps: int | None = None) -> list[str]:
    ledger = Ledger()
    for each in rollouts:
        ledger.write(each)
    trained = ledger.valid if steps is None else steps
    return ledger.closed(waiting, trained_steps=trained, env_steps=trained + sum(w.valid.size for w in waiting))


def test_steps_that_follow_each_other_in_any_order_are_right() -> None:
    assert judged(rollout((1, 0, 0), (2, 0, 0)), rollout((1, 8, 5), (2, 4, 1)), rollout((1, 4, 0), (2, 8, 1))) == []
    assert judged(rollout((1, 0, 0)), waiting=(rollout((1, 4, 0)),)) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (((1, 0, 0), (1, 4, 0), (1, 0, 0)), "steps 0 to 3 again"),
        (((1, 0, 0), (1, 8, 0), (1, 6, 0)), "steps 6 to 9 again"),
        (((1, 0, 0), (1, 8, 0)), "steps from 4 on are missing before 8"),
        (((1, 0, 3), (1, 4, 2)), "decided by version 2, the one before by 3"),
        (((INCARNATIONS * 7 + 3, 4, 0),), "environment 7, incarnation 3: steps from 0 on are missing"),
    ],
)
def test_what_is_wrong_is_found_and_named(columns: Any, said: str) -> None:
    found = judged(*(rollout(column) for column in columns))
    assert len(found) >= 1 and said in found[0]


def test_versions_that_go_back_in_a_rollout_and_counts_that_do_not_agree_are_wrong() -> None:
    odd = rollout((1, 0, 3))
    odd.version[2] = 1
    assert "go back" in judged(odd)[0]
    assert judged(rollout((1, 0, 0)), steps=9) == [
        "trained_steps is 9, but the ledger has 4", "env_steps is 9, but the ledger has 4"
    ]  # fmt: skip


class Runtime:
    name, patience, stores = "fake", None, False

    def spawn(self, worker: Any, *, name: str, role: str = "") -> Any:
        self.calls: list[Future] = []
        call = lambda method, *args: self.calls.append(Future()) or self.calls[-1]
        return SimpleNamespace(name=name, ready=Future(), call=call, fill=call, now=None, kill=None, keep=None)


def test_every_batch_on_its_way_to_the_learner_is_in_the_ledger_and_lives_are_timed() -> None:
    runtime = Audited(Runtime())  # type: ignore[arg-type]
    learner = runtime.spawn(None, name="learner", role="learner")  # type: ignore[arg-type]
    learner.call(Learner.learn, SimpleNamespace(rollout=rollout((1, 0, 0))))
    learner.call(Learner.snapshot)
    assert runtime.ledger.rows == 4 and runtime.ledger.incarnations == {0: [1]} and runtime.lives == []
    collector = runtime.spawn(None, name="collector-0", role="collector")  # type: ignore[arg-type]
    [life] = runtime.lives
    collector.ready.set_result(None)
    for answer in (1, 2, WorkerLost("killed")):
        future = collector.fill(Collector.collect, None)
        (future.set_exception if isinstance(answer, WorkerLost) else future.set_result)(answer)
    assert life.made is not None and life.answered is not None and life.lost is not None and life.answers == 2
    assert life.spawned <= life.made <= life.answered <= life.lost
