"""The bench of continuous control: arms in turns, quotients against their bars, and the roofline of a system with a replay."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rookery.commands import parsing
from rookery_bench import continuous, process, roofline


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    code = """
import json, sys
library, algorithm, env = sys.argv[1:4]
assert (algorithm, env) == ("sac", "HalfCheetah-v5")
rate, to_target = {"sbx": (100.0, 300.0), "sb3": (50.0, None)}[library]
told = {"steps_per_s": rate} if "--seconds" in sys.argv else {"time_to_target_s": to_target, "import_s": 10.0}
print(json.dumps(told | {"peer": {"sb3": "stable-baselines3"}.get(library, library), "version": "9.9"}))
"""
    (tmp_path / "continuous.py").write_text(code)
    return tmp_path


def rookery_at(rate: int, commands: list[list[str]]):
    def fake(command: list[str], *, runs: Path, timeout: float) -> process.Finished:
        commands.append(command)
        runs.mkdir()
        rows = [{"seconds": float(s), "env_steps": rate * s, "trained_steps": 0, "updates": s * 10} for s in range(21)]
        (runs / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        reached = 90.0 if "--stop-eval-return" in command else None
        return process.Finished(100.0, dict(env_steps=3, seconds=20.0, seconds_to_target=reached, run=str(runs)), None)

    return fake


def options(drivers: Path, *words: str) -> continuous.Options:
    both = ["--sbx-python", sys.executable, "--sb3-python", sys.executable]
    return continuous.parse(["--system", "sac", "--peers", str(drivers), *both, *words])


def test_all_take_turns_and_the_steps_of_a_window_are_judged_against_both_peers(drivers, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(process, "rookery", rookery_at(150, commands))
    alone = lambda part, rate: {"part": part, "frames/s": rate, "cpu_µs": 2e6 / rate, "share": "some"}
    parts = [*(alone(part, 800.0) for part in continuous.PARTS), alone(continuous.LIMIT, 187.5), alone("whole system", 90.0)]
    monkeypatch.setattr(continuous, "_roofline", lambda *_: process.Finished(1.0, {"rows": parts}, None))
    (found,) = continuous.measure(options(drivers, "--rounds", "2"))
    assert [(row["arm"], row["steps/s"]) for row in found.rows] == [
        ("rookery", 150.0), ("sbx", 100.0), ("stable-baselines3", 50.0), ("environment", 800.0), ("inference", 800.0),
        ("table", 800.0), ("learner", 800.0), ("limit of the parts", 187.5),
    ]  # fmt: skip
    assert found.rows[3]["cpu_µs_per_step"] == 2500.0 and found.rows[0]["cpu_µs_per_step"] is None
    assert [(v.value, v.bar, v.met) for v in found.verdicts] == [(1.5, 1.6, False), (3.0, 1.6, True), (0.8, 0.75, True)]
    assert next(run["arm"] for run in found.runs if run.get("seed") == 1) == "sbx", "the order rotates"
    assert len(commands) == 2 and str(drivers) not in json.dumps(found.to_dict()) and not found.failures


def test_seconds_to_a_return_count_from_the_start_of_the_process(drivers, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(process, "rookery", rookery_at(150, commands))
    (found,) = continuous.measure(options(drivers, "--part", "score", "--rounds", "1", "--options=--update-ratio 4"))
    assert [row["s_to_target"] for row in found.rows] == [100.0, 310.0, None]
    assert [(v.value, v.met) for v in found.verdicts] == [(pytest.approx(100 / 310), True), (None, False)]
    assert commands[0][commands[0].index("--eval-every") + 1] == "2500", "5,000 steps are 20,000 gradient steps, 8 at a time"
    assert found.command.startswith("rookery bench continuous --part score --system sac") and "PATH" in found.command


def test_a_roofline_that_fails_is_said_and_spoils_nothing_else():
    wanted = continuous.parse(["--system", "sac"])
    conditions = {"versions": {}}
    runs = [{"arm": "rookery", "kind": "rate", "command": "c", "steps_per_s": 9.0}]
    found = continuous.summarise(wanted, conditions, "sac", runs, process.Finished(1.0, {}, "it broke"))
    assert found.failures == ["rookery bench roofline sac: it broke"] and found.rows[0]["steps/s"] == 9.0


def test_ours_has_the_settings_of_the_driver():
    words = continuous.command(continuous.parse([]), "sac", 0)[1:-1]
    config, _ = parsing.parse_system("train", words)
    algorithm = config.algorithm
    assert (algorithm.batch_size, algorithm.learning_rate, algorithm.network.hidden) == (256, 3e-4, (256, 256))
    assert config.steps_per_update == algorithm.gradient_steps, "one gradient step for each environment step"


def test_the_roofline_of_a_replay_counts_each_part_per_environment_step(monkeypatch: pytest.MonkeyPatch):
    """A table is one more part, an update is worth the steps that pay for it, and nobody who waits in turn is called idle."""
    monkeypatch.setattr(roofline, "SETTLE_SECONDS", 0.0)
    small = "--network.hidden 8 8 --batch-size 8 --update-ratio 0.5 --replay.min-size 64 --env-processes 0 --num-envs 4"
    words = ["ddpg", "--env", "Pendulum-v1", *small.split(), "--seconds", "0.04", "--rounds", "1"]
    wanted = roofline.parse(words)
    assert wanted.config.steps_per_update == 16
    (found,) = roofline.measure(wanted)
    parts = {run["part"]: run for run in found.runs}
    assert set(parts) == {"environment", "inference", "learner", "table", "whole"}
    assert all(run["frames"] > 0 for run in parts.values()) and parts["learner"]["frames"] % 16 == 0
    assert parts["table"]["frames"] % 4 == 0 and parts["whole"]["frames"] == parts["whole"]["env_steps"]
    assert [v.bar for v in found.verdicts] == [0.75]


def test_a_system_whose_environments_are_compiled_in_has_no_parts_to_run_alone(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        roofline.parse(["anakin-sac", "--env", "jax:Pendulum-v1"])
    assert left.value.code == 2 and "no collectors" in capsys.readouterr().err
