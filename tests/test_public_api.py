"""docs/public_api.md is the public API: every name on it can be imported from where it says, and `rookery` shows its own."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rookery

PAGE = Path(__file__).parents[1] / "docs" / "public_api.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (.+) \|$", re.M)


def tables() -> dict[str, dict[str, str]]:
    """Of each section: name -> what the page says of it."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    return {section.split("\n", 1)[0]: dict(ROW.findall(section)) for section in sections}


TABLES = tables()
NAMES = [(module, name) for module, rows in TABLES.items() for name in rows]


@pytest.mark.parametrize("module, name", NAMES, ids=lambda part: part)
def test_a_public_name_is_where_the_page_says(module, name):
    inner, _, last = name.rpartition(".")
    found = importlib.import_module(f"{module}.{inner}" if inner else module)
    assert hasattr(found, last), f"{found.__name__} has no {last}: docs/public_api.md names it"


def test_the_page_has_a_table_for_every_part_that_is_extended():
    parts = ("types", "ranges", "ops", "networks", "algorithms", "envs", "data", "topologies", "workers")
    empty = [part for part in parts if len(TABLES.get(f"rookery.{part}", {})) < 3]
    assert not empty and len(NAMES) == len(set(NAMES))
    assert all(len(text) < 128 for rows in TABLES.values() for text in rows.values()), "one line for each"


def test_the_first_table_is_all_that_the_package_shows():
    assert next(iter(TABLES)) == "rookery"
    assert sorted(TABLES["rookery"]) == sorted(rookery.__all__) == dir(rookery)


def test_every_topology_and_algorithm_that_has_a_name_is_on_the_page():
    from rookery.systems import SYSTEMS

    for folder, paths in (
        ("algorithms", {system.algorithm for system in SYSTEMS.values()}),
        ("topologies", {system.topology for system in SYSTEMS.values()}),
    ):
        assert {path.replace(":", ".") for path in paths} <= set(TABLES[f"rookery.{folder}"])


def test_showing_what_there_is_imports_nothing_heavy():
    code = (
        "import sys, rookery; names = dir(rookery); assert 'train' in names; "
        "print([m for m in sys.modules if m.startswith(('numpy', 'jax', 'gymnasium', 'typing', 'rookery.'))])"
    )
    found = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=PAGE.parents[1])
    assert found.stdout.strip() == "[]"


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        rookery.trane  # noqa: B018
