"""The pure parts of `rookery bench contrastive`, and that its arms are commands."""

from __future__ import annotations

import shlex

import pytest

from rookery import systems
from rookery.run import options
from rookery.run.config import resolve
from rookery_bench import contrastive


def test_a_curve_has_points_at_even_steps_as_far_as_the_rows_go() -> None:
    rows = [{"env_steps": 100 * i, "return_mean": None if i < 2 else float(i)} for i in range(17)]
    assert contrastive.curve(rows) == [(200 * i, 2.0 * i) for i in range(1, 9)]
    assert contrastive.curve(rows[:1]) == []


def run(arm: str, score: float) -> contrastive.Run:
    return {"arm": arm, "eval_return_mean": score, "curve": [(i, score) for i in range(contrastive.POINTS)], "updates": 10}


def test_the_second_arm_is_held_against_the_first_by_their_intervals() -> None:
    rows = [contrastive._row(arm, [run(arm, score) for score in scores]) for arm, scores in (
        ("without", (-9.0, -8.0, -10.0)), ("with", (-20.0, -20.1, -19.9)),
    )]  # fmt: skip
    assert rows[0]["eval_return_mean"] == -9.0 and rows[0]["updates"] == 10 and rows[0]["staleness_mean"] is None
    assert rows[0]["curve"] == " ".join(["-9.0"] * contrastive.POINTS)
    assert not contrastive._verdict("steps", rows).met and contrastive._verdict("steps", rows[::-1]).met
    assert contrastive._verdict("steps", [contrastive._row("a", []), rows[0]]).met is not True
    early = run("a", -20.0) | {"return_mean": None}  # so short that no episode has ended
    assert contrastive._row("a", [early])["return_mean"] is None


@pytest.mark.parametrize("words", [words for arms in contrastive.ARMS.values() for words in arms.values()])
def test_every_arm_is_a_command(words: str) -> None:
    system, *rest = shlex.split(f"{words} {contrastive.SMALL}")
    assert system in systems.SYSTEMS
    topology = rest[rest.index("--topology") + 1] if "--topology" in rest else None
    by = {"topology": systems.topology_named(topology)()} if topology else {}
    options.parse("rookery train", rest, resolve(system, env="pixel-reach", **by))
