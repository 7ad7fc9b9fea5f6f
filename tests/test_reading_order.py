"""docs/reading_order.md tells the truth about files and lines, IMPALA and ES stay short, and no import is left out.

    python tests/test_reading_order.py      renews the numbers, and says which files no table names

The path of a system is what its algorithm, its topology and the local runtime import at the top of their files, and what that
imports in turn. Each file of it is in the table of those to read or, with a reason, in the table of those that may be skipped.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest
from test_imports import imports, ours, read_packages

from rookery.systems import SYSTEMS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reading_order.md"
RENEW = "python tests/test_reading_order.py renews the numbers"
BARS = {"impala": (12, 1_500), "es": (10, 1_500)}  # of the files to read: how many at most, and lines of all together

ROW = re.compile(r"^\| \[(?P<name>[^\]]+)\]\((?P<link>[^)]+)\) \| (?P<lines>[\d,]+) \|", re.M)
SKIPPED = re.compile(r"^\| (?P<names>\[.+?\)) \| (?P<impala>[^|]+) \| (?P<es>[^|]+) \| (?P<why>.+) \|$", re.M)


def part(page: str, kind: str, name: str) -> str:
    return page.split(f"<!-- {kind}: {name} -->")[1].split("<!-- end -->")[0]


def table(page: str, name: str) -> list[tuple[str, int]]:
    """(file, lines that the page claims) of one table."""
    return [(row["name"], int(row["lines"].replace(",", ""))) for row in ROW.finditer(part(page, "table", name))]


def count(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


@cache
def path_of(system: str) -> frozenset[str]:
    """The files of a system on the local runtime: those that define it, and all that they import at the top of a file."""
    package, entry = read_packages(), SYSTEMS[system]
    pending = [f"rookery.algorithms.{entry.algorithm.split(':')[0]}", f"rookery.topologies.{entry.topology.split(':')[0]}"]
    pending.append("rookery.runtime.local")
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in seen and name in package:
            seen.add(name)
            taken = (found for found in imports(package[name], package) if not found.lazy and not found.typing_only)
            pending += [found.target for found in taken if ours(found.target)]
    return frozenset(name.replace(".", "/") + ("/__init__.py" if package[name].is_package else ".py") for name in seen)


def skipped(page: str, system: str) -> tuple[dict[str, list[str]], list[str]]:
    """The files of a path that are not read, by the file or folder in the table that names them; and those that none names."""
    names = [name for row in SKIPPED.finditer(part(page, "skip", "all")) for name in linked(row["names"])]
    by: dict[str, list[str]] = {name: [] for name in names}
    nowhere = []
    for file in sorted(path_of(system) - {name for name, _ in table(page, system)}):
        fits = [name for name in names if file == name or file.startswith(f"{name}/")]
        (by[max(fits, key=len)] if fits else nowhere).append(file)
    return by, nowhere


def linked(names: str) -> list[str]:
    return re.findall(r"\[([^\]]+)\]", names)


def cell(files: list[str]) -> str:
    return f"{len(files)}: {sum(map(count, files)):,}" if files else "–"


def sentence(page: str, system: str) -> str:
    read, whole = [name for name, _ in table(page, system)], path_of(system)
    rest = whole - set(read)
    return (
        f"Read {len(read)} files, {sum(map(count, read)):,} lines. With all that they import, {len(whole)} files and "
        f"{sum(map(count, whole)):,} lines: the other {len(rest)} may be [skipped](#what-may-be-skipped-and-why) at first."
    )


def renewed(page: str) -> str:
    page = ROW.sub(lambda row: row[0].replace(f"| {row['lines']} |", f"| {count(row['name']):,} |"), page)
    for system in BARS:
        before = part(page, "size", system)
        page = page.replace(f"<!-- size: {system} -->{before}", f"<!-- size: {system} -->\n{sentence(page, system)}\n")
    by = {system: skipped(page, system)[0] for system in BARS}

    def row(found: re.Match[str]) -> str:
        cells = [cell([file for name in linked(found["names"]) for file in by[system][name]]) for system in BARS]
        return f"| {found['names']} | {' | '.join(cells)} | {found['why']} |"

    return SKIPPED.sub(row, page)


def problems(page: str) -> list[str]:
    """What no command can renew: files that no table names, and names in the table that stand for no file."""
    found, by = [], {}
    for system in BARS:
        by[system], nowhere = skipped(page, system)
        found += [f"{file} is imported by {system}: read it, or say why it may be skipped" for file in nowhere]
        found += [f"{name} is no file of {system}" for name, _ in table(page, system) if name not in path_of(system)]
    names = next(iter(by.values()))
    return found + [f"{name} stands for nothing: take it off" for name in names if not any(by[one][name] for one in BARS)]


def test_the_numbers_of_the_page_are_those_of_the_files():
    page = PAGE.read_text()
    assert len(table(page, "rollout")) == 7
    for line, should in zip(page.splitlines(), renewed(page).splitlines()):
        assert line == should, f"the page should say: {should} ({RENEW})"
    assert page == renewed(page), RENEW


def test_every_file_that_a_system_imports_is_read_or_skipped_for_a_reason():
    page = PAGE.read_text()
    assert not problems(page)
    assert all(len(row["why"].split()) >= 3 for row in SKIPPED.finditer(part(page, "skip", "all")))


@pytest.mark.parametrize("system", BARS)
def test_what_is_to_be_read_is_short(system):
    files = [name for name, _ in table(PAGE.read_text(), system)]
    most, lines = BARS[system]
    assert len(files) == len(set(files)) <= most
    assert sum(map(count, files)) <= lines, f"{system} has {sum(map(count, files))} lines to read"


@pytest.mark.parametrize("system", BARS)
def test_the_algorithm_the_topology_and_the_workers_of_its_plan_are_to_be_read(system):
    """No file may be moved to those that are skipped to keep the numbers low."""
    from rookery.run.assemble import assemble
    from rookery.run.config import resolve

    entry = SYSTEMS[system]
    workers = {node.worker for node in assemble(resolve(system, env="CartPole-v1")).plan.nodes if node.worker}
    modules = {kind.__module__ for kind in (entry.algorithm_class(), entry.topology_class(), *workers)} | {"rookery.types"}
    missing = {f"{module.replace('.', '/')}.py" for module in modules} - {name for name, _ in table(PAGE.read_text(), system)}
    assert len(modules) == 5 and not missing


def test_a_file_that_no_table_names_is_found():
    page = PAGE.read_text()
    without = re.sub(r"^\| \[rookery/networks\].*\n", "", page, flags=re.M)
    assert without != page and any(found.startswith("rookery/networks/network.py is imported") for found in problems(without))
    link = "[rookery/networks](../rookery/networks)"
    stale = page.replace(link, f"{link}, [rookery/nets](x)")
    assert problems(stale) == ["rookery/nets stands for nothing: take it off"]


def test_every_link_of_the_page_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()) if not link.startswith("#")]
    assert links
    missing = [link for link in links if not (PAGE.parent / link).exists()]
    assert not missing
    for name, link in re.findall(r"\[([^\]]+)\]\((\.\./[^)]+)\)", PAGE.read_text()):
        assert link == f"../{name}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
    sys.exit("\n".join(problems(PAGE.read_text())) or 0)
