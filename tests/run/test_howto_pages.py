"""The blocks of the pages on callbacks, logging and metrics run in their order, in an empty directory."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", ["howto/callbacks.md", "howto/logging.md", "metrics.md"])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks, seen = BLOCK.findall((DOCS / page).read_text()), {"__name__": "__main__"}
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), seen)
    out = capsys.readouterr().out
    if page == "howto/callbacks.md":
        assert "stopped by the on_evaluation callback Patience" in out and "could be uploaded: update-" in out
        assert "done " in out and "the on_step callback broken (callbacks.md, block" in out
