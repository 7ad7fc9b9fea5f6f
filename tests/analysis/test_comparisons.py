"""Which group is better, how sure that is, and in which words."""

import json
import math

import numpy as np
import pytest
from run_files import write_run

from rookery.analysis import compare, find, iqm, report
from rookery.analysis.verdicts import as_json
from rookery.run.directory import RunError


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def write(runs, system, scores, env="CartPole-v1", *, points=None, **more):
    """Write a run for each score, the return of its last row."""
    for seed, score in enumerate(scores):
        ends = points or [(100, 0.0), (200, score / 2), (300, score)]
        write_run(runs / f"{system}-{env}-{seed}", system=system, env=env, seed=seed, points=ends, **more)


def compared(runs, **question):
    return compare(find(["*"], root=runs), **question)


def test_clear_differences_are_said_to_be_clear_and_small_ones_not(runs):
    write(runs, "ppo", [10, 12, 14, 16, 18, 20])
    write(runs, "a2c", [1, 2, 3, 4, 5, 6])
    write(runs, "impala", [9, 13, 13, 17, 17, 21])
    text = report(compared(runs)).replace("\n", " ")
    assert "Every run of ppo is above every run of a2c; 6 seeds each. If both were alike, chance alone would order" in text
    assert "once in 924: this is clear." in text
    assert "impala is above ppo with probability 0.50" in text or "ppo is above impala with probability 0.5" in text
    assert "the interval holds a half, so these runs do not tell which is better" in text
    assert "6 seeds are few" in text


def test_numbers_are_those_of_the_scores(runs):
    ours, theirs = [10.0, 12.0, 14.0, 30.0], [11.0, 5.0, 5.0, 5.0]
    write(runs, "ppo", ours)
    write(runs, "a2c", theirs)
    found = compared(runs)
    summaries = {group.label: group for group in found.groups}
    assert summaries["ppo"].iqm.value == pytest.approx(iqm(ours)) and summaries["ppo"].mean.value == np.mean(ours)
    assert summaries["ppo"].scores == {"CartPole-v1": ours} and found.scale == {}
    (pair,) = found.pairs
    assert (pair.better, pair.other, pair.seeds) == ("ppo", "a2c", (4, 4))
    assert pair.probability.value == 15 / 16 and pair.by_chance is None and pair.probability.high == 1.0
    assert pair.difference.value == pytest.approx(iqm(ours) - iqm(theirs))


def test_three_seeds_that_are_all_above_are_a_hint(runs):
    write(runs, "ppo", [2, 3, 4])
    write(runs, "a2c", [1, 1, 1])
    text = report(compared(runs))
    assert "once in 20: take it as a hint." in text and "3 seeds are very few" in text


def test_a_single_seed_has_no_interval_and_says_nothing_of_another(runs):
    write(runs, "ppo", [2])
    write(runs, "a2c", [1])
    text = report(compared(runs))
    assert "ppo scored above a2c, but a single seed says nothing about another one: train more" in text
    assert "[" not in text and "--seeds 5" in text


def test_several_environments_are_normalised_and_that_is_said(runs):
    measured = {"ppo": ([100, 300, 500], [-200, -400, -300]), "a2c": ([100, 200, 200], [-1200, -1000, -900])}
    for system, (cart, pendulum) in measured.items():
        write(runs, system, cart)
        write(runs, system, pendulum, "Pendulum-v1")
    found = compared(runs)
    assert found.scale == {"CartPole-v1": (100, 500), "Pendulum-v1": (-1200, -200)}
    ppo = next(group for group in found.groups if group.label == "ppo")
    assert ppo.normalised == {"CartPole-v1": [0, 0.5, 1], "Pendulum-v1": pytest.approx([1, 0.8, 0.9])}
    text = report(found).replace("\n", " ")
    assert "CartPole-v1 100 to 500, Pendulum-v1 -1,200 to -200; the least and the greatest of all runs" in text
    assert "-400 to -200" in text, "what was measured is told as well"
    given = compared(runs, scale={"CartPole-v1": (0.0, 500.0)})
    assert given.scale["CartPole-v1"] == (0, 500) and given.scale["Pendulum-v1"] == (-1200, -200)
    with pytest.raises(RunError, match="--scale Hopper: no run is on it"):
        compared(runs, scale={"Hopper": (0.0, 1.0)})


