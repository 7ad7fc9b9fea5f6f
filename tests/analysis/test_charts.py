"""Curves as pictures and in a terminal: everything is told, nothing is covered, and colours can be read."""

import re
from itertools import pairwise

import numpy as np
import pytest
from run_files import learning, write_run

from rookery.analysis import Look, chart_of, figure, find, plot, text_chart
from rookery.analysis.text_chart import nice_scale
from rookery.run.directory import RunError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two systems with five seeds each on two environments, of which one died; and one long name."""
    root = tmp_path_factory.mktemp("charts") / "runs"
    for system in ("ppo", "a2c"):
        for env, low, high in (("CartPole-v1", 20.0, 480.0), ("Pendulum-v1", -1400.0, -180.0)):
            for seed in range(5):
                points = learning(seed, low=low, high=high)
                died = (system, env, seed) == ("a2c", "CartPole-v1", 3)
                write_run(root / system / f"{env}-{seed}", system=system, env=env, seed=seed,
                          points=points[:40] if died else points, status="failed" if died else "done")  # fmt: skip
    write_run(root / "long", env="a-very-long/Namespace-and-name-of-an-environment-v1000", learning_rate=0.25)
    return root


def chart(runs, *words, **look):
    found = find(words, root=runs)
    return chart_of(found.groups, Look(**look), found.notes)


def drawn(figure):
    """The texts of a figure by where they stand, in pixels, once all is laid out."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return {text.get_text(): text.get_window_extent() for text in texts}


def test_each_environment_is_a_panel_and_each_group_a_line_and_the_caption_says_how_to_read_them(runs):
    found = chart(runs, "ppo", "a2c")
    assert {title: list(lines) for title, lines in found.panels.items()} == {
        "CartPole-v1": ["ppo", "a2c"], "Pendulum-v1": ["ppo", "a2c"],
    }  # fmt: skip
    assert found.caption() == ("Line: mean of 5 seeds, over the last 100 training episodes. Band: 95 % bootstrap interval. "
                               "Dotted, after ×: without a run that ended early.")  # fmt: skip
    assert chart(runs, "ppo", y="loss/value", middle="iqm").caption().startswith("Line: interquartile mean of 5 seeds. Band:")
    assert chart(runs, "long").caption() == "One run, over the last 100 training episodes."
    assert any("a2c/CartPole-v1-3 failed" in note for note in found.notes)


def test_runs_that_were_evaluated_once_are_dots(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"run-{seed}", seed=seed, points=[(0, 0.0), (100 + seed, 1.0)], eval_return_mean=5.0 + seed)
    found = chart(tmp_path, "run-*", y="eval")
    assert found.is_dots and found.caption() == "Runs have one point each, at their end: a dot for each."
    (dots,) = figure.draw(found).axes[0].lines
    assert list(dots.get_xdata()) == [102] * 3 and list(dots.get_ydata()) == [5, 6, 7]
    assert "their mean" in text_chart(found, colour=False)


def test_what_no_run_has_is_answered_with_what_there_is(runs):
    with pytest.raises(RunError, match="Did you mean 'loss/value'"):
        chart(runs, "ppo", y="loss/valu")
    with pytest.raises(RunError, match="Draw --y return"):
        chart(runs, "long", y="eval_return_mean", x="episodes")
    with pytest.raises(RunError, match="at or below 0"):
        chart(runs, "ppo", log_y=True)


def test_nothing_drawn_lies_on_anything_else_or_outside(runs):
    for words, look in ((("ppo", "a2c"), {"title": "Two"}), (("ppo", "a2c", "long"), {}), (("long",), {"x": "seconds"})):
        made = figure.draw(chart(runs, *words, **look))
        made.draw_without_rendering()
        all_of_it, (width, height) = made.get_tightbbox(), made.get_size_inches()
        assert all_of_it.x0 > -0.02 and all_of_it.y0 > -0.02, f"{words} leave the picture"
        assert all_of_it.x1 < width + 0.02 and all_of_it.y1 < height + 0.02, f"{words} leave the picture"
        for legend in made.legends:
            assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in made.axes)


