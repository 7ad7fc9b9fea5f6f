"""The examples run, from nothing to a policy, and what they teach is true."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_short_says_how_to_run_it_and_is_run_here():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {"custom_environment", "custom_network", "custom_algorithm"}
    for name in names:
        text = (FOLDER / f"{name}.py").read_text()
        assert len(text.splitlines()) < 90 and f"python examples/{name}.py" in text and '__name__ == "__main__"' in text


def test_a_custom_environment_is_trained_on_and_played_by_hand(tmp_path, capsys):
    result = example("custom_environment").main(total_steps=1024, runs=str(tmp_path))
    assert result.metrics["env"] == "Lamp" and result.metrics["episodes"] >= 48
    assert "played by hand" in capsys.readouterr().out


def test_custom_networks_in_plain_jax_and_flax_are_trained_and_loaded_again(tmp_path):
    module = example("custom_network")
    results = module.main("a2c", total_steps=512, runs=str(tmp_path))
    assert set(results) == {"fourier", "residual"}
    fourier = results["fourier"].policy.params["network"]["encoder"]
    assert fourier["frequency"].shape == (4, 4 * module.FREQUENCIES), "the tree is the one that init made"
    assert np.any(fourier["bias"] != 0), "and it is trained"


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


