"""The examples run, from nothing to a policy, and what they teach is true."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import rookery
from rookery import envs
from rookery.testing import check_agent, check_topology
from rookery.topologies.async_gradients import AsyncGradients

FOLDER = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_short_says_how_to_run_it_and_is_run_here():
    names = {path.stem for path in FOLDER.glob("*.py")}
    customs = {f"custom_{what}" for what in ("environment", "network", "algorithm", "loss", "topology")}
    assert names == customs | {"copied_algorithm"}
    for name in names:
        text = (FOLDER / f"{name}.py").read_text()
        assert len(text.splitlines()) < 100 and f"python examples/{name}.py" in text and '__name__ == "__main__"' in text


def test_a_custom_environment_is_trained_on_and_played_by_hand(tmp_path, capsys):
    result = example("custom_environment").main(total_steps=1024, runs=str(tmp_path))
    assert result.metrics["env"] == "Lamp" and result.metrics["episodes"] >= 48
    assert "played by hand" in capsys.readouterr().out


def test_custom_networks_in_flax_and_plain_jax_are_trained_and_loaded_again(tmp_path):
    module = example("custom_network")
    results = module.main("a2c", total_steps=512, runs=str(tmp_path))
    assert set(results) == {"residual", "layers", "fourier", "heads"}
    fourier = results["fourier"].policy.params["network"]["encoder"]
    assert fourier["frequency"].shape == (4, 4 * module.FREQUENCIES), "the tree is the one that init made"
    assert np.any(fourier["bias"] != 0), "and it is trained"
    heads = results["heads"].policy.params["network"]
    assert set(heads) == {"encoder"}, "policy and value are the module's own: no heads of ours behind it"


def test_a_custom_algorithm_learns_on_both_topologies(tmp_path):
    results = example("custom_algorithm").main(total_steps=24_000, runs=str(tmp_path))
    assert set(results) == {"Sync", "ActorLearner"}
    for result in results.values():
        assert result.metrics["eval_return_mean"] > 5, "two of eight is what chance gives"
    assert results["ActorLearner"].metrics["policy_lag_mean"] > 0 == results["Sync"].metrics["policy_lag_mean"]


def test_the_custom_algorithm_fails_to_learn_with_the_sign_of_its_loss_flipped(tmp_path, monkeypatch):
    module = example("custom_algorithm")
    loss = module.loss

    def flipped(*args, **kwargs):
        total, report = loss(*args, **kwargs)
        return -total, report

    monkeypatch.setattr(module, "loss", flipped)
    results = module.main(total_steps=8_000, runs=str(tmp_path))
    assert max(result.metrics["return_mean"] for result in results.values()) < 3


def test_a_custom_loss_is_learned_with_and_its_term_does_what_it_is_for(tmp_path):
    roughness = example("custom_loss").main(total_steps=12_000, runs=str(tmp_path))
    assert 0 < roughness[1.0] < 0.7 * roughness[0.0], "the policy is smoother in time with the term than without"


def test_a_copied_algorithm_with_another_loss_is_trained(tmp_path):
    result = example("copied_algorithm").main(total_steps=1024, runs=str(tmp_path))
    assert result.metrics["system"] == "SmoothA2C" and result.metrics["return_mean"] > 10


def test_the_copied_algorithm_is_as_much_a_gradient_as_a2c(tmp_path):
    module = example("copied_algorithm")
    spec = envs.spec_of("CartPole-v1")
    check_agent(module.SmoothA2C(rollout_length=4).build(spec), spec)
    result = rookery.train(
        module.SmoothA2C(rollout_length=4), env="CartPole-v1", topology=AsyncGradients(num_envs=4, workers=2), total_steps=64,
        runs=str(tmp_path),
    )  # fmt: skip
    assert result.metrics["updates"] >= 4
    assert result.policy.params["hyper"]["smoothness_cost"] == np.float32(0.1), "a leaf: it may change while a run goes on"


def test_a_custom_topology_learns_from_each_batch_as_often_as_it_says(tmp_path):
    results = example("custom_topology").main(runs=str(tmp_path))
    for epochs, result in results.items():
        m = result.metrics
        assert m["return_mean"] > 60, "a random policy keeps the pole up for some 20 steps"
        assert m["updates"] % epochs == 0 and m["trained_steps"] == epochs * m["env_steps"]
        assert m["policy_lag_mean"] == (epochs - 1) / 2, "0, 1 … epochs − 1 updates old, in turn"
    assert results[4].metrics["eval_return_mean"] > 150


def test_the_custom_topology_sends_parameters_once_for_a_batch_resumes_and_refuses_what_cannot_be_right(tmp_path):
    module = example("custom_topology")
    topology = module.Reuse(num_envs=4, collectors=2, epochs=3)
    with rookery.Trainer(module.VTrace(rollout_length=4), env="catch", topology=topology, runs=str(tmp_path)) as trainer:
        while trainer.progress is None or trainer.progress.updates < 6:
            progress = trainer.advance()
        assert progress.items == {"rollouts": 4, "batches": 2, "parameters": 4}, "two collectors, each told twice"
        assert trainer.plan.fleets == {"collector": (2, 2)}
        path = trainer.save()
    with rookery.Trainer(module.VTrace(rollout_length=4), env="catch", topology=topology, runs=str(tmp_path)) as trainer:
        trainer.restore(path)
        while trainer.progress is None or trainer.progress.updates < 9:
            progress = trainer.advance()
        assert progress.items["batches"] == 3
    with pytest.raises(ValueError, match="at most 0 updates old, but Reuse lets it become 2"):
        rookery.train("a2c", env="catch", topology=topology, runs=str(tmp_path))
    with pytest.raises(ValueError, match="use Evolution or Sync"):
        rookery.train("dqn", env="catch", topology=topology, runs=str(tmp_path))


def test_the_custom_topology_keeps_the_contract_and_replaces_a_collector_that_is_lost():
    topology = example("custom_topology").Reuse(num_envs=4, collectors=2, epochs=3)
    check_topology(topology, losses=("collector",), exact=False)  # a step is learned from several times