def test_labels_beside_the_lines_stand_apart_and_outside(tmp_path):
    for name in ("first", "second", "third", "fourth"):
        write_run(tmp_path / name / "seed-0", points=[(0, 0.0), (100, 5.0 + len(name) / 100)], clip=len(name))
    found = find(["first", "second", "third", "fourth"], root=tmp_path)
    made = figure.draw(chart_of(found.groups, Look()))
    boxes = {text: box for text, box in drawn(made).items() if text in ("first", "second", "third", "fourth")}
    right, width = made.axes[0].get_window_extent().x1, made.canvas.get_width_height()[0]
    assert len(boxes) == 4 and all(right < box.x0 and box.x1 < width for box in boxes.values())
    stacked = sorted(boxes.values(), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 4 for below, above in pairwise(stacked))


def test_dollars_in_names_are_dollars(tmp_path):
    write_run(tmp_path / "cost $5 or $\\nix{$", env="$\\frac$")
    made = plot(find(["cost*"], root=tmp_path), tmp_path / "a.svg", title="$\\nix$ and {")
    assert "$\\nix$ and {" in drawn(made)


def test_places_are_moved_apart_as_little_as_may_be():
    assert figure._apart([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    assert figure._apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert figure._apart([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])


def test_lines_can_be_told_from_the_paper():
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for theme in (figure.LIGHT, figure.DARK):
        for colour in (*theme.lines, theme.quiet):
            a, b = sorted((light(colour), light(theme.paper)))
            assert (b + 0.05) / (a + 0.05) >= 3.0, f"{colour} on {theme.paper}: the contrast of WCAG for graphics is 3"


def test_pictures_are_written_and_the_same_twice(runs, tmp_path):
    found = find(["ppo", "a2c"], root=runs)
    for name in ("a.svg", "b.svg"):
        plot(found, tmp_path / name, x="seconds")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    dark = plot(found, tmp_path / "deeper" / "a.png", dark=True)
    assert (tmp_path / "deeper" / "a.png").read_bytes()[:4] == b"\x89PNG"
    from matplotlib.colors import to_hex

    assert to_hex(dark.get_facecolor()) == figure.DARK.paper and figure.LIGHT.paper in (tmp_path / "a.svg").read_text()
    with pytest.raises(RunError, match=r"--out x\.jpg: the name of a picture ends in \.png, \.svg"):
        plot(found, "x.jpg")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        plot(found, tmp_path / "file" / "a.png")


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("width", [20, 60, 80, 140])
def test_the_chart_in_a_terminal_fits_it(runs, width):
    for words in (("ppo", "a2c"), ("long",)):
        text = plain(text_chart(chart(runs, *words, title="T"), width=width, colour=True))
        assert max(map(len, text.splitlines())) <= max(min(width, 110), 30)
        assert text.startswith("T\n") and ("environment steps" in text or width < 60)


def test_a_rising_line_rises_in_the_terminal(tmp_path):
    write_run(tmp_path / "up", points=[(0, 0.0), (100, 100.0)])
    rows = text_chart(chart(tmp_path, "up"), width=60, height=10, colour=False).splitlines()[1:11]
    assert rows[0].startswith("100 ┤") and rows[-1].strip().startswith("0 ┤")
    first = [re.search(r"[\u2801-\u28ff]", row).start() for row in rows]
    assert first == sorted(first, reverse=True) and first[0] > 50 and first[-1] < 8


def test_without_colours_lines_are_letters_and_without_unicode_all_is_ascii(runs):
    found = chart(runs, "ppo", "a2c")
    letters = text_chart(found, colour=False)
    assert "A ppo   B a2c" in letters and "AAA" in letters and "BBB" in letters and "\x1b" not in letters
    coloured = text_chart(found)
    assert "\x1b[38;5;39m" in coloured and "\x1b[38;5;208m" in coloured and "AAA" not in coloured
    rest = text_chart(found, colour=False, ascii_only=True).replace("×", "x")
    assert rest.isascii()


SCALES = [(0, 500, (0, 600, 200)), (-1400, -180, (-1500, 0, 500)), (3, 3, (2.5, 3.5, 0.25))]


@pytest.mark.parametrize("low, high, wanted", SCALES)
def test_scales_end_at_round_numbers(low, high, wanted):
    assert nice_scale(low, high) == pytest.approx(wanted)
