"""The sentences that a run ends with: each at its threshold, none for a run that learns, and one in a real run."""

import json

import pytest

import rookery
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.run.ending import Outcome, summary
from rookery.run.health import MOST, History, warnings

WELL = {"updates": 2_000, "return_mean": 20.0, "entropy": 0.6, "gradient_norm": 0.4, "gradient_clipped": 0.0}


def said(algorithm, *, first=20.0, last=20.5, count=12, **numbers):
    return warnings(History([WELL | numbers] * count, first, last), algorithm)


CASES = {
    "never copied": (DQN(target_period=2_500), {"updates": 1_532, "health/target_copies": 0.0},
                     {"health/target_copies": 1.0}, ["never copied", "1,532 updates", "--target-period is 2,500"]),
    "never copied, in steps": (DQN(target_period=2_500, gradient_steps=8), {"updates": 100, "health/target_copies": 0.0},
                               {"updates": 29}, ["800 updates"]),
    "wide support": (DQN(num_atoms=51), {"health/support_ends": 0.12}, {"health/support_ends": 0.09}, ["scale the rewards"]),
    "support": (DQN(num_atoms=51, value_range=(-10.0, 10.0)), {"health/support_ends": 0.12}, {"health/support_ends": 0.09},
                ["12% of the targets' mass", "[-10, 10]", "--value-range"]),
    "dead": (PPO(normalise_observations=False), {"health/dead_units": 0.86}, {"health/dead_units": 0.7},
             ["86% of a layer's units are dead", "--learning-rate", "--normalise-observations"]),
    "collapsed": (PPO(), {"updates": 50, "health/policy_spread": 0.0, "entropy": 0.001}, {"entropy": 0.5},
                  ["the same in every state", "entropy 0.001", "--entropy-cost"]),
    "not begun": (DQN(), {"health/policy_spread": 0.0, "entropy": None}, {"updates": 900},
                  ["the same in every state after 2,000 updates", "--learning-rate"]),
    "below epsilon": (VTrace(), {"health/below_epsilon": 0.9991}, {"health/below_epsilon": 0.98},
                      ["99.9% of the second moments", "plain SGD", "lower --rmsprop-epsilon"]),
    "all below epsilon": (DQN(), {"health/below_epsilon": 1.0}, {"updates": 900},
                          ["All second moments", "--adam-epsilon"]),
    "clipped": (PPO(), {"gradient_clipped": 1.0, "gradient_norm": 60.0}, {"gradient_norm": 3.0},
                ["Every gradient was clipped", "1 / 120", "norm of 60", "--max-gradient-norm"]),
}  # fmt: skip
WRONG_IN_ANY_RUN = ("never copied", "never copied, in steps", "support", "wide support")


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_with_its_figure_and_the_option(name):
    algorithm, wrong, milder, words = CASES[name]
    (text,) = said(algorithm, **wrong)
    for word in words:
        assert word in text, text
    assert said(algorithm, **wrong | milder) == [], "below the threshold nothing is said"


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_improves_is_well_whatever_its_numbers(name):
    algorithm, wrong, _, _ = CASES[name]
    assert bool(said(algorithm, first=20.0, last=200.0, **wrong)) == (name in WRONG_IN_ANY_RUN)
    assert bool(said(algorithm, first=None, last=None, **wrong)) == (name in WRONG_IN_ANY_RUN), "nobody knows"


def test_an_improvement_counts_whatever_its_sign():
    rising = [(-0.6, 0.9), (-21.0, -15.0), (0.0, 1.0), (10.0, 12.0)]
    assert [History([], *pair).improved for pair in rising] == [True] * 4
    assert [History([], *pair).improved for pair in [(-21.0, -20.5), (20.0, 21.0), (1.0, 1.0), (1.0, -1.0)]] == [False] * 4


def test_few_updates_and_few_rows_show_nothing_and_at_most_the_worst_are_told():
    wrong = {"health/dead_units": 1.0, "health/below_epsilon": 1.0, "health/policy_spread": 0.0}
    clipped = {"gradient_clipped": 1.0, "gradient_norm": 1e3}
    told = said(VTrace(), **wrong, **clipped)
    assert len(told) == MOST and "dead" in told[0]
    assert said(VTrace(), updates=20, **wrong, **clipped) == []
    assert said(VTrace(), count=5, **clipped) == []
    assert warnings(History([], None, None), VTrace()) == []


def test_numbers_that_mean_nothing_are_passed_over():
    nothing = dict.fromkeys(("health/policy_spread", "health/dead_units", "health/support_ends"))  # null in the file
    assert said(DQN(), **nothing) == []


def test_the_summary_has_a_line_for_each_warning():
    outcome = Outcome(
        status="done", name="r", path="runs/r", seconds=1.0, env_steps=1, updates=1, episodes=1, env_steps_per_s=1.0,
        warnings=("One is wrong.", "So is another."),
    )  # fmt: skip
    lines = [line.split(maxsplit=1) for line in summary(outcome).splitlines()]
    assert [text for label, text in lines if label == "warning"] == ["One is wrong.", "So is another."]


SMALL = {
    "num_envs": 4, "batch_size": 8, "eval_episodes": 0, "network": {"hidden": (8,)},
    "replay": {"min_size": 100, "samples_per_insert": 2.0},
}


def test_a_run_that_was_stopped_before_its_target_was_copied_says_so(tmp_path):
    """Planned long enough for its period, and ended early."""
    options = SMALL | {"target_period": 5_000, "total_steps": 2_000_000, "runs": str(tmp_path), "run": "r"}
    with rookery.Trainer("dqn", env="catch", **options) as trainer:
        while trainer.progress is None or trainer.progress.updates < 60:
            trainer.advance()
        trainer.finish()
    last = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["health/target_copies"] == 0
    assert {"health/policy_spread", "health/dead_units", "health/below_epsilon", "gradient_clipped"} <= last.keys()
    told = json.loads((tmp_path / "r" / "result.json").read_text())["warnings"]
    assert [text for text in told if text.startswith("The target network was never copied:") and "5,000" in text], told


def test_a_run_that_is_shorter_than_its_target_period_copies_it_all_the_same(tmp_path):
    result = rookery.train("dqn", env="catch", target_period=5_000, total_steps=1_200, runs=str(tmp_path), run="r", **SMALL)
    last = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["health/target_copies"] >= 40, result.metrics
    assert not json.loads((tmp_path / "r" / "result.json").read_text())["warnings"]
