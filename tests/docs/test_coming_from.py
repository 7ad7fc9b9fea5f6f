"""docs/coming_from.md: each of the 36 rows that says `present` is shown by what it says, and our names in its tables exist."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing
from pathlib import Path

import pytest
from blocks import ROOT, Reader

from rookery.run.config import RunOptions
from rookery.systems import SYSTEMS

PAGE = ROOT / "docs" / "coming_from.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (present|partly|not yet) \| (.*?) ?\|$", re.M)
ROWS = ROW.findall(PAGE.read_text())
MISSING = {"web page", "server", "hub", "export", "search", "several agents", "offline"}  # they come next
SMALL = {"total_steps": 512, "num_envs": 8, "rollout_length": 16, "eval_episodes": 2}
LIBRARIES = ("Stable-Baselines3", "CleanRL", "RLlib", "Sample Factory")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who has read the page up to its first table, where rows are tried."""
    reader = Reader(tmp_path_factory.mktemp("coming_from"))
    reader.follow(PAGE)
    return reader


def test_there_are_36_rows_of_which_29_are_present():
    assert [int(row[0]) for row in ROWS] == [*range(1, 37)]
    present = [row for row in ROWS if row[2] == "present"]
    assert len(present) >= 29 and all(row[3].startswith("`") for row in present)
    for _, feature, state, _ in ROWS:
        assert state == "present" or any(word in feature for word in MISSING), f"{feature} is {state}"


@pytest.mark.parametrize("shown", [row[3].strip("`") for row in ROWS if row[3]])
def test_what_a_row_says_works(reader: Reader, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    reader.printed = ""
    if shown.startswith(("rookery ", "python ")):
        small = shown.startswith("rookery train") and "--help" not in shown
        words = [f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items()] if small else []
        status = reader.type(" ".join([shown, *words]))
        assert status == 0, reader.printed
    else:
        given = {name: value for name, value in SMALL.items() if f"{name}=" not in shown} if "rookery.train" in shown else {}
        call = re.sub(r"\)$", "".join(f", {name}={value}" for name, value in given.items()) + ")", shown)
        with reader._here():
            exec(call, reader.names)


def flags() -> set[str]:
    """Every option that there is, as it is typed."""
    found = {"--env", "--env-options", "--topology", "--algorithm", "--network", "--json", "--config", "--seeds", "--resume"}
    for part in [RunOptions, *(kind for s in SYSTEMS.values() for kind in (s.algorithm_class(), s.topology_class()))]:
        found |= names(part, "--")
    return found


def names(part: type, prefix: str) -> set[str]:
    found = set()
    for field in dataclasses.fields(part):
        kind, flag = typing.get_type_hints(part)[field.name], prefix + field.name.replace("_", "-")
        found |= names(kind, f"{flag}.") if dataclasses.is_dataclass(kind) else {flag}
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_our_names_in_a_table_exist(library: str) -> None:
    section = re.split(r"^## ", PAGE.read_text().split(f"\n## {library}\n")[1], flags=re.M)[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)[1:]
    assert len(rows) > 15
    known = flags()
    for theirs, ours in rows:
        for code in re.findall(r"`([^`]+)`", ours):
            words = shlex.split(code.replace("(", " ").replace(")", " "))
            wrong = [word for word in words if word.startswith("--") and word not in known | {"--episodes"}]
            assert not wrong, f"{theirs}: there is no {wrong[0]}"
            if words[:2] == ["rookery", "train"]:
                assert words[2] in SYSTEMS, theirs


def test_every_page_that_the_first_hour_leads_to_is_there():
    assert all((ROOT / "docs" / page).exists() for page in ("tutorial.md", "choosing.md", "faq.md", "index.md"))
    assert Path(ROOT, "examples", "first_hour.ipynb").exists()