def test_groups_that_lack_an_environment_or_seeds_are_told_of(runs):
    write(runs, "ppo", [1, 2, 3])
    write(runs, "ppo", [1, 2], "Pendulum-v1")
    write(runs, "a2c", [1, 2, 3])
    notes = "\n".join(compared(runs).notes)
    assert "a2c has no run on Pendulum-v1" in notes and "ppo has 3 on CartPole-v1, 2 on Pendulum-v1 seeds" in notes


def test_groups_without_an_environment_in_common_are_no_pair(runs):
    write(runs, "ppo", [1, 2])
    write(runs, "a2c", [1, 2], "Pendulum-v1")
    assert compared(runs).pairs == () and report(compared(runs))


def test_scores_at_equal_steps_are_where_the_curves_stand(runs):
    write(runs, "ppo", [0, 0], points=[(100, 0.0), (300, 20.0)])
    write(runs, "a2c", [0, 0], points=[(100, 0.0), (150, 30.0)])
    late = compared(runs)
    assert any("unlike numbers of steps (a2c 150, ppo 300): --at-steps 150" in note for note in late.notes)
    found = {group.label: group.scores["CartPole-v1"] for group in compared(runs, at_steps=125).groups}
    assert found == {"ppo": [2.5, 2.5], "a2c": [15.0, 15.0]} and not compared(runs, at_steps=125).notes
    found = {group.label: group.scores["CartPole-v1"] for group in compared(runs, at_steps=300).groups}
    assert found["a2c"] == [30.0, 30.0], "one that was done earlier keeps what it had"


def test_runs_that_died_before_are_left_out_and_told_of(runs):
    write(runs, "ppo", [1, 2, 3])
    write_run(runs / "dead", seed=7, points=[(100, 0.0)], status="failed", reason="it hung")
    found = compared(runs, at_steps=200)
    assert found.groups[0].seeds == {"CartPole-v1": 3}
    notes = " ".join(found.notes)
    assert "dead (failed, 100 steps): left out, 3 of 4 runs count. If they failed for being bad, that flatters" in notes


def test_the_greedy_policys_return_counts_where_all_were_evaluated(runs):
    write(runs, "ppo", [1, 2], eval_return_mean=50.0)
    write(runs, "a2c", [1, 2], eval_return_mean=40.0)
    assert compared(runs).metric == "eval" and compared(runs).groups[0].scores["CartPole-v1"] in ([50, 50], [40, 40])
    assert compared(runs, metric="return").groups[0].scores["CartPole-v1"] == [1, 2]
    write(runs, "impala", [1, 2])
    assert compared(runs).metric == "return"
    with pytest.raises(RunError, match="no run has 'nix' to compare"):
        compared(runs, metric="nix")


def test_the_time_to_a_score_counts_those_that_never_came_as_infinitely_slow(runs):
    write(runs, "ppo", [10, 20, 30], steps_per_s=100.0)
    write(runs, "a2c", [1, 1, 30])
    ppo, a2c = (group.reached[0] for group in sorted(compared(runs, score=10).groups, key=lambda g: g.label, reverse=True))
    assert (ppo.reached, ppo.runs, ppo.steps, ppo.seconds) == (3, 3, 200, 2.0)
    assert (a2c.reached, a2c.steps, a2c.seconds) == (1, None, None)
    assert "3 of 3" in report(compared(runs, score=10)) and "1 of 3" in report(compared(runs, score=10))


def test_the_json_is_strict_and_the_same_twice(runs):
    write(runs, "ppo", [1, 2, 3])
    write(runs, "a2c", [4])
    text = json.dumps(as_json(compared(runs, score=2)), allow_nan=False)
    assert text == json.dumps(as_json(compared(runs, score=2)), allow_nan=False)
    told = json.loads(text)
    lows = {group["label"]: group["iqm"]["low"] for group in told["groups"]}
    assert lows["a2c"] is None and math.isfinite(lows["ppo"]) and told["sentences"] and told["pairs"][0]["better"] == "a2c"


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_report_fits_a_terminal_but_for_columns_that_cannot(runs, width):
    write(runs, "ppo", [1, 2, 3])
    write(runs, "a2c", [4, 5, 9])
    lines = report(compared(runs), width).splitlines()
    assert max(map(len, lines)) <= max(width, 72)


def test_a_comparison_is_drawn(runs, tmp_path):
    from rookery.analysis import figure, summary_figure

    write(runs, "ppo", [1, 2, 3])
    write(runs, "a2c", [4, 5, 9])
    for dark in (False, True):
        made = summary_figure.draw(compared(runs), dark=dark, title="Two")
        assert len(made.axes) == 3 and figure.save(made, tmp_path / "c.png").stat().st_size > 10_000
