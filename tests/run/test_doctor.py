"""`rookery doctor`: an environment that ends or hangs is a finding, advice can be typed, and the machine is compared with what
is tested."""

import dataclasses
import json
import re
import sys
import time
import tomllib
from pathlib import Path

import pytest

from rookery.envs.examination import Finding
from rookery.run import doctor, machine
from rookery.run.config import ConfigError

ROOT = Path(__file__).parents[2]
ENVS = Path(__file__).parents[1] / "envs"


def served(env):
    """The command that examines one of bad_envs, whose name no id has."""
    code = f"import sys; sys.path.insert(0, {str(ENVS)!r}); import bad_envs; from rookery.envs import examination as e"
    return [sys.executable, "-c", f"{code}; e.serve(bad_envs.{env}, {{}}, int(sys.argv[1]))"]


def test_an_environment_that_ends_its_process_is_a_finding_that_says_when():
    (fault,) = doctor.examine_env("x", {}, command=served("DiesInConstructor")).findings
    assert fault.level == "problem" and "status 9, while being made" in fault.text and fault.remedy


def test_an_environment_that_hangs_is_ended_and_is_a_finding_that_says_where():
    begin = time.monotonic()
    found = doctor.examine_env("x", {}, seconds=4.0, command=served("HangsAtOnce")).findings
    assert time.monotonic() - begin < 60
    assert found[0].part == "made" and "no answer within 4 s, while reset() or step() of random play" in found[-1].text


def test_a_process_that_says_why_it_ended_is_quoted_by_its_last_line():
    (fault,) = doctor.examine_env("x", {}, command=[sys.executable, "-c", "raise SystemExit('no disk\\nand no hope')"]).findings
    assert fault.text.endswith("with status 1, while starting: and no hope")


def test_an_environment_is_examined_in_a_process_of_its_own():
    found = doctor.examine_env("catch", {"rows": 6})
    assert all(finding.level == "ok" for finding in found.findings) and found.facts["actions"] == "discrete"
    assert "(6, 5)" in next(finding.text for finding in found.findings if finding.part == "spaces")
    with pytest.raises(ConfigError, match="CartPole-v1"):
        doctor.examine_env("CartPol-v1", {})


FACTS = {
    "choices": ("CartPole-v1", {"actions": "discrete", "step_seconds": 1e-5}, "ppo"),
    "slow choices": ("CartPole-v1", {"actions": "discrete", "step_seconds": 0.05}, "dqn"),
    "continuous": ("point-reach", {"actions": "continuous", "step_seconds": 1e-5}, "ppo"),
    "slow and continuous": ("point-reach", {"actions": "continuous", "step_seconds": 0.05}, "ppo"),
    "several": ("multi-discrete", {"actions": "several", "step_seconds": 1e-5}, "ppo"),
    "images": ("catch", {"actions": "discrete", "images": True}, "ppo"),
    "Atari": ("ALE/Pong-v5", {"actions": "discrete", "images": True, "frames": True}, "impala"),
    "JAX": ("jax:catch", {"actions": "discrete", "images": True}, "anakin-ppo"),
}


@pytest.mark.parametrize("env, facts, first", FACTS.values(), ids=FACTS.keys())
def test_what_is_recommended_can_be_typed(env, facts, first):
    from rookery.commands.parsing import parse_system
    from rookery.run.assemble import assemble

    advice = doctor.advise(env, {}, facts)
    assert advice[0].system == first and all(one.why for one in advice)
    for one in advice:
        words = one.command.split()
        assert words[:3] == ["rookery", "train", one.system]
        config, _ = parse_system("train", words[2:])
        if env != "ALE/Pong-v5":  # it is large
            assemble(config)
    assert ("frame_stack=4" in advice[0].command) == (env == "catch")


def test_no_system_is_recommended_where_the_spaces_could_not_be_read():
    assert doctor.advise("x", {}, {}) == []


@pytest.mark.parametrize("width", [60, 80, 140])
def test_findings_fit_the_terminal_and_none_of_their_words_is_lost(width):
    findings = [Finding("a", "ok", "fine " * 30), Finding("longer", "problem", "bad", "remedy " * 30)]
    text = doctor.told(findings, colour=False, width=width)
    assert max(map(len, text.splitlines())) <= min(width, 120)
    assert text.count("fine") == 30 == text.count("remedy") and doctor.summary(findings) == "1 problem"
    assert "\x1b[1;31mproblem" in doctor.told(findings, colour=True, width=width)


# ------------------------------------------------------------------------------------------------------ the machine


def test_the_versions_that_are_compared_are_those_of_the_constraints_and_of_the_package():
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = dict(word.split(">=") for word in project["dependencies"])
    assert {name: (tested[name], least[name]) for name in least} == machine.NEEDED
    for extra, (packages, _) in machine.EXTRAS.items():
        named = {re.split(r"[><=\[]", word)[0] for word in project["optional-dependencies"][extra]}
        assert packages == {name: tested[name] for name in packages} and (named <= set(packages) or named == {"gymnasium"})
    ours = set(project["optional-dependencies"]) - {"cuda", "docs", "all", "test"}
    assert ours == set(machine.EXTRAS), "cuda is said where jax is"


def findings_of(monkeypatch, versions):
    monkeypatch.setattr(machine, "_version", lambda name: versions.get(name, machine.NEEDED.get(name, ("1",))[0]))
    return list(machine._packages())[1:]


def test_a_package_that_is_missing_or_too_old_is_a_problem_and_another_version_a_note(monkeypatch):
    found = findings_of(monkeypatch, {"jax": None, "optax": "0.1.9", "numpy": "2.9.0"})
    assert [(f.level, f.text.split(",")[0]) for f in found[:3]] == [
        ("problem", "jax is missing"), ("problem", "optax 0.1.9 is too old"), ("note", "numpy 2.9.0")
    ]  # fmt: skip
    assert all("pip install" in f.remedy for f in found[:3]) and found[3].level == "ok"


def test_directories_that_cannot_be_written_are_told(monkeypatch, tmp_path):
    assert [f.level for f in machine._directories(tmp_path / "runs")] == ["ok"]
    assert not [*tmp_path.iterdir()], "nothing is made"
    monkeypatch.setattr(machine, "_writable", lambda path: False)
    (fault,) = machine._directories(tmp_path)
    assert fault.level == "problem" and "--runs" in fault.remedy


def test_options_of_an_environment_are_read_as_train_reads_them():
    chosen = machine.DoctorOptions(env_options=("rows=6", "dtype=uint8", "full=True"))
    assert machine.env_options(chosen) == {"rows": 6, "dtype": "uint8", "full": True}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        machine.env_options(dataclasses.replace(chosen, env_options=("rows",)))


def test_a_finding_is_plain_json():
    assert json.loads(json.dumps(Finding("a", "ok", "b")._asdict())) == {"part": "a", "level": "ok", "text": "b", "remedy": ""}
