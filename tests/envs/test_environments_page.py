"""docs/environments.md: its tables of options are the dataclasses, and its links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rookery.envs import atari, options, pixels

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def table(heading: str) -> dict[str, str]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.M))


TABLES = [("Atari", atari.AtariOptions), ("Pool options", options.PoolOptions), ("Pixels", pixels.PixelOptions)]


@pytest.mark.parametrize(("heading", "cls"), TABLES)
def test_a_table_has_every_option_with_its_default_and_no_other(heading, cls):
    assert table(heading) == {field.name: str(field.default) for field in dataclasses.fields(cls)}


def test_links_and_files_that_the_page_names_are_there():
    page = PAGE.read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links and all((PAGE.parent / link).exists() for link in links)
    files = re.findall(r"`(rookery/[\w/]+\.py)`", page)
    assert files and all((PAGE.parents[1] / file).exists() for file in files)


def test_each_pool_is_named_with_the_file_that_holds_its_class():
    """As `folder/module.ClassPool`, below rookery/envs; and every pool there is on the page."""
    page, envs = PAGE.read_text(), PAGE.parents[1] / "rookery" / "envs"
    named = set(re.findall(r"`([\w./]+)\.(\w+Pool)`", page))
    held = {
        (str(file.relative_to(envs).with_suffix("")), name)
        for file in envs.rglob("*.py")
        for name in re.findall(r"^class (\w+Pool)\b", file.read_text(), re.M)
    }
    assert named == held - {("pools/adapted", "AdaptedPool")}  # an AdaptedPool steps nothing: it is around another
