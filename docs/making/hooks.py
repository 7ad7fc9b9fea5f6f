"""What mkdocs does beside its own: folders in the navigation, and pages for files outside of docs/ that pages link to.

Pages are written for two readers, GitHub and the site. A link such as ../rookery/types.py leads somewhere on GitHub; for the
site each such file becomes a page of its own below source/, so that the site is whole without a network.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import mathematics

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"^ *(`{3,}).*?^ *\1 *$|`[^`\n]*`", re.M | re.S)
HEADING = re.compile(r"^# (.+)$", re.M)
ORDER = {  # pages that have one; the rest of a folder follows by name
    "systems": [
        "ppo", "a2c", "pg", "impala", "appo", "dqn", "rainbow", "apex-dqn", "r2d2", "r2d3", "seed", "seed-r2d2",
        "sample-factory", "anakin-ppo", "anakin-dqn", "a3c", "async-dqn", "gala", "gorila", "es", "ars",
    ],
    "howto": [
        "own_environment", "own_network", "own_loss", "own_topology", "masks", "recurrent", "dict_observations",
        "many_seeds", "config_files", "resume", "callbacks", "logging", "plots", "video", "notebook", "deploy", "doctor",
        "cluster",
    ],
    "reference/options": ["run"],
    "reference": ["commands"],
}  # fmt: skip
LANGUAGES = {".py": "python", ".toml": "toml", ".jsonl": "json", ".json": "json", ".yml": "yaml", ".ipynb": "json"}


def on_config(config: Any) -> Any:
    """Put the pages of a folder where mkdocs.yml says `folder/*`, the rest where it says `*`; draw equations."""
    known: set[str] = set()
    fence = {"name": "math", "class": "math", "format": mathematics.fence}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config["nav"] = [_expanded(entry, known) for entry in config["nav"]]
    _insert_rest(config["nav"], sorted(set(_pages()) - known))
    return config


def _pages() -> list[str]:
    return [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]


def _expanded(entry: Any, known: set[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(below, known) for title, below in entry.items()}
    if isinstance(entry, list):
        return [item for part in entry for item in _items(part, known)]
    known.add(entry)
    return entry


def _items(part: Any, known: set[str]) -> list[Any]:
    if not (isinstance(part, str) and part.endswith("/*")):
        return [_expanded(part, known)]
    folder = part.removesuffix("/*")
    order = ORDER.get(folder, [])
    found = [path.stem for path in (DOCS / folder).glob("*.md") if path.stem != "README"]
    place = {name: i for i, name in enumerate(order)}
    names = [f"{folder}/{name}.md" for name in sorted(found, key=lambda name: (place.get(name, len(order)), name))]
    known.update(names)
    return names


def _insert_rest(entries: list[Any], rest: list[str]) -> None:
    for entry in entries:
        below = next(iter(entry.values())) if isinstance(entry, dict) else None
        if isinstance(below, list):
            if "*" in below:
                at = below.index("*")
                below[at : at + 1] = rest
            _insert_rest(below, rest)


# -------------------------------------------------------------------------------------------- files outside of docs/


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every file outside of docs/ that a page leads to, directly or by another such file."""
    from mkdocs.structure.files import File

    pending = [(DOCS / page, target) for page in _pages() for target in _outside(DOCS / page)]
    made: set[Path] = set()
    while pending:
        page, target = pending.pop()
        if target in made:
            continue
        if not target.exists():
            raise FileNotFoundError(f"{page.relative_to(ROOT)} links to {target}, which is not there")
        made.add(target)
        pending += [(target, more) for more in _outside(target)]
        if target.suffix in (".png", ".svg"):
            files.append(File(target.relative_to(ROOT).as_posix(), str(ROOT), config["site_dir"], config["use_directory_urls"]))
        else:
            files.append(File.generated(config, _uri(target), content=_content(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the pages made of what they name."""
    uri = page.file.src_uri
    if not uri.startswith("source/"):
        return _led(markdown, DOCS / uri, uri)
    original = ROOT / uri.removeprefix("source/").removesuffix(".md")
    return _led(markdown, original, uri) if original.suffix == ".md" else markdown


def _outside(page: Path) -> list[Path]:
    """Find what a page links to that is in this tree and not in docs/."""
    if page.suffix != ".md":
        return []
    text = CODE.sub("", page.read_text())
    return [target for _, link, _ in LINK.findall(text) if (target := _target(page, link)) and not target.is_relative_to(DOCS)]


def _target(page: Path, link: str) -> Path | None:
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", link):
        return None
    return (page.parent / path).resolve()


def _led(markdown: str, page: Path, uri: str) -> str:
    def led(found: re.Match[str]) -> str:
        target = _target(page, found[2])
        if target is None or (target.is_relative_to(DOCS) and page.is_relative_to(DOCS)):
            return found[0]
        anchor = found[2].partition("#")[2]
        shown = target / "README.md" if target.is_dir() and target.is_relative_to(DOCS) else target
        there = shown.relative_to(DOCS).as_posix() if shown.is_relative_to(DOCS) else _uri(shown)
        link = posixpath.relpath(there, posixpath.dirname(uri))
        return f"{found[1]}{link}{'#' * bool(anchor)}{anchor}{found[3]}"

    parts, last = [], 0
    for code in CODE.finditer(markdown):
        # a link whose text is code, [`x`](y), ends behind the code: only what stands in code itself is left alone
        parts += [LINK.sub(led, markdown[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, LINK.sub(led, markdown[last:])])


def _uri(target: Path) -> str:
    name = target.relative_to(ROOT).as_posix()
    if target.suffix in (".png", ".svg"):
        return name
    return f"source/{name}/README.md" if target.is_dir() else f"source/{name}.md"


def _content(target: Path) -> str:
    name, front = target.relative_to(ROOT).as_posix(), "---\nsearch: { exclude: true }\n---\n\n"
    if target.is_dir():
        modules = [path for path in sorted(target.glob("*.py")) if path.name != "__init__.py"]
        rows = [f"| `{path.name}` | {_first_line(path)} |" for path in modules]
        return f"{front}# {name}\n\n| file | |\n|---|---|\n" + "\n".join(rows) + "\n"
    text = target.read_text()
    if target.suffix == ".md":
        return front + text
    fence = "`" * 6
    return f"{front}# {name}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text}\n{fence}\n"


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
