"""The panel in a notebook: one output, replaced in place; looked at in a real kernel, without a run."""

import re
import sys
import types

import pytest

from rookery.run import notebook
from rookery.run.display import Header, Row
from rookery.run.notebook import NotebookDisplay, drawn, in_notebook

HEADER = Header(name="r", system="ppo", env="Grid <v0>", path="runs/r", num_params=1234)
ROW = Row(seconds=8.0, env_steps=500, total_steps=1000, updates=5, return_mean=12.5, phases={"env": 0.4, "learn": 0.6})

CELL = """
from rookery.run.display import Header, Row
from rookery.run.notebook import NotebookDisplay, in_notebook
shown = NotebookDisplay(Header(name="r", system="ppo", env="catch", path="runs/r"), period_seconds=0.0)
shown.message("steps per update: 64")
for updates in range(3):
    shown.update(Row(seconds=1.0, env_steps=64 * updates, total_steps=640, updates=updates))
shown.close()
in_notebook()
"""


def test_a_kernel_shows_one_output_with_the_last_state_and_knows_that_it_is_one():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = nbformat.v4.new_code_cell(CELL)
    nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120, kernel_name="python3").execute()
    panel, answer = cell.outputs
    assert panel.output_type == "display_data" and "128 / 640 steps" in panel.data["text/plain"]
    assert "steps per update: 64" in panel.data["text/html"] and answer.data["text/plain"] == "True"


def test_html_has_colours_for_light_and_dark_and_the_text_has_letters():
    bundle = drawn(HEADER, ROW, [1.0, 12.5], ["a <b> line"])
    assert "Grid &lt;v0&gt;" in bundle["text/html"] and "a &lt;b&gt; line" in bundle["text/html"]
    colours = {tuple(bytes.fromhex(code)) for code in re.findall(r"color: #([0-9a-f]{6})", bundle["text/html"])}
    assert len(colours) > 3
    for colour in colours:  # WCAG: of large text 3 : 1, on white and on #111
        linear = [c / 255 / 12.92 if c / 255 <= 0.04 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (light + 0.05) > 2.9 and (light + 0.05) / 0.0557 > 2.9, colour
    assert "<" not in bundle["text/plain"].replace("<v0>", "").replace("<b>", "") and "Env 40%" in bundle["text/plain"]


def test_a_front_end_that_goes_away_only_makes_it_silent(monkeypatch):
    calls = []

    def gone(*args, **kwargs):
        calls.append(kwargs)
        raise OSError("the browser was closed")

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=gone))
    display = NotebookDisplay(HEADER, period_seconds=0.0)
    display.update(ROW)
    display.message("more")
    display.close()
    assert len(calls) == 1 and not in_notebook()


def test_the_last_messages_stand_above_the_panel(monkeypatch):
    shown = []
    module = types.SimpleNamespace(display=lambda bundle, **how: shown.append((bundle["text/plain"], how["update"])))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    display = NotebookDisplay(HEADER)
    for number in range(12):
        display.message(f"line {number}.")
    assert "line 3." not in shown[-1][0] and "line 4." in shown[-1][0] and len(shown) == 12
    assert [update for _, update in shown] == [False] + [True] * 11, "one output"
    assert notebook.MESSAGES == 8
