"""Frames in a terminal: two pixels in a character, in as many colours as there are; and the terminal is left as it was."""

import io
import os
import pty
import re
import termios

import numpy as np
import pytest

from rookery.run import screen
from rookery.run.config import ConfigError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def test_two_pixels_are_one_character_the_upper_its_colour_and_the_lower_its_ground():
    picture = np.array([[RED, RED], [BLUE, BLUE]], np.uint8)
    assert screen.half_blocks(picture, 2, 1, "24-bit") == ["\x1b[38;2;255;0;0;48;2;0;0;255m▀▀"], "a colour is said once"
    assert screen.half_blocks(picture, 2, 1, "256") == ["\x1b[38;5;196;48;5;21m▀▀"]


@pytest.mark.parametrize("columns, rows", [(60, 15), (80, 24), (140, 45), (10, 3)])
def test_a_picture_fits_and_keeps_its_shape(columns, rows):
    lines = screen.half_blocks(np.zeros((400, 600, 3), np.uint8), columns, rows, "24-bit")
    widths = {line.count(screen.HALF) for line in lines}
    assert len(lines) <= rows and len(widths) == 1 and max(len(re.sub(r"\x1b\[[^m]*m", "", line)) for line in lines) <= columns
    assert widths.pop() / (2 * len(lines)) == pytest.approx(1.5, rel=0.35)


def test_a_smaller_picture_is_the_mean_and_a_larger_one_repeats():
    picture = np.zeros((2, 4, 3), np.uint8)
    picture[:, 2:] = 100
    picture[0, 0] = 40
    assert screen.resized(picture, 1, 2)[..., 0].tolist() == [[10, 100]]
    assert screen.resized(picture, 4, 8)[3, :, 0].tolist() == [0, 0, 0, 0, 100, 100, 100, 100]
    assert screen.resized(picture, 2, 3).shape == (2, 3, 3)


def test_without_colours_brightness_is_told_in_letters():
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[:, 1] = 255
    assert screen.half_blocks(picture, 2, 1, "none") == [" @"]
    assert screen.colour_depth({"TERM": "xterm", "NO_COLOR": "1", "COLORTERM": "truecolor"}) == "none"
    assert screen.colour_depth({"TERM": "xterm"}) == "256"
    assert screen.colour_depth({"TERM": "x", "COLORTERM": "24bit"}) == "24-bit"


def test_keys_come_without_enter_and_the_terminal_is_left_as_it_was():
    master, slave = pty.openpty()
    before, stream = termios.tcgetattr(slave), io.StringIO()
    shown = screen.TerminalScreen(stream, keys=slave, depth="24-bit", size=lambda: os.terminal_size((40, 10)))
    try:
        assert not termios.tcgetattr(slave)[3] & (termios.ICANON | termios.ECHO) and termios.tcgetattr(slave)[3] & termios.ISIG
        shown.show(np.zeros((8, 8, 3), np.uint8), ["one", "x" * 100])
        text = stream.getvalue()
        assert "\x1b[?1049h" in text and "\x1b[?25l" in text and "one" in text and "x" * 39 in text and "x" * 40 not in text
        os.write(master, b"n")
        assert shown.wait(5.0) == "n" and shown.wait(0.0) == ""
        os.write(master, b"\x1b")
        assert shown.wait(5.0) == "q"
    finally:
        shown.close()
        shown.close()
    assert termios.tcgetattr(slave) == before
    assert stream.getvalue().endswith("\x1b[?25h\x1b[?1049l") and stream.getvalue().count("\x1b[?1049l") == 1
    os.close(master)
    os.close(slave)


def test_where_there_is_neither_terminal_nor_display_a_video_is_recommended(monkeypatch):
    monkeypatch.setattr(screen, "has_display", lambda: False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with pytest.raises(ConfigError, match="rookery video RUN"):
        screen.open_screen("auto", title="t")


def test_a_window_without_a_display_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(screen, "has_display", lambda: False)
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    with pytest.raises(ConfigError, match="--where terminal"):
        screen.check_place("window")
    screen.check_place("auto")


def test_a_window_shows_frames_and_tells_keys(monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = screen.open_screen("window", title="t")
    try:
        shown.show(np.full((40, 60, 3), 200, np.uint8), ["one", "two"])
        surface = pygame.display.get_surface()
        assert surface.get_size() == (660, 440 + 2 * 20) and surface.get_at((330, 200))[:3] == (200, 200, 200)
        shown.show("S F\nH G", ["one"])
        pygame.event.clear()
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_n, unicode="n"))
        assert shown.wait(1.0) == "n" and shown.wait(0.0) == ""
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert shown.wait(1.0) == "q"
    finally:
        shown.close()
