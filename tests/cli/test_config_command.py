"""`rookery config`: show, diff and check, from files, systems and runs."""

import json
import shutil

import pytest

from rookery.run import config_files


def test_show_lists_every_option_with_its_value_and_its_origin(rookery):
    answer = rookery("config", "show", "PPO", "--env", "CartPole-v1", "--seed", "4")
    assert answer.status == 0 and answer.out.startswith("ppo on CartPole-v1, Sync\n") and "PPO is called ppo here" in answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["seed", "4", "command", "line"] in lines and ["num-envs", "128", "preset", "CartPole-v1"] in lines
    only = rookery("config", "show", "ppo", "--env", "CartPole-v1", "--seed", "4", "--only", "preset,command-line", "--json")
    rows = json.loads(only.out)
    assert {row["origin"] for row in rows} == {"preset CartPole-v1", "command line"} and len(rows) < 15
    assert rookery("config", "show", "ppo", "--env", "identity", "--only", "presets").status == 2
    assert "no option comes from file" in rookery("config", "show", "ppo", "--env", "identity", "--only", "file").out


@pytest.mark.parametrize("form", ["toml", "json"])
def test_a_shown_file_trains_the_same_and_is_found_fine(rookery, form):
    typed = ("a2c", "--env", "identity", "--num-envs", "4", "--network.hidden", "4")
    text = rookery("config", "show", *typed, "--format", form).out
    (rookery.directory / f"a.{form}").write_text(text)
    assert rookery("config", "show", "--config", f"a.{form}", "--format", form).out == text
    answer = rookery("config", "check", f"a.{form}")
    assert (answer.status, answer.out) == (0, f"a.{form} is fine: a2c on identity\n")


def test_check_names_what_is_wrong_with_status_2_and_makes_nothing(rookery):
    (rookery.directory / "a.toml").write_text('system = "ppo"\nenv = "identity"\nclip = -1\ngamma = 1\n')
    answer = rookery("config", "check", "a.toml")
    assert answer.status == 2 and "a.toml:3: --clip -1.0" in answer.err and "a.toml:4: gamma is discount here" in answer.err
    told = json.loads(rookery("config", "check", "a.toml", "--json").out)
    assert told["fine"] is False and len(told["wrong"]) == 3
    (rookery.directory / "a.toml").write_text('system = "ppo"\nenv = "identity"\nminibatches = 7\n')
    answer = rookery("config", "check", "a.toml")
    assert answer.status == 2 and "7 equal minibatches" in answer.err and rookery.files == ["a.toml"]


def test_a_run_is_checked_compared_and_repeated(rookery, trained):
    shutil.copytree(trained.run, rookery.directory / "runs" / "first")
    assert rookery("config", "check", "first").out == "first is fine: a2c on identity\n"
    assert rookery("config", "diff", "first", "runs/first/config.json").out.splitlines()[0].split() == [
        "option", "first", "runs/first/config.json"
    ]  # fmt: skip
    told = json.loads(rookery("config", "diff", "a2c", "first", "--env", "identity", "--json").out)
    rows = {row["option"]: (row["a"], row["b"]) for row in told}
    assert rows["seed"] == ("0", "3") and rows["network.hidden"] == ("64 64", "8")
    file = config_files.read(str(rookery.directory / "runs" / "first" / "config.json"))
    assert file.resolve().run.seed == 3 and file.resolve().run.run is None


WRONG = {
    "nothing": (["config", "shw"], "Did you mean 'show'"), "one side": (["config", "diff", "ppo"], "which two?"),
    "no side": (["config", "diff", "ppo", "nix"], "no run 'nix'"), "no file": (["config", "check"], "FILE|RUN"),
    "form": (["config", "show", "ppo", "--env", "identity", "--format", "yaml"], "toml or json"),
    "no system": (["train", "--config", "nix.toml"], "there is no such file"),
}  # fmt: skip


@pytest.mark.parametrize("words, said", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_is_refused(rookery, words, said):
    answer = rookery(*words)
    assert answer.status == 2 and said in answer.err and rookery.files == []


def test_the_help_of_config_shows_its_commands(rookery):
    for words in (("config",), ("config", "--help"), ("config", "show", "--help")):
        assert "rookery config diff A B" in rookery(*words).out
