"""examples/first_hour.ipynb runs from top to bottom, and what is kept in it is what it gave.

    python tests/docs/test_notebook.py      executes it and keeps the outputs
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"
SECONDS = 60  # of the whole, on a quiet machine with two cores
NAMED = ("lamp.py:Lamp", "rookery plot", "rookery video", "rookery compare", "--seeds 3", "rookery.resume", "rookery.load")


def executed(directory: Path) -> Any:
    """Execute the notebook in an empty directory."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYTHONPATH"] = str(ROOT)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=10 * SECONDS, resources={"metadata": {"path": str(directory)}})
    return client.execute()


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


def kinds(notebook: Any) -> set[str]:
    return {kind for output in outputs(notebook) for kind in output.get("data", {})}


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = executed(tmp_path)
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    said = printed(notebook)
    assert "rookery: " not in said and "Traceback" not in said, said  # commands end with status 0
    assert "light 0: lever 0" in said and "light 1: lever 1" in said, "it has learned which lever belongs to a light"
    assert "image/png" in kinds(notebook) and (tmp_path / "lamp.mp4").stat().st_size > 1_000


def test_what_is_kept_in_it_is_whole() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "python tests/docs/test_notebook.py executes it and keeps the outputs"
    assert all(name in "".join(cell.source for cell in code) for name in NAMED)
    assert "image/png" in kinds(notebook) and NOTEBOOK.stat().st_size < 400_000
    assert str(ROOT) not in NOTEBOOK.read_text(), "no path of the machine that it was made on"


if __name__ == "__main__":
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        made = executed(Path(place))
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # times of day
    nbformat.write(made, NOTEBOOK)
    print(f"executed in {time.perf_counter() - began:.0f} s")
