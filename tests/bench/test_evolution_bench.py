"""The bench of evolution on a toy: both arms play the same members, and the record says what was compared."""

import pytest

from rookery_bench import evolution


def test_both_arms_play_every_member_and_whole_episodes() -> None:
    options = evolution.Options(env="identity", population=8, num_envs=4, workers=2, generations=1, seconds=0.05, rounds=1)
    arms = evolution._arms(options)
    assert arms[evolution.BATCH]() == (8, 8 * 8)  # episodes of the toy have 8 steps
    assert [arms[evolution.ALONE]() for _ in range(2)] == [(1, 8)] * 2


def test_the_record_has_medians_and_the_bar() -> None:
    rates = {evolution.BATCH: (40.0, 60.0, 50.0), evolution.ALONE: (5.0, 11.0, 10.0)}
    runs = [
        {"arm": arm, "round": i, "evaluations_per_s": rate, "steps_per_s": 10 * rate, "episode_length": 10.0}
        for arm, found in rates.items()
        for i, rate in enumerate(found)
    ]
    record = evolution.summarise(evolution.Options(), {"date": "2026-01-01"}, runs)
    (verdict,) = record.verdicts
    assert verdict.value == pytest.approx(5.0) and verdict.met and verdict.bar == 5.0
    assert record.rows[0]["evaluations_per_s"] == 50.0 and record.command.startswith("rookery bench evolution es --env Cart")


def test_what_is_timed_is_counted() -> None:
    calls = iter([(4, 40), (4, 20)])
    found = evolution.timed(lambda: next(calls), 0.0)
    assert found["episode_length"] == 10 and found["steps_per_s"] == pytest.approx(10 * found["evaluations_per_s"])
