"""A page for each system: its command trains, its parts are as the source says, and none is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from blocks import ROOT, Reader, blocks, is_run

from rookery.systems import SYSTEMS

SYSTEM_PAGES = ROOT / "docs" / "systems"
PARTS = ("head", "figure", "options", "results", "read")


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_commands_of_a_systems_page_run(name: str, tmp_path: Path) -> None:
    Reader(tmp_path).follow(SYSTEM_PAGES / f"{name}.md")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_systems_page_has_its_figure_its_equations_and_when_to_use_it(name: str) -> None:
    page = SYSTEM_PAGES / f"{name}.md"
    text = page.read_text()
    assert all(text.count(f"<!-- made:{part}") == 1 == text.count(f"<!-- /made:{part} -->") for part in PARTS)
    assert "```math" in text and "Use something else when" in text
    assert any(is_run(block) and f"rookery train {name} " in block.text for block in blocks(page))


def test_what_is_made_of_the_pages_and_the_reference_is_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate

        stale = [str(path.relative_to(ROOT)) for path, text in generate.made().items() if path.read_text() != text]
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert not stale, "python docs/generate.py makes them again"
