"""The DQN bench: both libraries at one update ratio, the quotient of their speeds, and the time to the target."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rookery.commands import parsing
from rookery_bench import dqn, process


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    code = """
import json, sys
assert sys.argv[1] == "cartpole_dqn"
print(json.dumps(dict(peer="stable-baselines3", version="9.9", steps_per_s=500.0, import_s=2.0, time_to_target_s=None)))
"""
    (tmp_path / "sb3.py").write_text(code)
    return tmp_path


def test_the_options_are_those_of_the_peers_ratio():
    config, _ = parsing.parse_system("train", ["dqn", "--env", "CartPole-v1", *dqn.SAME_RATIO.split()])
    algorithm, steps = config.algorithm, config.topology.num_envs * config.algorithm.rollout_length
    assert steps == 256 and algorithm.gradient_steps == 128 and algorithm.batch_size == 64  # as the driver says
    assert config.steps_per_update == 256 and algorithm.network.hidden == (256, 256) and not algorithm.double


def test_rookery_and_the_peer_take_turns_and_the_quotient_is_judged(drivers: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def fake(command: list[str], *, runs: Path, cache: Path, timeout: float) -> process.Finished:
        commands.append(command)
        reached = 30.0 if "--stop-eval-return" in command else None
        rows = [(1.0, 0, 0), (9.0, 100, 9), (10.0, 1_000, 10), (49.0, 140_100, 99)]
        runs.mkdir()
        lines = [json.dumps(dict(zip(("seconds", "env_steps", "updates"), row))) + "\n" for row in rows]
        (runs / "metrics.jsonl").write_text("".join(lines))
        return process.Finished(50.0, dict(env_steps=150_000, seconds=49.0, seconds_to_target=reached, run=str(runs)), None)

    monkeypatch.setattr(process, "rookery", fake)
    (found,) = dqn.measure(dqn.parse(["--seeds", "2", "--peers", str(drivers), "--sb3-python", sys.executable]))
    ours, theirs = found.rows
    assert (ours["steps/s"], theirs["steps/s"], ours["s_to_target"]) == (3000.0, 500.0, 50.0)
    assert ours["trained/s"] == 3500.0, "from the first row with an update"
    assert ours["reached"] == "2/2" and theirs["reached"] == "0/2"
    assert [(v.value, v.bar, v.met) for v in found.verdicts] == [(7.0, 5.0, True), (6.0, 5.0, True), (50.0, 60.0, True)]
    assert [run["arm"] for run in found.runs if run["seed"] == 1][1] == "stable-baselines3", "the order rotates"
    assert len(commands) == 4 and str(drivers) not in json.dumps(found.to_dict()) and not found.failures


def test_without_the_peer_only_the_time_to_the_target_is_judged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "rookery", lambda *_, **__: process.Finished(70.0, {}, "it broke"))
    (found,) = dqn.measure(dqn.parse(["--seeds", "1"]))
    assert len(found.verdicts) == 1 and not found.verdicts[0].met and len(found.failures) == 2


def test_the_idle_time_of_ape_x_is_judged_by_the_median_of_its_seeds(monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def fake(command: list[str], **_: object) -> process.Finished:
        commands.append(command)
        idle = (0.2, 0.04, 0.01)[len(commands) - 1]
        return process.Finished(50.0, dict(env_steps=150_000, seconds=49.0, learner_idle=idle, run="x"), None)

    monkeypatch.setattr(process, "rookery", fake)
    (found,) = dqn.measure(dqn.parse(["--part", "idle", "--seeds", "3"]))
    assert [(v.value, v.bar, v.met) for v in found.verdicts] == [(0.04, 0.05, True)]
    assert found.rows[0]["learner_idle"] == 0.04 and all("apex-dqn" in command for command in commands)
    config, _ = parsing.parse_system("train", ["apex-dqn", "--env", "CartPole-v1"])
    assert config.topology.prefetch == 4
