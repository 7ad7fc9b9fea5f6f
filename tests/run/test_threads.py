"""XLA's threads: one where products are small, else all; what somebody has set stays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import pytest

from rookery.run import config, startup, threads

MANY = {"num_envs": 2048, "rollout_length": 32, "minibatches": 16}
CASES: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "small minibatches": ("ppo", "CartPole-v1", {}, True),
    "one program": ("anakin-ppo", "jax:CartPole-v1", {"num_envs": 8, "rollout_length": 128, "minibatches": 4}, True),
    "many rows": ("anakin-ppo", "jax:CartPole-v1", MANY, False),
    "wide layers": ("dqn", "CartPole-v1", {"network": {"hidden": (256, 256)}, "batch_size": 128}, False),
    "a learner beside collectors": ("impala", "CartPole-v1", {}, True),
    "two devices": ("impala", "CartPole-v1", {"devices": 2}, False),
    "learners of their own": ("impala", "CartPole-v1", {"learners": 2}, False),
    "a population": ("es", "CartPole-v1", {}, False),
    "images": ("ppo", "catch", {"num_envs": 2, "rollout_length": 2, "network": {"encoder": "nature"}}, False),
    "a board": ("ppo", "catch", {"env_options": {"rows": 8, "columns": 8}}, True),
    "an image": ("ppo", "catch", {"env_options": {"rows": 40, "columns": 40}}, False),
    "an environment that cannot be made": ("ppo", "NoSuchEnv-v0", {}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_one_thread_is_for_small_products(name: str) -> None:
    system, env, options, expected = CASES[name]
    assert threads.one_is_enough(config.resolve(system, env=env, **options)) == expected


def test_what_was_set_stays_and_the_config_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, asked = config.resolve("ppo", env="CartPole-v1"), list[tuple[str, object]]()
    monkeypatch.setenv("NPROC", "3")
    monkeypatch.setattr(jax.config, "update", lambda name, value: asked.append((name, value)))
    threads.limit(cfg)
    assert asked == [("jax_cpu_enable_async_dispatch", False)]
    assert os.environ["NPROC"] == "3" and startup.machine()["cores"] == 3
    monkeypatch.delenv("NPROC")
    threads.limit(cfg)
    assert os.environ["NPROC"] == "1" and startup.machine()["cores"] == 1
    monkeypatch.delenv("NPROC")


def test_what_a_command_imports_before_it_sets_the_flags_of_xla_leaves_jax_out():
    """With jax imported too early, a resumed run computes with other flags than before, and is not bit for bit the same."""
    program = "import sys; from rookery.run import api, options, startup, threads; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
