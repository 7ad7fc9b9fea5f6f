"""What is done about numbers of environments that are not finite: stop, drop-episode, clip (fault 11)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SMALL, rookery
from looping_envs import Infinite

from rookery import envs
from rookery.envs import EnvironmentFailed, Restarts
from rookery.envs.pools.pool import UNBOUNDED, OnNan, clipped
from rookery.envs.processes import fork_server

PROCESSES = [0, pytest.param(1, marks=pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux"))]


def played(on_nan: OnNan, processes: int, steps: int = 40, **options: Any) -> tuple[list[Any], Restarts]:
    """Plays two of them. -> every answer, copied, and who rebuilt."""
    pool = envs.make(partial(Infinite, **options), 2, processes=processes, on_nan=on_nan)
    restarts, answers = Restarts(pool, allowed=3), []
    restarts.reset(0)
    try:
        for _ in range(steps):
            pool.send(np.zeros(2, int))
            step = restarts.recv()
            answers.append((step.observation.copy(), step.reward.copy(), step.first.copy()))
        return answers, restarts
    finally:
        pool.close()


@pytest.mark.parametrize("processes", PROCESSES)
def test_stop_ends_it_at_once_and_names_the_place_and_the_options(processes: int) -> None:
    said = r"environment 0 .* step 7: observation is not finite at index \(1,\) after action 0[\s\S]*--on-nan drop-episode"
    with pytest.raises(EnvironmentFailed, match=said):
        played("stop", processes)


@pytest.mark.parametrize("processes", PROCESSES)
def test_drop_episode_cuts_it_and_shows_nothing_that_is_not_finite(processes: int) -> None:
    answers, restarts = played("drop-episode", processes, at=11)
    assert all(np.isfinite(observation).all() and np.isfinite(reward).all() for observation, reward, _ in answers)
    kinds = {incident.kind for incident in restarts.take()}
    assert kinds == {"dropped"} and sum(first.sum() for *_, first in answers) >= 4


def test_an_environment_that_never_gets_anywhere_is_not_dropped_for_ever() -> None:
    with pytest.raises(EnvironmentFailed, match="--env-restarts"):
        played("drop-episode", 0, at=2)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize(("what", "becomes"), [(float("nan"), 0.0), (float("inf"), 1.0), (float("-inf"), -1.0)])
def test_clip_replaces_what_is_not_finite_by_the_bounds_of_its_space(processes: int, what: float, becomes: float) -> None:
    answers, restarts = played("clip", processes, what=what)
    assert answers[6][0][:, 1].tolist() == [becomes] * 2, "the seventh step"
    (incident,) = restarts.take()
    assert incident.kind == "clipped" and incident.times == 10, "steps 7, 14, ... 35 of two environments"


def test_what_has_no_bound_becomes_large_but_its_square_is_finite() -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, 3.0], np.float32)
    assert clipped(numbers).tolist() == [0.0, UNBOUNDED, -UNBOUNDED, 3.0]
    assert clipped(numbers, low=2.0, high=5.0).tolist() == [2.0, 5.0, 2.0, 3.0]
    assert np.isfinite(np.square(clipped(numbers))).all()


@pytest.mark.parametrize(("policy", "counter"), [("stop", None), ("drop-episode", "env_dropped"), ("clip", "env_clipped")])
def test_a_whole_run_counts_it_and_learns_from_finite_numbers_alone(tmp_path: Path, policy: str, counter: str | None) -> None:
    options = ("--on-nan", policy, "--env-processes", "0", "--env-options", "where=reward", "at=30", "--total-steps", "600")
    ended = rookery("train", "a2c", "--env", "Infinite-v0", *options, *SMALL, cwd=tmp_path)
    assert ended.status == (0 if counter else 3), ended.err
    if counter is None:
        assert "reward is not finite" in ended.err and "--on-nan clip" in ended.err
    else:
        row = json.loads((tmp_path / "runs" / "x" / "metrics.jsonl").read_text().splitlines()[-1])
        assert row[counter] >= 10 and row["env_failures"] == 0 and np.isfinite(row["return_mean"])
