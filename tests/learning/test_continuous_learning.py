"""SAC, TD3, DDPG and QT-Opt learn to reach a point, on host and device, and do not when a loss or a search is turned around."""


import pytest
from toy_runs import assert_learned, case, play

from rookery import ops
from rookery.algorithms import off_policy, sharing

SMALL = {"hidden": (32, 32), "activation": "relu"}
OPTIONS = {
    "num_envs": 8, "batch_size": 64, "learning_rate": 3e-3, "random_steps": 400, "total_steps": 6_000, "discount": 0.9,
    "replay": {"capacity": 6_000, "min_size": 400},
}  # fmt: skip
CASES = [case(system, "point-reach", -6.0, network=SMALL, **OPTIONS) for system in ("sac", "td3", "ddpg")]
APEX = case(
    "apex-dpg", "point-reach", -6.0, network=SMALL,
    **OPTIONS | {"rollout_length": 4, "groups": 1, "n_step": 3, "exploration": "ladder", "noise": 0.05, "total_steps": 12_000},
)  # fmt: skip
QT_OPT = case(
    "qt-opt", "point-reach", -6.0, network=SMALL,
    **OPTIONS | {
        "num_envs": 4, "batch_size": 32, "learning_rate": 1e-3, "samples": 24, "elites": 4, "polyak": 0.02,
        "replay": {"capacity": 6_000, "min_size": 200}, "random_steps": 200, "total_steps": 3_000,
    },
)  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, APEX, QT_OPT], ids=str)
def test_reaches_the_point(case, tmp_path):
    assert_learned(case, play(case, tmp_path))


def test_choices_are_learned_with_exact_expectations(tmp_path):
    chooser = case("sac", "catch", 0.7, network=SMALL, **OPTIONS | {"learning_rate": 2e-3, "initial_temperature": 0.1})
    assert_learned(chooser, play(chooser, tmp_path, total_steps=20_000))


def test_does_not_learn_when_the_actor_is_turned_around(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_kept", [])
    right = off_policy.build

    def wrong(losses, *args, **options):
        flipped = lambda *given: (lambda total, report: (-total, report))(*losses.actor(*given))
        return right(losses._replace(actor=flipped), *args, **options)

    monkeypatch.setattr(off_policy, "build", wrong)
    metrics = play(CASES[1], tmp_path, total_steps=3_000)
    assert metrics["return_mean"] < -12.0


def test_does_not_learn_when_the_search_looks_for_the_worst_action(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_kept", [])
    right = ops.cross_entropy_method

    def worst(score, key, **options):
        found = right(lambda action: -score(action), key, **options)
        return found._replace(score=-found.score)

    monkeypatch.setattr(ops, "cross_entropy_method", worst)
    assert play(QT_OPT, tmp_path)["return_mean"] < -15.0
