"""docs/reading_order.md tells the truth about files and lines, and IMPALA stays short.

    python tests/test_reading_order.py      renews the numbers
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reading_order.md"
RENEW = "python tests/test_reading_order.py renews the numbers"
IMPALA_LINES, WITH_WORKERS_LINES = 750, 1100  # bars; must stay below

ROW = re.compile(r"^\| \[(?P<name>[^\]]+)\]\((?P<link>[^)]+)\) \| (?P<lines>[\d,]+) \|", re.M)
SENTENCE = "read these {} files, {:,} lines; with the collector and the learner, {} files and {:,} lines."


def table(page: str, name: str) -> list[tuple[str, int]]:
    """(file, lines that the page claims) of one table."""
    text = page.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
    return [(row["name"], int(row["lines"].replace(",", ""))) for row in ROW.finditer(text)]


def count(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


def sentence(page: str) -> str:
    impala = [name for name, _ in table(page, "impala")]
    both = impala + [name for name, _ in table(page, "workers")]
    return SENTENCE.format(len(impala), sum(map(count, impala)), len(both), sum(map(count, both)))


def renewed(page: str) -> str:
    page = ROW.sub(lambda row: row[0].replace(f"| {row['lines']} |", f"| {count(row['name']):,} |"), page)
    return re.sub(r"read these \d+ files.*lines\.", sentence(page), page)


def test_the_numbers_of_the_page_are_those_of_the_files():
    page = PAGE.read_text()
    for name in ("rollout", "impala", "workers"):
        rows = table(page, name)
        assert rows
        for file, lines in rows:
            assert lines == count(file), f"{file} has {count(file)} lines, the page says {lines}: {RENEW}"
    assert sentence(page) in page, f"the page should say: {sentence(page)} ({RENEW})"
    assert len(table(page, "rollout")) == 7


def test_impala_is_short():
    page = PAGE.read_text()
    impala = sum(count(name) for name, _ in table(page, "impala"))
    workers = sum(count(name) for name, _ in table(page, "workers"))
    assert impala < IMPALA_LINES, f"algorithm, topology and ops of IMPALA have {impala} lines"
    assert impala + workers < WITH_WORKERS_LINES, f"with collector and learner they have {impala + workers} lines"


def test_the_tables_hold_what_impala_really_is():
    """No file may be dropped from the list to keep the numbers low."""
    listed = {name for part in ("impala", "workers") for name, _ in table(PAGE.read_text(), part)}
    required = {"algorithms/vtrace", "algorithms/actor_critic", "algorithms/updates", "topologies/actor_learner"}
    required |= {"ops/vtrace", "ops/masked", "workers/acting/collector", "workers/learning/learner"}
    assert {f"rookery/{name}.py" for name in required} <= listed


def test_every_link_of_the_page_leads_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
    assert links
    missing = [link for link in links if not (PAGE.parent / link).exists()]
    assert not missing
    for name, link in re.findall(r"\[([^\]]+)\]\((\.\./[^)]+)\)", PAGE.read_text()):
        assert link == f"../{name}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
