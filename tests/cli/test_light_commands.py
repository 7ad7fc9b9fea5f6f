"""Help and lists are there at once: they never import jax, and a closed pipe does not trouble them."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import sys
from pathlib import Path
from rookery import cli
try:
    cli.main(sys.argv[1:])
except SystemExit as left:
    heavy = sorted({"jax", "flax", "optax", "tyro", "rich"} & set(sys.modules))
    print("HEAVY", heavy, "STATUS", left.code, file=sys.stderr)
"""


LIGHT = [["--help"], ["list", "systems"], ["list", "envs"], ["list", "runs"], ["--version"], ["bench"]]


@pytest.mark.parametrize("words", LIGHT)
def test_help_and_lists_import_nothing_heavy_and_are_quick(words, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, cwd=tmp_path, env=_env())
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert "HEAVY [] STATUS 0" in done.stderr, done.stderr
    assert done.stdout
    assert seconds < 1.5, "0.6 s when the machine is free"


def test_a_closed_pipe_ends_a_list_quietly(tmp_path):
    script = f"{sys.executable} -m rookery.cli list envs | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=_env())
    assert done.returncode == 0 and not done.stderr and len(done.stdout.splitlines()) == 1


def test_a_stream_that_knows_ascii_alone_is_written_to(tmp_path):
    command, env = [sys.executable, "-m", "rookery.cli", "list", "systems"], _env() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0 and "ppo" in done.stdout and not done.stderr


def test_the_help_names_every_command(rookery):
    answer = rookery("--help")
    assert answer.status == 0
    for command in ("train", "resume", "eval", "show", "list", "bench"):
        assert f"rookery {command} " in answer.out


def test_benches_that_are_not_installed_are_missed_in_one_sentence(monkeypatch, capsys):
    from rookery import cli
    from rookery.commands.status import BAD_CONFIG

    monkeypatch.setitem(sys.modules, "rookery_bench", None)  # to import it now fails, as where it is missing
    with pytest.raises(SystemExit) as left:
        cli.command(["bench", "torn"])
    said = capsys.readouterr().err
    assert left.value.code == BAD_CONFIG and "rookery_bench" in said and "pip install" in said and said.count("\n") == 1


def test_systems_and_environments_are_listed(rookery):
    systems = json.loads(rookery("list", "systems", "--json").out)
    assert {"ppo", "a2c", "pg", "impala", "appo"} <= {row["system"] for row in systems}
    environments = json.loads(rookery("list", "envs", "--json").out)
    assert {"CartPole-v1", "identity", "catch"} <= {row["id"] for row in environments}
    table = rookery("list", "systems").out.splitlines()
    assert table[0].split()[:3] == ["system", "algorithm", "topology"] and table[len(systems) + 1] == ""
    matrix = {line.split()[0]: line for line in rookery("list", "matrix").out.splitlines() if line}
    assert "anakin-ppo" in matrix["PPO"] and "impala seed" in matrix["VTrace"] and "es" in matrix["ES"]
    assert "rookery train" in rookery("list", "runs").out and rookery("list", "runs", "--json").out == "[]\n"


def test_a_table_fits_a_narrow_terminal():
    from rookery.run import listing

    lines = listing.table(listing.envs(), width=80).splitlines()
    assert max(map(len, lines)) <= 80 and any("…" in line for line in lines)


def test_options_are_shown_in_groups_with_the_values_for_the_environment(rookery):
    answer = rookery("train", "ppo", "--env", "CartPole-v1", "--help")
    assert answer.status == 0 and len(answer.out.splitlines()) < 160
    for part in ("run options", "PPO options", "Sync options", "network options", "(default: 300000)", "Schulman"):
        assert part in answer.out, part
    assert "(default: None)" not in answer.out and "{None}" not in answer.out


@pytest.mark.parametrize("system, word", [("impala", "ActorLearner"), ("ppo", "Sync")])
def test_show_prints_the_figure_with_counts_and_bytes(rookery, system, word):
    answer = rookery("show", system, "--env", "identity", "--num-envs", "16")
    assert answer.status == 0
    for part in ("──▶ learner", "16 × environment", "1 × learner", "kB each", "B = 16", word, "steps per update"):
        assert part in answer.out, part
    graph = json.loads(rookery("show", system, "--env", "identity", "--num-envs", "16", "--json").out)
    assert graph["nodes"] == {"environment": 16, "collector": 1, "queue": 1, "learner": 1}
    assert {edge["name"] for edge in graph["edges"]} == {"rollouts", "batches", "parameters"}
    assert all(edge["nbytes"] > 0 and edge["when_full"] for edge in graph["edges"])


def _env():
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "100"}


@pytest.mark.parametrize("page, least", [("README.md", 2), ("docs/using.md", 3)])
def test_the_commands_of_the_pages_are_understood(page, least):
    from rookery.commands import parsing

    text = (Path(__file__).parents[2] / page).read_text()
    lines = re.findall(r"(?:^|^\$ |&& )(rookery (?:train|show) .*)$", text, re.M)
    typed = [shlex.split(line, comments=True) for line in lines]
    assert len(typed) >= least
    for words in typed:
        config, _ = parsing.parse_system(words[1], words[2:], env_default="CartPole-v1")
        assert config.system == words[2]
