"""Pictures that environments draw of themselves: asked for without a display, and whatever stands in the way in plain words.

MuJoCo draws with OpenGL, whose context belongs to one thread at a time. Gymnasium leaves the last one that was made current, so
that of two environments in one process the first would be drawn into the context of the second; here each is current while it
draws, and nobody's afterwards, so any thread may draw next.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np

from rookery.types import Array

RGB = "rgb_array"
NO_GL = (
    "without a display it needs EGL (MUJOCO_GL=egl, and the packages libegl1 and libgl1-mesa-dri, or a GPU's driver) or "
    "MUJOCO_GL=osmesa with libosmesa6"
)


class CannotDraw(ValueError):
    """There is no picture of this environment; the message says what is possible."""

    exit_code = 2


def draw_without_display() -> None:
    """Let MuJoCo and pygame draw where there is no display and nothing else was said; before they are imported."""
    headless = sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if headless:
        for name, value in (("MUJOCO_GL", "egl"), ("SDL_VIDEODRIVER", "dummy"), ("PYGAME_HIDE_SUPPORT_PROMPT", "1")):
            os.environ.setdefault(name, value)


def about_gl(tried: str) -> str:
    """Say what MuJoCo needs, where it is what failed."""
    if not any(word in tried for word in ("GL", "Gl", "glGet", "glfw", "mujoco")):
        return ""
    return f". MuJoCo drew by MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {NO_GL}"


def in_short(error: BaseException) -> str:
    """Return the type of an error and the last line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[-1][:200]}" if text else type(error).__name__


def picture(frame: Any) -> Any:
    """Return what `render()` gave as [H, W, 3] where it is a picture in another form: a list of them, or a grey one."""
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    if isinstance(frame, np.ndarray) and frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, axis=-1)
    return frame


def is_picture(frame: Any) -> bool:
    return isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[-1] == 3 and frame.dtype == np.uint8


class Camera:
    """Takes pictures of one environment, which was made with render_mode="rgb_array".

    MuJoCo draws them at the size that is asked for, with a map of shadows no finer than they show; others at their own. It
    looks through the model's camera `track`, which goes with the body, unless a camera was chosen (camera_name, camera_id). A
    model without one is looked at in its middle: Gymnasium looks at where its bodies are when the first picture is drawn, so
    that environments of one kind would see the same state differently.
    """

    def __init__(self, env: gymnasium.Env, name: str, size: tuple[int, int]) -> None:
        """size: height and width, for those who can."""
        self.env, self.name = env, name
        self._renderer: Any = getattr(env.unwrapped, "mujoco_renderer", None)  # Gymnasium's, of any environment of MuJoCo
        self._large: Any = None  # another one, for people
        if self._renderer is not None:
            self._own = (self._renderer.width, self._renderer.height)
            self._renderer.height, self._renderer.width = size
            _aim(self._renderer)
            quality = self._renderer.model.vis.quality
            quality.shadowsize = min(quality.shadowsize, _shadows(max(size)))

    def shoot(self) -> Array:
        """Draw the environment as it stands [H, W, 3]. CannotDraw says what it needs."""
        try:
            frame = picture(self.env.render() if self._renderer is None else self._of_mujoco())
        except gymnasium.error.DependencyNotInstalled as error:
            raise CannotDraw(f"{self.name!r} draws with a package that is missing: {error}") from error
        except Exception as error:
            remedy = "" if self._renderer is None else about_gl("mujoco")
            raise CannotDraw(f"{self.name!r} cannot be drawn, render() raised {in_short(error)}{remedy}") from error
        if not is_picture(frame):
            what = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise CannotDraw(f"{self.name!r} made with render_mode={RGB!r} draws {what}: uint8 of shape (H, W, 3) is expected")
        return frame

    def shoot_large(self) -> Array | None:
        """Draw what MuJoCo shows at its own size; None of others, whose last picture was large."""
        if self._renderer is None:
            return None
        if self._large is None:
            own, (width, height) = self._renderer, self._own
            self._large = type(own)(
                own.model, own.data, own.default_cam_config, width, height, own.max_geom, camera_id=own.camera_id
            )
        return _alone(self._large, lambda: self._large.render(RGB))

    def close(self) -> None:
        if self._large is not None:
            self._large.close()

    def _of_mujoco(self) -> Any:
        return _alone(self._renderer, self.env.render)


def _alone(renderer: Any, draw: Any) -> Any:
    """Draw with the renderer's own context, and leave none."""
    if renderer.viewer is not None:  # else its first picture makes one
        renderer.viewer.make_context_current()
    try:
        return draw()
    finally:
        egl, glfw = sys.modules.get("mujoco.egl"), sys.modules.get("glfw")
        backend = getattr(renderer.viewer, "backend", "")
        if backend == "egl" and egl is not None and egl.EGL_DISPLAY is not None:
            none = egl.EGL
            none.eglMakeCurrent(egl.EGL_DISPLAY, none.EGL_NO_SURFACE, none.EGL_NO_SURFACE, none.EGL_NO_CONTEXT)
        elif backend == "glfw" and glfw is not None:
            glfw.make_context_current(None)


def _aim(renderer: Any) -> None:
    """Let a camera that nobody chose show the same for the same state, whenever it was made."""
    if renderer.camera_id != -1:
        return
    import mujoco

    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1: there is none
    renderer.default_cam_config = {"lookat": np.array(renderer.model.stat.center)} | (renderer.default_cam_config or {})


def _shadows(side: int) -> int:
    """Return the side of a map of shadows for pictures of that side: 16 of its points for each pixel, in a power of two.

    MuJoCo's own, 4096, takes most of the time where a processor draws: 30 ms of CPU for a picture of 64 x 64, and 10 ms with
    1024, which differs by one level of 255 at most (HalfCheetah).
    """
    return 1 << (16 * side - 1).bit_length()
