"""Options in a file: they are read back as they were written, the command line wins, and all that is wrong has its line."""

import json

import pytest

from rookery import systems
from rookery.commands import parsing
from rookery.run import config, config_files, origins
from rookery.run.config import ConfigError, resolve


def written(tmp_path, text, name="a.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("form", ["toml", "json"])
@pytest.mark.parametrize("system", systems.SYSTEMS)
def test_a_written_config_is_read_back_as_it_was_for_every_system(tmp_path, system, form):
    for env in ("CartPole-v1", "ALE/Pong-v5", "identity"):
        given = {"env_options": {"x": None, 'a "b"': [1, "c\n"]}, "network": {"core_size": 17}, "stop_return": 3.0}
        before = resolve(system, env=env, **given)
        path = written(tmp_path, config_files.dump(before, form), f"a.{form}")
        assert config_files.read(path).resolve() == before


def test_what_is_none_against_a_preset_and_another_topology_survive(tmp_path):
    from rookery.topologies.sync import Sync

    preset = resolve("appo", env="ALE/Pong-v5", reward_clip="none", minibatches=None, topology=Sync())
    assert resolve("appo", env="ALE/Pong-v5").algorithm.minibatches == 4
    text = config_files.dump(preset, "toml")
    assert 'minibatches = "None"' in text and 'topology = "sync"' in text
    assert config_files.read(written(tmp_path, text)).resolve() == preset


WRONG = """\
system = "ppo"   # a comment
env = "identity"
lr = 3

total-steps = 1.5
num_envs = "many"
discount = 1.5
network.hiden = [3]
seeed = 3
[collector]
cpus = -1
"""


def test_all_that_is_wrong_is_told_at_once_with_file_line_and_key(tmp_path):
    path = written(tmp_path, WRONG)
    with pytest.raises(ConfigError) as refused:
        config_files.read(path).resolve()
    lines = [line.replace(path, "F") for line in str(refused.value).splitlines()]
    for said in (
        "F:3: lr is learning_rate here.", "F:5: total_steps = 1.5: it must be a whole number",
        'F:6: num_envs = "many": it must be a whole number', "F:7: --discount 1.5: it must be at least 0 and at most 1",
        "F:8: network has no option 'hiden'. Did you mean 'hidden'?", "F:9: ppo has no option 'seeed'. Did you mean 'seed'?",
        "F:11: --collector.cpus -1.0: it must be at least 0",
    ):  # fmt: skip
        assert said in lines, lines
    assert lines[0] == "7 options cannot be so:"


def test_a_file_in_json_has_lines_too(tmp_path):
    text = '{\n "system": "ppo", "env": "identity",\n "network": {\n  "core": "lstn"\n },\n "env_options": 3\n}'
    path = written(tmp_path, text, "a.json")
    with pytest.raises(ConfigError, match=r"a.json:6: env_options = 3: it should be a table"):
        config_files.read(path)
    path = written(tmp_path, text.replace('"env_options": 3', '"clip": -1'), "a.json")
    with pytest.raises(ConfigError) as refused:
        config_files.read(path).resolve()
    assert 'a.json:4: network.core = "lstn": it must be one of none, lstm, gru' in str(refused.value)
    assert "a.json:6: --clip -1.0: it must be more than 0" in str(refused.value)


BROKEN = {
    "no toml": ("system = ", "neither TOML nor JSON"), "half": ("{", "neither TOML nor JSON"),
    "no system": ("seed = 1", "names no system"),
    "no env": ('system = "ppo"', "names no env"), "an unknown system": ('system = "ppoo"\nenv = "identity"', "'ppo'"),
    "a group as a value": ('system = "ppo"\nenv = "identity"\nnetwork = 3', "network is a group of options, a table: ["),
    "code": ('system = "ppo"\nenv = "os:system"', "code to import, and no file may cause that: type --env os:system"),
    "a file of code": ('system = "ppo"\nenv = "envs.py:Grid"', "type --env envs.py:Grid"),
}  # fmt: skip


@pytest.mark.parametrize("text, said", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, said):
    with pytest.raises(ValueError) as refused:
        config_files.read(written(tmp_path, text)).resolve()
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no such file, and no run of that name"):
        config_files.read(str(tmp_path / "nix.toml"))


def test_what_is_typed_wins_over_the_file(tmp_path):
    path = written(tmp_path, 'system = "ppo"\nenv = "identity"\nseed = 3\ndiscount = 0.5\n[network]\nhidden = [4]\n')
    cfg, flags = parsing.parse_system("train", ["--config", path, "--seed", "7", "--network.core", "lstm"])
    assert (cfg.system, cfg.env, cfg.run.seed, cfg.algorithm.discount) == ("ppo", "identity", 7, 0.5)
    assert cfg.algorithm.network.hidden == (4,) and cfg.algorithm.network.core == "lstm" and flags["config"] == path
    cfg, _ = parsing.parse_system("train", ["a2c", f"--config={path}", "--env", "catch", "--topology", "async-gradients"])
    assert (cfg.system, cfg.env, type(cfg.topology).__name__) == ("a2c", "catch", "AsyncGradients")


def test_another_topology_than_the_files_leaves_out_what_it_does_not_have(tmp_path):
    path = written(tmp_path, 'system = "a2c"\nenv = "identity"\ntopology = "gossip"\npeers = 2\nseed = 3\n')
    assert config_files.read(path).resolve().topology.peers == 2
    cfg, _ = parsing.parse_system("train", ["--config", path, "--topology", "sync"])
    assert type(cfg.topology).__name__ == "Sync" and cfg.run.seed == 3


def test_the_config_of_a_run_is_accepted_without_what_is_its_own(tmp_path):
    before = resolve("dqn", env="identity", seed=3, run="mine", runs="elsewhere", replay={"capacity": 5_000})
    path = written(tmp_path, json.dumps(before.to_dict()), "config.json")
    after = config_files.read(path).resolve()
    assert after.run.run is None and after.run.runs == "runs" and after.algorithm == before.algorithm
    custom = before.to_dict() | {"custom": ["env"]}
    with pytest.raises(ConfigError, match="made in Python with env of its own"):
        config_files.read(written(tmp_path, json.dumps(custom), "config.json"))


def test_every_option_says_where_it_comes_from(tmp_path):
    path = written(tmp_path, 'system = "ppo"\nclip = 0.3\n[network]\nhidden = [4]\n[env_options]\nx = 1\n')
    words = ["--config", path, "--env", "CartPole-v1", "--no-anneal", "--seed", "0", "--network.core", "lstm"]
    _, file, rest = parsing.base_of("train", words)
    cfg, _ = parsing.parse_system("train", words)
    found = {(option.group, option.name): option.origin for option in origins.options(cfg, file, rest)}
    assert found["PPO", "clip"] == found["network", "hidden"] == found["environment", "x"] == path
    assert found["PPO", "anneal"] == found["run", "seed"] == found["network", "core"] == "command line"
    assert found["PPO", "discount"] == found["Sync", "num_envs"] == "preset CartPole-v1"
    assert found["PPO", "gae_lambda"] == "default"
    a2c, _ = parsing.parse_system("train", ["a2c", "--env", "identity"])
    kinds = {option.name: option.kind for option in origins.options(a2c, config_files.NO_FILE, [])}
    assert kinds["rollout_length"] == "derived"
    gala, _ = parsing.parse_system("train", ["gala", "--env", "identity"])
    assert {o.name: o.origin for o in origins.options(gala, config_files.NO_FILE, [])}["entropy_cost"] == "system gala"
    assert config.problems(cfg) == []
