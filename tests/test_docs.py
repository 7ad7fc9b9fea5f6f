"""The pages: README.md is a short front page, links lead somewhere, and tables are those that `rookery bench report` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rookery.systems import SYSTEMS
from rookery_bench import record, report

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS]
name = lambda page: str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text without code: a # in a shell script is no heading, and brackets in Python are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, - for spaces, a number for those that repeat."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", prose(page), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if i == 0 else f"{slug}-{i}" for slug, count in found.items() for i in range(count + 1)}


def links(page: Path) -> list[str]:
    """Those into this tree."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`", prose(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def marks(page: Path) -> list[tuple[str, str]]:
    """Of the tables that are made: (/ or nothing, name), in their order. Text about marks stands between backticks."""
    return re.findall(r"^<!-- (/?)bench:(\S+) -->$", page.read_text(), re.M)


def test_the_front_page_is_short_and_shows_no_bar_that_is_missed():
    assert len(README.read_bytes()) <= 6_000
    assert "not met" not in README.read_text()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings_that_are_there(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), f"{name(page)}: {link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link}: there is no such heading"


def test_the_front_page_leads_to_every_page_of_the_docs_but_those_of_single_topologies():
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert {page for page in DOCS if page.parent.name == "docs"} <= linked
    assert ROOT / "docs" / "topologies" / "README.md" in linked


@pytest.mark.parametrize("page", [README, *DOCS], ids=name)
def test_marks_come_in_pairs_and_are_known_to_the_report(page):
    known = report.marks(record.newest(record.read(sorted((ROOT / "benchmarks").glob("*.jsonl")))))
    found = marks(page)
    begins, ends = found[::2], found[1::2]
    assert [("/", mark) for slash, mark in begins if not slash] == ends and len(begins) == len(ends)
    assert {mark for _, mark in found} <= known.keys()


def test_what_is_measured_stands_on_the_page_of_the_benchmarks_and_five_rows_on_the_front_page():
    assert {mark for _, mark in marks(README)} == {"peers"}
    wanted = {"cartpole", "pong", "roofline", "envs", "torn", "memory", "learning"}
    assert wanted <= {mark for _, mark in marks(ROOT / "docs" / "benchmarks.md")}
    table = README.read_text().split("<!-- bench:peers -->")[1].split("<!-- /bench:peers -->")[0]
    assert len(re.findall(r"^\| \w", table, re.M)) == 1 + 5


def test_the_front_page_names_every_system_with_its_algorithm_topology_and_paper():
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) × (\w+)(, central inference)? \| (.+) \|$", README.read_text(), re.M)
    assert {row[0]: row[1:] for row in rows} == {
        system.name: (
            system.algorithm.partition(":")[2], system.topology.partition(":")[2],
            ", central inference" * (system.defaults.get("inference") == "central"), system.paper,
        )
        for system in SYSTEMS.values()
    }  # fmt: skip
