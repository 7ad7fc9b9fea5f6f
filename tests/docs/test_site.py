"""The site builds without a warning, leads nowhere that is not there, and asks nothing of other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECONDS = 60  # a build takes 10 on a quiet machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 3, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in site.rglob("*.html")}


def place_of(page: Path) -> str:
    """Where the site keeps a page of docs/."""
    at = page.relative_to(DOCS).with_suffix("")
    return str(at.parent / "index.html" if at.name in ("README", "index") else at / "index.html")


def test_every_page_is_on_the_site_and_in_its_navigation(site, pages):
    start = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        assert site / place_of(page) in pages, f"{page} is not on the site"
    everywhere = "".join(text for text in pages.values())
    assert "source/rookery/types.py" in everywhere, "files outside of docs/ are pages, too"
    reached = {str((path.parent / link).resolve()) for path, text in pages.items() for link in navigated(text)}
    missing = [page for page in DOCS.rglob("*.md") if str((site / place_of(page)).parent) not in reached]
    assert not missing and start


def navigated(text: str) -> list[str]:
    return re.findall(r'<a href="([^"#]*)" class="md-(?:nav|tabs)__link', text)


def test_no_link_is_dead_and_no_anchor_is_missing(site, pages):
    ids = {path: set(re.findall(r'\bid="?([^"\s>]+)', text)) for path, text in pages.items()}
    dead = []
    for path, text in pages.items():
        if path.name == "404.html":
            continue
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            parts = urlsplit(unescape(link))
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target in ids and unquote(parts.fragment) not in ids[target]):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, dead[:20]


def test_nothing_is_fetched_from_another_host(pages):
    for path, text in pages.items():
        fetched = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"', text)
        assert not fetched, f"{path}: {fetched}"
    for style in (path for path in next(iter(pages)).parents[0].rglob("*.css")):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text()), style


def test_equations_are_drawn_and_say_what_they_are(site):
    page = (site / "systems" / "impala" / "index.html").read_text()
    assert page.count('<div class="math" role="img" aria-label="') == 2 and "<svg viewBox=" in page
    assert "\\begin{aligned}" not in re.sub(r'aria-label="[^"]*"', "", page)
