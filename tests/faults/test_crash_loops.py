"""Crash loops and hangs end a run soon, with status 3 and the reason, and say so before (faults 2, 9 and 10 of the list).

ROOKERY_FAULT_COUNT=5 pytest tests/faults/test_crash_loops.py   # each ending so many times
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SMALL, rookery
from looping_envs import Looping

from rookery import envs
from rookery.envs import EnvironmentFailed, Restarts
from rookery.envs.pools.restarts import GOOD_STEPS
from rookery.envs.processes import fork_server
from rookery.runtime.roster import Exhausted, Life, Roster, Terms
from rookery.supervision import Budget
from rookery.types import EnvPool

COUNT = int(os.environ.get("ROOKERY_FAULT_COUNT", "1"))
needs_processes = pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")


def seconds_of(log: Path) -> float:
    """Between the first line of a log and the last."""
    times = [datetime.fromisoformat(line[:19]) for line in log.read_text().splitlines() if re.match(r"\d{4}-", line)]
    return (times[-1] - times[0]).total_seconds()


@needs_processes
@pytest.mark.parametrize("attempt", range(COUNT))
@pytest.mark.parametrize("system", ["a2c", "impala"])
def test_an_environment_that_always_exits_ends_the_run_soon(tmp_path: Path, system: str, attempt: int) -> None:
    options = ("--env-processes", "2", "--seed", str(attempt))
    ended = rookery("train", system, "--env", "Looping-v0", *options, *SMALL, cwd=tmp_path)
    assert ended.status == 3, ended.err
    assert ended.result["status"] == "failed" and seconds_of(tmp_path / "runs" / "x" / "log.txt") < 15
    assert "exited with status 9" in ended.err and "environment" in ended.err and "--env-restarts" in ended.err
    assert "Traceback" not in ended.err and "checkpoint" in ended.err


@pytest.mark.parametrize("attempt", range(COUNT))
def test_one_that_always_raises_ends_it_with_its_traceback_in_the_log(tmp_path: Path, attempt: int) -> None:
    options = ("--env-options", "ending=raise", "--env-processes", "1") if fork_server.supported() else ("--env-processes", "0")
    ended = rookery("train", "a2c", "--env", "Looping-v0", *options, *SMALL, "--seed", str(attempt), cwd=tmp_path)
    assert ended.status == 3 and "the simulator is gone" in ended.err, ended.err
    assert "Traceback" in (tmp_path / "runs" / "x" / "log.txt").read_text()


def test_one_that_hangs_in_process_is_told_of_and_ends_the_run(tmp_path: Path) -> None:
    options = ("--env-options", "ending=hang", "at=500", "--env-processes", "0", "--env-step-seconds", "12")
    ended = rookery("train", "a2c", "--env", "Looping-v0", *options, *SMALL, "--checkpoint-every", "5", cwd=tmp_path)
    assert ended.status == 3, ended.err
    said = "'Looping-v0', environment 0 (incarnation 0), step 500: step() has not returned for"
    log = (tmp_path / "runs" / "x" / "log.txt").read_text()
    assert re.search(re.escape(said) + r" 1[0-2] s", log) and "--env-processes" in log
    assert f"{said} 12 s" in ended.err and "Last good checkpoint" in ended.err and "rookery resume" in ended.err
    assert ended.result["status"] == "failed" and "has not returned" in ended.result["reason"]


# ------------------------------------------------------------------------------------------------- the one rule


def test_a_budget_is_spent_by_losses_and_refilled_by_progress_alone() -> None:
    budget = Budget(2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn(0.5)
    assert not budget.spend() and budget.in_a_row == 2
    budget.earn(0.5)
    assert budget.spend()
    budget.earn(100)
    assert [budget.spend() for _ in range(3)] == [True, True, False] and not Budget(0).spend()


def play(restarts: Restarts, pool: EnvPool, steps: int) -> None:
    for _ in range(steps):
        pool.send(np.zeros(pool.num_envs, int))
        restarts.recv()


@pytest.mark.parametrize(("at", "survives"), [(3, False), (GOOD_STEPS // 2, False), (GOOD_STEPS + 2, True)])
def test_failures_are_held_against_the_steps_between_them(at: int, survives: bool) -> None:
    pool = envs.make(partial(Looping, "raise", at), 2)
    restarts = Restarts(pool, allowed=4)
    restarts.reset(0)
    if survives:
        play(restarts, pool, 40 * at)
        assert len(restarts.take()) >= 70
    else:
        with pytest.raises(EnvironmentFailed, match=r"the simulator is gone[\s\S]*rebuilt 4 times \(--env-restarts\)"):
            play(restarts, pool, 40 * at)


class ShortEpisodes(Looping):
    """One whole episode, of two steps; the next one raises."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.steps == 2, False, info


def test_a_whole_episode_makes_up_for_every_failure_before_it() -> None:
    pool = envs.make(partial(ShortEpisodes, "raise", 3), 1)
    restarts = Restarts(pool, allowed=1)
    restarts.reset(0)
    play(restarts, pool, 300)
    assert len(restarts.take()) >= 30


def lives(roster: Roster, number: int, answers: int) -> None:
    """So many lives of the only place, each lost after so many answers, and a long time apart."""
    for life in (Life(0, n) for n in range(number)):
        now = 1000.0 * life.number
        roster.plan(now)
        roster.ready(life, now)
        for _ in range(answers):
            roster.asked(life, now)
            roster.answered(life, now)
        roster.lost(life, now, "killed")


def test_a_place_in_a_fleet_is_held_to_the_same_rule() -> None:
    """However far apart the losses are: back-off cannot keep them below the budget."""
    lives(Roster(Terms(losses=3, good_calls=2)), 50, answers=2)
    with pytest.raises(Exhausted, match=r"lost 4 times without enough answers in between\. The last time: killed"):
        lives(Roster(Terms(losses=3, good_calls=2)), 50, answers=1)
