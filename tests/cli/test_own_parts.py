"""An environment, a network and an algorithm of the user's own, typed by name: trained, shown, resumed, evaluated, refused."""

from __future__ import annotations

import json
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from command_line import SMALL, Command
from own_files import GRID, NETWORK, REGISTERED, forgotten, write

import rookery as library
from rookery.run import trust
from rookery.run.config import ConfigError
from rookery.run.directory import Run
from rookery.run.records import sealed
from rookery.run.resuming import known_config
from rookery.run.trust import NotTrusted

EXAMPLES = Path(__file__).parents[2] / "examples"
SPY = "import pathlib\n\npathlib.Path(__file__).with_name('imported').touch()\n"
WORDS = ("a2c", "--env", "grid_c.py:GridEnv", "--network", "net_c:small", "--env-options", "size=4")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """One small run with an environment and a network that were typed; no test may change it."""
    rookery = Command(tmp_path_factory.mktemp("own"))
    write(rookery.directory, grid_c=SPY + GRID, net_c=NETWORK, grid_d=REGISTERED)
    with forgotten(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(rookery.directory)
        patch.setenv("XDG_STATE_HOME", str(rookery.directory / "state"))
        answer = rookery("train", *WORDS, *SMALL, "--total-steps", "64", "--checkpoint-every", "1", "--json")
        assert answer.status == 0, answer
        (rookery.directory / json.loads(answer.out)["run"]).rename(rookery.directory / "runs" / "r")
        yield rookery


@pytest.fixture
def copied(typed):
    """A copy of the run, `c`, that a test may change."""
    shutil.copytree(typed.directory / "runs" / "r", typed.directory / "runs" / "c")
    yield typed.directory / "runs" / "c"
    shutil.rmtree(typed.directory / "runs" / "c")


def config_of(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())


def rewritten(run: Path, **references: str) -> None:
    """Change the references as a stranger could: the file's own digest is right."""
    value = config_of(run)
    del value["digest"]
    value["config"]["references"] |= references
    (run / "config.json").write_bytes(sealed(value))


def test_a_run_is_named_by_what_stands_behind_the_colon_and_its_command_repeats_it(typed):
    told = config_of(typed.directory / "runs" / "r")
    assert told["config"]["env"] == "GridEnv" and told["config"]["custom"] == ["env", "torso"]
    words = shlex.split(told["command"])
    assert words[:7] == ["rookery", "train", "a2c", "--env", f"{typed.directory}/grid_c.py:GridEnv", "--network", "net_c:small"]
    assert json.loads(typed("list", "runs", "--json").out)[0]["env"] == "GridEnv"
    shown = typed("show", *words[2:])
    assert shown.status == 0 and "on GridEnv" in shown.out and "size=4" in shown.out


def test_it_is_evaluated_recorded_and_resumed_without_naming_anything_again(typed, copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    away = Command(tmp_path)  # from any directory: net_c is a module of the one in which it was trained
    assert away("eval", str(copied), "--episodes", "2").status == 0
    recorded = away("record", str(copied), "--out", "demos", "--episodes", "2")
    assert recorded.status == 0 and f"--env {typed.directory}/grid_c.py:GridEnv" in recorded.out
    resumed = away("resume", str(copied), "--total-steps", "128", "--json")
    assert resumed.status == 0 and json.loads(resumed.out)["env_steps"] >= 128
    assert trust.is_signed(config_of(copied)["config"]), "also as it goes on, with another option"


def test_a_run_of_a_stranger_is_refused_by_every_command_until_it_is_named_or_trusted(typed, copied):
    rewritten(copied, env="os:system")
    for words in (["resume", "c", "--total-steps", "128"], ["eval", "c"], ["record", "c", "--out", "demos"]):
        asked = typed(*words)
        assert asked.status == 2 and asked.err.count("\n") == 1 and "c names code: env 'os:system', torso" in asked.err
        assert f"`rookery {words[0]} c --trust`" in asked.err
    with pytest.raises(NotTrusted, match="trust=True"):
        library.resume(copied, total_steps=128)
    rewritten(copied, env=f"{typed.directory}/grid_c.py:GridEnv", torso="net_c:small", directory="/elsewhere")
    (typed.directory / "imported").unlink(missing_ok=True)
    assert typed("resume", "c", "--env", "grid_c.py:GridEnv").status == 2, "the network is not named yet"
    given = ["--env", "grid_c.py:GridEnv", "--network", "net_c.py:small"]
    assert known_config(Run.open(copied), trust=True).own_names["env"].endswith("grid_c.py:GridEnv")
    resumed = typed("resume", "c", *given, "--total-steps", "128")
    assert resumed.status == 0, resumed
    assert typed("eval", "c", "--episodes", "1").status == 0, "it is this user's now"


def test_a_run_is_loaded_only_with_what_its_config_names_passed_again(typed, monkeypatch):
    monkeypatch.chdir(typed.directory)
    names = r"rookery.load\(run, torso='net_c:small'\)"  # the environment is not needed to act
    with forgotten():
        (typed.directory / "imported").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=names):
            library.load("runs/r")
        assert not (typed.directory / "imported").exists(), "though this user has signed it"
    policy = library.load("runs/r", env="grid_c.py:GridEnv", torso="net_c:small")
    assert policy([0.5, 0.5])[0] in range(4)


def test_the_copy_of_the_config_in_a_checkpoint_is_signed_too(copied):
    (copied / "config.json").write_bytes((copied / "config.json").read_bytes()[:-9])
    with warnings.catch_warnings(record=True):
        assert known_config(Run.open(copied)).own_names["torso"] == "net_c:small"


def test_objects_without_a_name_are_asked_for_by_a_call_that_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, net_e=NETWORK)
    rookery = Command(tmp_path)
    with forgotten():
        from rookery import references

        torso = references.load("net_e:small")()
        options = {"num_envs": 4, "rollout_length": 8, "eval_episodes": 1, "run": "r"}
        result = library.train("a2c", env="identity", torso=torso, total_steps=32, **options)
        assert config_of(tmp_path / "runs" / "r")["command"].startswith("# made in Python with torso of its own")
        asked = rookery("resume", "r", "--total-steps", "64")
        assert asked.status == 2 and "`rookery.resume('runs/r', torso=...)` in Python, or --network FILE.py:NAME" in asked.err
        assert "rookery.load('runs/r', torso=...)" in rookery("eval", "r").err
        with pytest.raises(Exception, match=r"already holds a run. Continue it with `rookery.resume\('runs/r', torso=...\)`"):
            library.train("a2c", env="identity", torso=torso, total_steps=32, **options)
        again = library.resume("runs/r", torso=torso, total_steps=64)
        assert again.run == result.run and again.metrics["env_steps"] >= 64 and again.status == "done"
        with pytest.raises(ConfigError, match=r"no option 'total_step'. Did you mean 'total_steps'"):
            library.resume("runs/r", torso=torso, total_step=64)
        assert rookery("resume", "r", "--network", "net_e.py:small", "--total-steps", "96", "--json").status == 0
        assert rookery("eval", "r", "--episodes", "1").status == 0, "and now it has a name"


