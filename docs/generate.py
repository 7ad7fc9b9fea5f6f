"""Make what is made of the documentation: parts of the systems' pages, and the reference.

    python docs/generate.py            writes what changed, and names it
    python docs/generate.py --check    writes nothing; status 1 where something is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "making"), str(DOCS.parent)]


def made() -> dict[Path, str]:
    """Return every file that this makes, whole or in parts, as it should be."""
    import pages
    import reference

    from rookery.systems import SYSTEMS

    files = {DOCS / path: text for path, text in reference.pages().items()}
    for name in SYSTEMS:
        page = DOCS / "systems" / f"{name}.md"
        files[page] = pages.renewed(page.read_text(), name)
    overview = DOCS / "systems" / "README.md"
    begin, end = "<!-- made:index -->\n", "\n<!-- /made:index -->"
    text = overview.read_text()
    files[overview] = text.split(begin)[0] + begin + pages.index() + end + text.split(end)[1]
    return files


def main() -> int:
    """Write the files that changed; status 1 where they may only be checked."""
    check = "--check" in sys.argv
    changed = {path: text for path, text in made().items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        print(f"{'out of date' if check else 'written'}: {path.relative_to(DOCS.parent)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return int(check and bool(changed))


if __name__ == "__main__":
    from rookery.run import startup

    startup.prepare()
    sys.exit(main())
