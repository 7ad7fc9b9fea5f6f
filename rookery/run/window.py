"""A window that shows frames, by pygame, which many environments draw with anyway; see `screen.py` for how it is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.run.screen import SIZE

BAR = 20  # pixels of a line of text


class CannotOpen(RuntimeError):
    """There is no display, or no pygame."""

    exit_code = 2


class WindowScreen:
    """The window is made with the first frame, as large as that, small ones enlarged."""

    def __init__(self, title: str) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame

            pygame.display.init()
            pygame.font.init()
        except ImportError as error:
            raise CannotOpen(f"a window needs pygame: pip install pygame-ce ({error})") from error
        except pygame.error as error:
            raise CannotOpen(f"there is no display for a window: {error}. --where terminal draws in the terminal") from error
        self._pygame: Any = pygame
        self._title = title
        self._surface: Any = None
        self._font = pygame.font.SysFont("dejavusansmono,monospace", 13)

    def show(self, frame: Any, lines: Sequence[str]) -> None:
        pygame = self._pygame
        if frame is None:  # the environment has a window of its own
            return
        picture = self._written(frame) if isinstance(frame, str) else self._picture(frame)
        width, height = max(picture.get_width(), 480), picture.get_height()
        if self._surface is None:
            pygame.display.set_caption(self._title)
        if self._surface is None or self._surface.get_size() != (width, height + BAR * len(lines)):
            self._surface = pygame.display.set_mode((width, height + BAR * len(lines)))
        self._surface.fill((24, 26, 33))
        self._surface.blit(picture, ((width - picture.get_width()) // 2, 0))
        for number, line in enumerate(lines):
            self._surface.blit(self._font.render(line, True, (230, 232, 240)), (6, height + BAR * number + 2))
        pygame.display.flip()

    def wait(self, seconds: float) -> str:
        """Pass the time, and return the key that was pressed in it; closing the window is a `q`."""
        pygame, until = self._pygame, self._pygame.time.get_ticks() + 1000 * seconds
        while True:
            for event in pygame.event.get():
                if event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE):
                    return "q"
                if event.type == pygame.KEYDOWN and event.unicode:
                    return str(event.unicode)
            left = until - pygame.time.get_ticks()
            if left <= 0:
                return ""
            pygame.time.wait(int(min(left, 20)))

    def close(self) -> None:
        self._pygame.display.quit()

    def _picture(self, frame: np.ndarray) -> Any:
        pygame, scale = self._pygame, max(1, round(SIZE / max(frame.shape[:2])))
        surface = pygame.surfarray.make_surface(np.ascontiguousarray(frame.swapaxes(0, 1)))
        return pygame.transform.scale_by(surface, scale)

    def _written(self, text: str) -> Any:
        import re

        rows = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() or [""]
        surface = self._pygame.Surface((480, BAR * len(rows)))
        surface.fill((24, 26, 33))
        for number, row in enumerate(rows):
            surface.blit(self._font.render(row, True, (230, 232, 240)), (6, BAR * number + 2))
        return surface
