"""The files that are made of the options themselves are up to date: `options.json`, which the help is printed from, and
`typed.pyi`, which editors complete from and mypy checks calls by.

    python tests/run/test_option_files.py     writes them
"""

from __future__ import annotations

import shutil

import option_stub
from mypy import api

from rookery import systems
from rookery.run import described
from rookery.run.config import RunOptions


def parts() -> dict[str, described.DescribedPart]:
    kinds = [RunOptions, *(kind for s in systems.SYSTEMS.values() for kind in (s.algorithm_class(), s.topology_class()))]
    found = {kind.__name__: described.of(kind) for kind in kinds}
    inner = {name: part for part in found.values() for name, part in part.groups.items()}
    return inner | found


def test_the_table_that_the_help_is_printed_from_is_what_the_options_are():
    assert described.TABLE.read_text() == described.to_json(parts()), f"write it: python {__file__}"


def test_the_stub_is_what_the_options_are():
    assert option_stub.STUB.read_text() == option_stub.text(), f"write it: python {__file__}"


RIGHT = """
import rookery
from rookery.algorithms.ppo import PPO
from rookery.networks import NetworkConfig
from rookery.topologies.async_gradients import AsyncGradients

rookery.train("ppo", env="CartPole-v1", learning_rate=1e-3, clip=0.1, num_envs=16, network={"hidden": (32, 32)}, seconds=3)
rookery.train(env="CartPole-v1", epochs=4)
rookery.train("dqn", env=lambda: None, replay={"capacity": 1000}, env_options={"size": 3}, value_range=None)
rookery.train(PPO(epochs=3), env="CartPole-v1", num_envs=8)
rookery.train("a2c", env="CartPole-v1", topology=AsyncGradients(workers=2), workers=2)
with rookery.Trainer("impala", env="CartPole-v1", network=NetworkConfig(), rho_bar=1.0, stop_return=475) as trainer:
    trainer.advance()
for name in ("ppo", "dqn"):
    print(rookery.train(name, env="CartPole-v1", learning_rate=1e-3, seed=1).metrics)
"""
PARTS = (
    "__init__.py", "run/typed.pyi", "networks/__init__.py", "networks/config.py", "data/config.py", "runtime/interface.py",
    "ranges.py", "types.py",
)  # fmt: skip
WRONG = (
    'rookery.train("ppo", env="CartPole-v1", learning_rat=1e-3)',
    'rookery.train("ppo", env="CartPole-v1", learning_rate="fast")',
    'rookery.train("ppo", env="CartPole-v1", target_period=100)',
    'rookery.train("ppo", env="CartPole-v1", reward_clip="twice")',
    'rookery.train("ppo", env="CartPole-v1", network={"hiden": (3,)})',
    'rookery.train("ppo")',
    'rookery.Trainer("dqn", env="CartPole-v1", clip=0.1)',
)


def test_mypy_accepts_right_calls_and_refuses_each_that_is_wrong(tmp_path, monkeypatch):
    calls, package = RIGHT.strip().splitlines(), option_stub.STUB.parents[1]
    for name in PARTS:  # of the package, what the stub is made of: to read all of it, and jax, takes a minute
        (tmp_path / "rookery" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, tmp_path / "rookery" / name)
    (tmp_path / "calls.py").write_text("\n".join([*calls, *WRONG]))
    monkeypatch.chdir(tmp_path)
    words = ["calls.py", "--ignore-missing-imports", "--no-site-packages", "--namespace-packages", "--follow-imports=silent"]
    out, err, _ = api.run(words)
    errors = [line for line in out.splitlines() if ": error:" in line]
    found = {int(line.split(":")[1]) - len(calls) for line in errors}
    assert found == set(range(1, len(WRONG) + 1)), "\n".join([*errors, err])


if __name__ == "__main__":
    described.TABLE.write_text(described.to_json(parts()))
    option_stub.STUB.write_text(option_stub.text())
    print(f"wrote {described.TABLE} and {option_stub.STUB}")
