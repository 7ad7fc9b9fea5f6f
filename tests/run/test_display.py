"""What a run shows, in every kind of terminal, and that showing it never stops it."""

import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import rookery
from rookery.run import display
from rookery.run.display import Header, LiveDisplay, PlainDisplay, QuietDisplay, Row, draw, open_display

HEADER = Header(name="impala-1", system="impala", env="CartPole-v1", path="runs/impala-1", num_params=13456)
ROW = Row(
    seconds=83.4, env_steps=124_000, total_steps=200_000, trained_steps=123_000, updates=968, episodes=1203,
    return_mean=183.41, eval_return_mean=201.0, env_steps_per_s=12345.6, updates_per_s=96.4, policy_lag_mean=1.3,
    learner_idle=0.62, phases={"env": 0.41, "inference": 0.22, "transfer": 0.03, "learn": 0.29, "wait": 0.05},
    report={"loss/policy": -0.0123, "loss/value": 1.234, "entropy": 0.5}, eta_seconds=51.0,
)  # fmt: skip


class Stream(io.TextIOWrapper):
    """A text stream into memory, with an encoding."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


def drawn(width, row=ROW, *, header=HEADER, encoding="utf-8", **options):
    stream = Stream(encoding)
    console = Console(file=stream, width=width, force_terminal=True, **options)
    console.print(draw(header, row, [10.0, 50.0, 100.0, 183.0], console))
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.text())


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_panel_fits_every_terminal_and_shows_every_number(width, encoding):
    text = drawn(width, encoding=encoding)
    assert max(map(len, text.splitlines())) <= width
    for part in ("183.4", "201.0", "1,203", "12,346", "96.4", "1.3", "62%", "41%", "22%", "29%", "0:51", "-0.0123"):
        assert part in text, part
    if encoding == "ascii":
        assert text.isascii()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_that_holds_somebody_back_says_so_in_the_panel_and_in_the_line(width):
    said = "waiting: 412 more inserts before the next sample (88 of min_size 500)"
    text = drawn(width, dataclasses.replace(ROW, waiting=said))
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.replace("│", " ").split())
    assert said.replace("waiting:", "waiting") in words and "waiting" not in drawn(width)
    new = dataclasses.replace(ROW, waiting=said, starting=True)
    assert "compiled" not in drawn(width, new) and "412 more" in drawn(width, new)
    lines = plain(ROW, new)
    assert lines[-1] == said and not any("waiting" in line for line in lines[:-1])


def test_the_panel_is_compact_at_80_columns():
    assert len(drawn(80).splitlines()) == 9


def test_the_split_of_time_is_readable_without_colours():
    for options in ({"no_color": True}, {"color_system": None}, {"encoding": "ascii"}):
        line = next(line for line in drawn(80, **options).splitlines() if "time" in line)
        assert re.search(r"E{25,}I{12,}T+L{15,}W+", line)
    line = next(line for line in drawn(80).splitlines() if "time" in line)
    assert "E" not in line and "█" * 60 in line


def test_a_run_that_has_only_begun_is_drawn_too():
    text = drawn(80, Row(seconds=0.0, env_steps=0, total_steps=1000))
    assert "no episode has ended yet" in text and "0%" in text
    text = drawn(80, Row(seconds=1.0, env_steps=5, phases={"env": 0.0}, report={"x": float("nan")}))
    assert "5 steps" in text and "nan" in text and "time" not in text


def test_progress_is_never_beyond_its_bar():
    assert "100%" in drawn(80, dataclasses.replace(ROW, env_steps=250_000))
    assert "99%" in drawn(80, dataclasses.replace(ROW, env_steps=199_999))


def test_a_name_that_the_terminal_cannot_show_is_no_error():
    header = dataclasses.replace(HEADER, env="Лабиринт", path="runs/Лабиринт-" + "x" * 200)
    assert "????????" in drawn(80, header=header, encoding="ascii")
    stream = Stream("ascii")
    PlainDisplay(header, stream=stream)
    assert "env ????????" in stream.text()


def test_elements_are_exact():
    assert display.bar(0.0, 10) == "" and display.bar(1.0, 10) == "█" * 10 and display.bar(0.55, 10) == "█████▌"
    assert display.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert display.sparkline([5.0, 5.0], 8) == "▁▁" and len(display.sparkline(list(range(399)), 20)) == 20
    assert display.apportion([0.5, 0.25, 0.25], 4) == [2, 1, 1]
    for cells in range(1, 70):
        assert sum(display.apportion([0.41, 0.22, 0.03, 0.29, 0.05], cells)) == cells
    assert [display.short(n) for n in (7, 1234, 999_999, 1_240_000)] == ["7", "1.23k", "1M", "1.24M"]
    times = [display.clock(seconds) for seconds in (7, 750, 11100, 200_000, float("inf"))]
    assert times == ["0:07", "12:30", "3:05:00", "2 d 7 h", "?"]
    assert [display.number(x) for x in (0.97312, -21.0, 183.44, 12345.6)] == ["0.973", "-21.0", "183.4", "12,346"]


def plain(*rows, header=HEADER, messages=()):
    stream = Stream()
    shown = open_display(header, stream=stream)
    assert isinstance(shown, PlainDisplay)
    shown._period = 0
    for row in rows:
        shown.update(row)
    for message in messages:
        shown.message(message)
    shown.close()
    return stream.text().splitlines()


def test_plain_lines_are_columns_under_their_names():
    new = Row(seconds=2.0, env_steps=0, starting=True)
    head, names, first, line, message = plain(new, ROW, messages=["a collector was replaced"])
    assert head == "run impala-1 system impala env CartPole-v1 parameters 13456 path runs/impala-1"
    assert names.split() == ["time", "steps", "return", "evaluated", "steps/s", "updates/s", "lag", "idle", "ETA"]
    assert line.split() == ["1:23", "124000", "183.41", "201.00", "12346", "96.4", "1.30", "62%", "0:51"]
    assert first.split() == ["0:02", "0", *"-------"] and message == "a collector was replaced"
    ends = lambda text: [found.end() for found in re.finditer(r"\S+", text)]
    assert ends(names) == ends(first) == ends(line), "aligned"


def test_plain_lines_are_never_wide_and_their_names_come_again():
    huge = dataclasses.replace(
        ROW, seconds=1e6, env_steps=10**12, return_mean=-123456.789, eval_return_mean=123456.789, env_steps_per_s=99_999_999,
        updates_per_s=123_456.7, policy_lag_mean=1234.56, learner_idle=1.0, eta_seconds=5e6, waiting="waiting: " + "x " * 200,
    )  # fmt: skip
    header = dataclasses.replace(HEADER, path="/a/long/way/" + "x" * 80)
    lines = plain(*[huge] * (2 * display.HEAD_EVERY), header=header)
    assert max(map(len, lines)) <= 110 and lines.count(display.HEAD) == 2 and lines[1] == f"path {header.path}"
    assert len([line for line in lines if line.startswith("waiting")]) == 1, "said once, while it is the same"


def test_plain_lines_are_few_and_the_last_row_is_never_lost():
    stream = Stream()
    plain = PlainDisplay(HEADER, stream=stream, period_seconds=60)
    for steps in range(1000):
        plain.update(dataclasses.replace(ROW, env_steps=steps))
    plain.close()
    plain.close()
    plain.update(ROW)
    assert [line.split()[1] for line in stream.text().splitlines()[2:]] == ["0", "999"]


def test_the_quiet_display_leaves_standard_output_to_the_json(capsys):
    quiet = open_display(HEADER, json=True)
    assert isinstance(quiet, QuietDisplay)
    quiet.update(ROW)
    quiet.message("x")
    quiet.close()
    assert capsys.readouterr().out == ""


def test_the_live_display_draws_at_its_rate_and_leaves_the_last_row_on_the_screen():
    stream = Stream()
    console = Console(file=stream, width=80, force_terminal=True)
    live = LiveDisplay(HEADER, console=console, period_seconds=60)
    for steps in range(0, 200_000, 1000):
        live.update(dataclasses.replace(ROW, env_steps=steps))
    live.message("[a] collector was replaced")
    live.update(dataclasses.replace(ROW, env_steps=200_000))
    live.close()
    live.close()
    live.update(ROW)
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.text())
    assert text.count(" / 200k steps") <= 5 and "[a] collector was replaced" in text
    assert "100%   200k / 200k steps" in text.rsplit("╭", 1)[1]


def test_a_terminal_that_goes_away_does_not_stop_the_run():
    class Gone(Stream):
        def write(self, text):
            raise OSError(5, "Input/output error")

    live = LiveDisplay(HEADER, console=Console(file=Gone(), width=80, force_terminal=True), period_seconds=0)
    for _ in range(3):
        live.update(ROW)
        live.message("x")
    live.close()


PIPED = """
import sys
from rookery.run.display import *
display = open_display(Header(name="a", system="b", env="c", path="d"))
display._period = 0
for step in range(20_000):
    display.update(Row(seconds=1.0, env_steps=step))
display.close()
print("what comes after must not fail either", flush=True)
print("finished", file=sys.stderr)
"""


def test_a_closed_pipe_does_not_stop_the_run():
    cwd = Path(rookery.__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", PIPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait() == 0 and error == b"finished\n"
    process.stderr.close()
