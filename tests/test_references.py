"""Names of Python objects: modules, files, and what is said where there is no such thing."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
from own_files import GRID, forgotten, write

from rookery import references
from rookery.references import BadReference
from rookery.topologies.sync import Sync


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with forgotten():
        yield tmp_path


SPLIT = {
    "my_envs:Grid-v0": ("my_envs", "Grid-v0"), "a.b:C.d": ("a.b", "C.d"), "my_envs:ns/Grid-v0": ("my_envs", "ns/Grid-v0"),
    "path/to/file.py:Grid": ("path/to/file.py", "Grid"), "/a:b/file.py:Grid": ("/a:b/file.py", "Grid"),
    "CartPole-v1": None, "ALE/Pong-v5": None, "jax:CartPole-v1": None, "gymnax:x": None, "envpool:Pong-v5": None, "a:": None,
    ":a": None, "file.py": None, ".py:a": None, "a b:c": None, "a-b:c": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), SPLIT.items())
def test_what_is_a_reference_and_what_is_an_id(text, parts):
    assert references.split(text) == parts and references.is_reference(text) == (parts is not None)


def test_a_file_and_a_module_of_the_working_directory_give_the_same_object(here):
    write(here, oak=GRID)
    found = references.load("oak.py:GridEnv")
    assert references.load(f"{here}/oak.py:GridEnv") is references.load("oak:GridEnv") is found
    assert found.__module__ == "oak", "it can be pickled: another process imports it by that name"
    assert references.absolute("oak.py:GridEnv") == f"{here}/oak.py:GridEnv"
    assert references.absolute("oak:GridEnv") == "oak:GridEnv"


def test_two_files_of_one_name_are_two_modules(here):
    for folder in ("a", "b", "json"):
        (here / folder).mkdir()
        write(here / folder, pine=f"who = {folder!r}\nfrom pathlib import Path\n", json="who = 'mine'")
    assert [references.load(f"{folder}/pine.py:who") for folder in ("a", "b", "a")] == ["a", "b", "a"]
    assert references.load("json/json.py:who") == "mine" and sys.modules["json"].__name__ == "json"
    assert hasattr(sys.modules["json"], "dumps"), "a file hides nothing that was there"
    assert len(references.by_value()) == 2, "they travel as they are: by their names, others would be found"


def test_what_lies_beside_a_file_can_be_imported_by_it(here):
    (here / "folder").mkdir()
    write(here / "folder", elm="from ash import tree", ash="tree = 'ash'")
    assert references.load("folder/elm.py:tree") == "ash"


SAID = {
    "oak.py:GridEvn": r"oak.py has no 'GridEvn': did you mean 'GridEnv'\?",
    "oak.py:zzz": r"oak.py has no 'zzz': it has GridEnv, make_grid",
    "oka.py:GridEnv": r"no file 'oka.py'.*Did you mean 'oak.py'",
    "oka:GridEnv": r"no module 'oka'.*Did you mean 'oak'.*path/to/file.py:GridEnv",
    "json:dmups": r"json \(.*json/__init__.py\) has no 'dmups': did you mean 'dumps'",
    "broken.py:x": r"broken.py raises when it is imported, in broken.py line 2: ZeroDivisionError: division by zero",
    "broken:x": r"broken raises when it is imported, in broken.py line 2: ZeroDivisionError",
    "wanting:x": r"wanting raises when it is imported, in wanting.py line 1: ModuleNotFoundError: No module named 'not_there'",
    "typo.py:x": r"typo.py raises when it is imported, in typo.py line 2: SyntaxError",
    "leaves.py:x": r"leaves.py raises when it is imported, in leaves.py line 1: SystemExit: 3",
    "package/part.py:x": r"ImportError: .*relative import.*part of a package: name it as package.part:NAME",
    "package.prat:x": r"no module 'package.prat'",
}


@pytest.mark.parametrize(("text", "said"), SAID.items())
def test_what_is_not_there_or_raises_is_named_with_what_is_near(here, text, said):
    (here / "package").mkdir()
    write(here, oak=GRID, broken="x = 1\nx / 0")
    write(here, wanting="import not_there", typo="x = 1\nx = = 2", leaves="raise SystemExit(3)")
    write(here / "package", __init__="", part="from .other import x")
    with pytest.raises(BadReference, match=said) as raised:
        references.load(text)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)


def test_what_is_named_is_made_without_arguments_or_that_is_refused(here):
    write(here, elder="class A:\n    pass\n\ndef b():\n    return 7\n\ndef c(x):\n    pass\n\nd = 8\n")
    assert type(references.made("elder.py:A", "network")).__name__ == "A"
    assert [references.made(f"elder:{name}", "network") for name in "bd"] == [7, 8]
    with pytest.raises(BadReference, match=r"elder:c makes no network: it is called without arguments.*'x'"):
        references.made("elder:c", "network")


def test_only_what_a_name_gives_back_has_one(here):
    write(here, yew=GRID)
    found = references.load("yew:GridEnv")
    assert references.name_of(found) == f"{here}/yew.py:GridEnv", "by its file: from any directory"
    assert references.name_of(found.reset) == f"{here}/yew.py:GridEnv.reset"
    assert references.name_of(Sync) == "rookery.topologies.sync:Sync"
    inner = type("Inner", (), {})
    for without in (lambda: 1, functools.partial(found), found(), inner, 7, "text", None):
        assert references.name_of(without) is None


def test_a_class_of_a_program_has_no_name_because_to_import_it_would_run_the_program(here):
    (here / "program.py").write_text("from rookery import references\n\nclass A:\n    pass\n\nprint(references.name_of(A))\n")
    told = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=True)
    assert told.stdout == "None\n"
