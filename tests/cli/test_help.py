"""What `--help` prints: a line for every option, in two columns at every width, without the second that jax takes."""

import dataclasses
import importlib
import re
import subprocess
import sys

import pytest

import rookery_bench
from rookery import systems
from rookery.commands import COMMANDS
from rookery.run import described, help_page, listing, options
from rookery.run.config import resolve
from rookery.run.two_columns import fitted, page

HEAVY = {"jax", "jaxlib", "flax", "optax", "ray", "scipy", "matplotlib", "torch"}
PROBE = f"""
import sys
from rookery import cli
for words in sys.argv[1:]:
    try:
        cli.main(words.split())
    except SystemExit as left:
        print("STATUS", left.code, sorted({HEAVY} & set(sys.modules)), file=sys.stderr)
"""
PAGES = (
    "--help", "help", "help train", "train --help", "train ppo --env CartPole-v1 --help", "help train ppo",
    "train dqn --topology parameter-server --help", "show impala --help", "eval --help", "record --help", "resume --help",
    "list --help", "list runs --help", "bench --help",
)  # fmt: skip


def test_no_help_imports_jax(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROBE, *PAGES], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stderr.splitlines() == ["STATUS 0 []"] * len(PAGES), done.stderr


def test_the_help_of_a_run_shows_its_values_without_jax(trained):
    code = PROBE.replace("words.split()", "words.split()[:-1] + ['--help']")
    words = [sys.executable, "-c", code, "resume first -"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=trained.rookery.directory, timeout=60)
    assert done.stderr.splitlines() == ["STATUS 0 []"], done.stderr
    assert "(default: 640)" in done.stdout and "(default: symbols=3)" in done.stdout and "--learning-rate NUM≥0" in done.stdout


@pytest.mark.parametrize("name, env", [(name, "CartPole-v1") for name in systems.SYSTEMS] + [("ppo", "Pong-v4")])
def test_the_page_from_the_table_is_the_page_from_the_parts(name, env, capsys):
    with pytest.raises(SystemExit):
        options.parse(f"rookery train {name}", ["--help"], resolve(name, env=env))
    assert capsys.readouterr().out.strip() == help_page.of_system(f"rookery train {name}", name, env)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", ["ppo", "r2d2", "anakin-dqn", "ars"])
def test_every_line_of_a_page_has_a_description_in_one_column(name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = help_page.of_system(f"rookery train {name}", name, "CartPole-v1").splitlines()
    assert max(map(len, lines)) <= width
    begins = set()
    for number, line in enumerate(lines):
        if re.match(r"  -", line):
            found = re.match(r"  \S+(?: \S+)*?  +(?=\S)", line)
            if found is None:  # too wide a label: the text is below it, or below its second line
                below = [after for after in lines[number + 1 : number + 3] if not re.match(r" {6}\S", after)]
                found = re.match(r" {20,}(?=\S)", below[0])
            assert found, line
            begins.add(found.end())
    assert len(begins) == 1, "one column"
    text = "\n".join(lines)
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|TUPLE|\(default: \)", text), "words, not Python"


def test_a_switch_and_a_value_that_is_left_out_are_typed_as_the_help_says():
    base = resolve("ppo", env="CartPole-v1", value_clip=0.2, total_updates=3)
    words = "--value-clip none --normalise-rewards no --normalise-observations none --no-anneal --total-updates None --seed 1e3"
    cfg, _ = options.parse("rookery train ppo", words.split(), base)
    assert cfg.algorithm.value_clip is None and cfg.algorithm.normalise_rewards is False and cfg.algorithm.anneal is False
    assert cfg.algorithm.normalise_observations is None and cfg.run.total_updates is None and cfg.run.seed == 1000
    for wrong in ("--normalise-rewards maybe", "--value-clip nothing"):
        with pytest.raises(SystemExit) as left:
            options.parse("rookery train ppo", wrong.split(), base)
        assert left.value.code == 2


@pytest.mark.parametrize("name", sorted(set(rookery_bench.BENCHES)))
def test_every_option_of_every_bench_is_explained(name, capsys):
    assert rookery_bench.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    module = importlib.import_module(f"rookery_bench.{name}")
    known = described.of(getattr(module, "Bench", module.Options))
    assert f"usage: rookery bench {name}" in out and "-h, --help" in out
    assert not [option.name for option in known.options if not option.says]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_list_of_commands_fits_every_terminal(width):
    from rookery.cli import USAGE

    for text in (USAGE, rookery_bench.USAGE):
        lines = fitted(text, width).splitlines()
        assert max(map(len, lines)) <= max(width, 40)
        assert " ".join(" ".join(lines).split()) == " ".join(text.split()), "not a word is lost"
    assert all(f"rookery {name} " in USAGE for name in COMMANDS)


def test_a_label_that_no_terminal_can_hold_is_broken_at_its_choices():
    lines = [("--kind " + "|".join(["abcdefgh"] * 6), "Says.")]
    (*_, first, second, text) = page(["x"], "", [("t", "", lines)], 40).splitlines()
    assert first.endswith("|") and second.startswith("      ") and text.strip() == "Says." and len(first) <= 40


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_a_list_of_runs_never_cuts_a_name(width):
    row = dict(run="sample-factory-MontezumaRevengeNoFrameskip-v4-20261118-032632", system="sample-factory",
               env="MontezumaRevengeNoFrameskip-v4", env_steps=10_000_000, return_mean=12.3456, status="running",
               age_seconds=4000, path="x")  # fmt: skip
    rows = [row, row | {"run": "first", "env": "CartPole-v1"}]
    text = listing.table(rows, width, listing.SPARE["runs"])
    assert row["run"] in text and "10,000,000" in text and "12.3" in text and "running" in text and "…" not in text
    longest = max(len(line) for line in text.splitlines() if row["run"] not in line)
    assert longest <= width


def test_a_table_of_other_things_keeps_its_names_too():
    for what in ("systems", "envs"):
        rows = getattr(listing, what)()
        lines = listing.table(rows, 60, listing.SPARE[what]).splitlines()
        assert max(map(len, lines)) <= 60 and all(next(iter(row.values())) in line for row, line in zip(rows, lines[1:]))


def test_an_option_of_a_users_own_dataclass_is_described():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine:
        """What is mine."""

        strange: tuple[float, ...] = (1.0, 2.5)
        missing: int

    part = described.of(Mine)
    assert [(o.takes, o.default) for o in part.options] == [("NUM ...", [1.0, 2.5]), ("INT", None)]
    assert "--strange NUM ...  (default: 1 2.5)" in help_page.of_kind("x", Mine)
