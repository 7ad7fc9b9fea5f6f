"""Every block of every page runs, in order and in an empty directory; what is not run says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import KNOWN, ROOT, Reader, blocks, is_run

DOCS = ROOT / "docs"
MADE = {"reference", "systems"}  # systems: test_system_pages.py; the reference holds signatures
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] not in MADE]  # index.md has README's
name = lambda page: str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_run, blocks(page)))], ids=name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    Reader(tmp_path).follow(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_have_a_known_language_and_those_that_are_not_run_a_reason(page: Path) -> None:
    for block in blocks(page):
        assert block.language in KNOWN, f"{name(page)}, line {block.line}: {block.language}"
        if block.note == "test-command":
            continue  # .ci/run runs it
        if block.skipped:
            why = block.note.removeprefix("not run: ").split()
            assert len(why) >= 3, f"{name(page)}, line {block.line}: why is it not run?"


def test_a_block_that_fails_is_told_with_its_page_and_line(tmp_path: Path) -> None:
    page = ROOT / "docs" / "faq.md"
    reader = Reader(tmp_path)
    broken = blocks(page)[0]._replace(language="python", title="", note="", text="1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        reader._do(broken, page)
    with pytest.raises(AssertionError, match="status 2"):
        reader._do(broken._replace(language="bash", text="rookery trian\n"), page)
    with pytest.raises(AssertionError, match="was not said"):
        reader._do(broken._replace(language="text", note="said", text="all is well\n"), page)