def test_an_algorithm_by_name_keeps_the_topology_and_has_its_options_on_the_command_line(rookery):
    reinforce = f"{EXAMPLES}/custom_algorithm.py:Reinforce"
    with forgotten():
        words = ["--env", "identity", "--max-weight", "1.5", "--num-envs", "4", "--total-steps", "256", "--run", "r"]
        trained = rookery("train", "impala", "--algorithm", reinforce, *words, "--eval-episodes", "2", "--json")
        assert trained.status == 0 and json.loads(trained.out)["system"] == "Reinforce", trained
        config = config_of(rookery.directory / "runs" / "r")
        assert config["config"]["topology"]["class"] == "ActorLearner" and config["config"]["algorithm"]["max_weight"] == 1.5
        assert shlex.split(config["command"])[2:7] == [reinforce, "--env", "identity", "--topology", "actor-learner"]
        assert json.loads(rookery("eval", "r", "--episodes", "2", "--json").out)["system"] == "Reinforce"
        helped = rookery("train", reinforce, "--env", "identity", "--help")
        assert helped.status == 0 and "--max-weight" in helped.out and "--algorithm NAME" in helped.out
        shown = rookery("show", *shlex.split(config["command"])[2:])
        assert shown.status == 0 and "Reinforce = Reinforce × ActorLearner" in shown.out


def test_a_network_of_flax_and_a_topology_are_found_by_name(rookery):
    with forgotten():
        words = ["--env", "CartPole-v1", "--network", f"{EXAMPLES}/custom_network.py:Residual", "--num-envs", "4"]
        assert rookery("show", "ppo", *words, "--json").status == 0
        words = ["--topology", f"{EXAMPLES}/custom_topology.py:Reuse", "--epochs", "3"]
        shown = rookery("show", "impala", "--env", "catch", *words)
        assert shown.status == 0 and "VTrace × Reuse" in shown.out and "E updates on each batch" in shown.out


REFUSED = {
    "no attribute": (["ppo", "--env", "grid_c.py:GridEvn"], "grid_c.py has no 'GridEvn': did you mean 'GridEnv'?"),
    "no file": (["ppo", "--env", "grid.py:GridEnv"], "there is no file 'grid.py'"),
    "no module": (["ppo", "--env", "grids:GridEnv"], "there is no module 'grids'"),
    "no id": (["ppo", "--env", "grid_d:Grid-v3"], "has no 'Grid-v3': did you mean 'Grid-v0'"),
    "raises": (["ppo", "--env", "broken.py:GridEnv"], "broken.py raises when it is imported, in broken.py line 2: Zero"),
    "no network": (["ppo", "--env", "identity", "--network", "grid_c.py:GridEnv"], "gives a GridEnv: a network is (init,"),
    "no algorithm": (["ppo", "--env", "identity", "--algorithm", "grid_c.py:GridEnv"], "an algorithm is a frozen dataclass"),
    "no reference": (["ppo", "--env", "identity", "--algorithm", "Mine"], "is written as path/to/file.py:Name or module:Name"),
    "makes nothing": (["ppo", "--env", "broken2.py:make"], "'make' makes a NoneType: a gymnasium.Env is expected"),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_name_that_is_wrong_is_refused_before_anything_is_made(rookery, words, said):
    write(rookery.directory, grid_c=GRID, grid_d=REGISTERED, broken="x = 1\nx / 0", broken2="def make():\n    pass\n")
    before = rookery.files
    with forgotten():
        asked = rookery("train", *words)
    made = [path for path in rookery.files if path not in before and "__pycache__" not in path]
    assert asked.status == 2 and said in asked.err and "Traceback" not in asked.err and not made, asked
