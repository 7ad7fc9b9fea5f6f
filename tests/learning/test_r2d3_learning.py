"""R2D3 finds the one rewarded way of the deep sea from a handful of demonstrations; R2D2 alone does not find it."""

import os

import pytest

import rookery
from rookery import demonstrations
from rookery.envs.toys import TOYS

TOY = TOYS["deep-sea"]()
OPTIONS = {
    "env": "deep-sea", "num_envs": 16, "groups": 1, "rollout_length": 5, "burn_in": 5, "sequence_length": 15, "batch_size": 32,
    "n_step": 3, "adam_epsilon": 1e-5, "target_period": 50, "learning_rate": 2e-3, "discount": 0.99, "eval_episodes": 4,
    "eval_every": 50, "checkpoint_every": 10**6, "stop_eval_return": 0.9, "total_steps": 12_000,
    "network": {"hidden": (32,), "core": "lstm", "core_size": 32},
    "replay": {"capacity": 20_000, "min_size": 100, "samples_per_insert": 4.0},
}  # fmt: skip


def expert(now):
    at = now.observation.reshape(len(now.first), -1).argmax(axis=1)
    return TOY.right(at // TOY.size, at % TOY.size)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("demonstrations") / "five")
    demonstrations.write(path, demonstrations.play("deep-sea", expert, episodes=5), env="deep-sea")
    return {"demonstrations": path, "demo_ratio": 0.25}


def play(system, directory, **options):
    seed = int(os.environ.get("ROOKERY_TEST_SEED", "0"))
    return rookery.train(system, runs=str(directory), seed=seed, **OPTIONS | options).metrics


@pytest.fixture(scope="module")
def learned(shown, tmp_path_factory):
    return play("r2d3", tmp_path_factory.mktemp("r2d3"), **shown)


def test_r2d3_learns_it(learned):
    assert learned["eval_return_mean"] == pytest.approx(TOY.optimal_return, abs=1e-4), learned


def test_r2d2_alone_does_not_with_as_many_steps(learned, tmp_path):
    metrics = play("r2d2", tmp_path, total_steps=learned["env_steps"])
    assert metrics["eval_return_mean"] < 0.1 and metrics["env_steps"] >= learned["env_steps"], metrics


def test_a_run_goes_on_with_its_demonstrations_and_with_no_others(shown, tmp_path):
    options = OPTIONS | {"runs": str(tmp_path), "seed": 0, "eval_every": None, "stop_eval_return": None, "total_steps": 10**6}
    with rookery.Trainer("r2d3", **options, **shown) as one:
        while one.advance().updates < 5:
            pass
        path = one.save()
        updates, drawn = one.progress.updates, one.progress.report["replay/demo_share"]
    assert 0 < drawn < 0.6
    with rookery.Trainer("r2d3", **options, **shown) as two:
        two.restore(path)
        while (progress := two.advance()).updates < updates + 3:
            pass
        assert progress.report["replay/inserts"] > 100
    other = str(tmp_path / "other")
    demonstrations.write(other, demonstrations.play("deep-sea", expert, episodes=4), env="deep-sea")
    with (
        rookery.Trainer("r2d3", **options, demonstrations=other, demo_ratio=0.25) as three,
        pytest.raises(ValueError, match="other demonstrations"),
    ):
        three.restore(path)
