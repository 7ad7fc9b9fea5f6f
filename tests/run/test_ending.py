"""The last words of a run name the bottleneck, its figure and what to type."""

import dataclasses

import pytest

from rookery.run.display import Row
from rookery.run.ending import Outcome, bottleneck, summary

STEADY = {"seconds": 100.0, "env_steps": 100_000, "env_steps_per_s": 1000.0}
MACHINE = {"cores": 8, "collectors": 2, "num_envs": 32, "overlaps": True}

CASES = {
    "learner busy": ({"learner_idle": 0.03, "phases": {"env": 0.6, "learn": 0.3}}, {}, ["learner is the limit", "97%"]),
    "learner, sync": ({"phases": {"learn": 0.7, "env": 0.2}}, {"overlaps": False}, ["learner is the limit", "70%"]),
    "env, cores left": (
        {"learner_idle": 0.5, "phases": {"env": 0.6}}, {}, ["Stepping", "90% of the collectors", "--collectors 8"]
    ),
    "env, no core left": (
        {"learner_idle": 0.5, "phases": {"env": 0.6}}, {"collectors": 8}, ["Stepping", "68%", "more than 8 cores"]
    ),
    "env, sync": ({"phases": {"env": 0.6}}, {"overlaps": False}, ["Stepping", "60% of the time", "C++"]),
    "inference": (
        {"learner_idle": 0.5, "phases": {"inference": 0.48, "env": 0.1, "wait": 0.4}}, {"groups": 2},
        ["Choosing actions", "72% of the collectors", "8 environments at once", "--num-envs 64"],
    ),
    "transfer": ({"learner_idle": 0.5, "phases": {"transfer": 0.4}}, {}, ["Moving data", "60%", "uint8"]),
    "learner waits": ({"learner_idle": 0.8, "phases": {"wait": 0.7}}, {}, ["waited", "80%", "--collectors 8"]),
    "learner waits, cores full": (
        {"learner_idle": 0.8, "phases": {"wait": 0.7}}, {"collectors": 8}, ["waited", "80%", "--num-envs 64"]
    ),
    "nothing": (
        {"phases": {"env": 0.28, "learn": 0.27, "inference": 0.25, "wait": 0.2}}, {"overlaps": False},
        ["Nothing stands out", "env 28%, learn 27%, inference 25%"],
    ),
    "nothing measured": ({}, {"overlaps": False}, ["Nothing stands out"]),
    "a table that never filled": (
        {"seconds": 5.0, "starting": True}, {"waiting": "waiting: 412 more inserts before the next sample (88 of 500)"},
        ["Nothing was learned. Waiting: 412 more inserts", "lower --replay.min-size"],
    ),
    "a ratio": (
        {"learner_idle": 0.8, "phases": {"wait": 0.7}}, {"waiting": "waiting: 7 more inserts before the next sample"},
        ["80% of the time. In the end it was waiting: 7 more inserts", "--collectors 8"],
    ),
    "start-up, inferred": ({"seconds": 5.0, "env_steps": 1000}, {}, ["Start-up and compilation took 80%", "5 s"]),
    "start-up, measured": ({"seconds": 5.0, "phases": {"start": 0.6, "env": 0.4}}, {}, ["Start-up", "60%"]),
    "slow start of a long run": (
        {"seconds": 1000.0, "learner_idle": 0.5, "phases": {"start": 0.6, "env": 0.4}}, {}, ["Stepping", "60%"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("row, machine, words", CASES.values(), ids=CASES.keys())
def test_the_bottleneck_is_named_with_its_figure_and_a_remedy(row, machine, words):
    text = bottleneck(Row(**{**STEADY, **row}), **{**MACHINE, **machine})
    for word in words:
        assert word in text, text


def test_more_collectors_are_never_advised_when_the_learner_is_the_limit_or_every_core_is_taken():
    for phase in ("env", "inference", "transfer", "learn", "wait"):
        for idle, collectors in ((0.0, 1), (0.5, 8), (0.9, 9)):
            row = Row(**STEADY, learner_idle=idle, phases={phase: 0.9})
            assert "--collectors" not in bottleneck(row, **{**MACHINE, "collectors": collectors})


OUTCOME = Outcome(
    status="done", name="impala-1", path="runs/impala-1", seconds=72.0, env_steps=200_000, updates=1562, episodes=1203,
    env_steps_per_s=2777.0, return_mean=487.3, eval_return_mean=500.0, target=475.0, seconds_to_target=58.0,
    checkpoint="runs/impala-1/checkpoints/update-0000001562", bottleneck="word " * 30,
)  # fmt: skip


def test_the_summary_tells_what_was_reached_and_what_to_type_next():
    text = summary(OUTCOME)
    for part in ("Done in 72 s: 200,000 steps (2,777/s)", "487.3   mean of the last 100 training episodes", "500.0",
                 "475.0   reached after 58 s", " checkpoints/update-0000001562\n", "rookery eval impala-1\n",
                 "rookery resume impala-1"):  # fmt: skip
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) <= 12


def test_the_summary_of_a_failure_gives_the_reason_and_promises_no_policy_that_is_not_there():
    failed = dataclasses.replace(OUTCOME, status="failed", reason="loss is not finite", checkpoint=None, seconds=7300.0,
                                 return_mean=None, seconds_to_target=None, episodes=4)  # fmt: skip
    text = summary(failed)
    assert text.startswith("Failed after 2:01:40 h") and "loss is not finite" in text and "not reached" in text
    assert "no checkpoint was written" in text and "rookery" not in text
    changes = {"status": "stopped", "seconds": 95.0, "episodes": 40, "checkpoint": "/elsewhere/x"}
    stopped = summary(dataclasses.replace(OUTCOME, **changes))
    assert stopped.startswith("Stopped after 1:35 min") and "last 40 training" in stopped and "/elsewhere/x" in stopped


def test_the_commands_to_type_next_do_what_they_say_where_they_are_typed():
    spent = summary(dataclasses.replace(OUTCOME, total_steps=200_000))
    assert "rookery resume impala-1 --total-steps 400000" in spent, "there is nothing left of its budget"
    reached = summary(dataclasses.replace(OUTCOME, total_steps=1_000_000))
    assert reached.endswith("rookery resume impala-1")
    elsewhere = summary(dataclasses.replace(OUTCOME, path="my runs/impala-1"))
    assert "rookery eval 'my runs/impala-1'" in elsewhere and "rookery resume 'my runs/impala-1'" in elsewhere


def test_the_summary_says_which_policy_is_kept_and_where_a_better_one_is():
    best = {"best_return": -91.6, "best_steps": 212_480, "eval_return_mean": -91.6}
    kept = dataclasses.replace(OUTCOME, **best, kept="best", checkpoint="runs/impala-1/checkpoints/best")
    assert "policy     checkpoints/best (evaluated -91.6 after 212,480 steps)\n" in summary(kept)
    assert "--which" not in summary(kept)
    last = summary(dataclasses.replace(OUTCOME, **best | {"eval_return_mean": -479.8}))
    assert "policy     checkpoints/update-0000001562\n" in last
    assert "checkpoints/best (evaluated -91.6 after 212,480 steps): rookery eval impala-1 --which best\n" in last
    assert "--which" not in summary(dataclasses.replace(OUTCOME, **best)), "the last is as good"
