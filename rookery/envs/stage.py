"""A pool of one environment that can be looked at: what `rookery watch`, `rookery video` and `eval --render` play on.

| environment | its picture |
|---|---|
| a Gymnasium environment | what `render()` gives, as `rgb_array` or `ansi` |
| Atari | a second emulator with the same seed and the same actions, in colour and whole: `AtariVectorEnv` draws nothing |
| a toy, one written in JAX, and any other with `view="agent"` | its observation, drawn (`drawing.py`) |

Episodes are those of training: the same pool, with the same options and whatever stands between it and the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import gymnasium

from rookery import envs
from rookery.envs import drawing
from rookery.envs.atari import AtariPool, is_atari
from rookery.envs.jax.sources import is_jax_id, kind_of
from rookery.envs.options import take_pool_options
from rookery.envs.pools.adapted import AdaptedPool
from rookery.envs.rendering import RGB, CannotDraw, about_gl, draw_without_display, in_short, is_picture, picture
from rookery.envs.toys import TOYS
from rookery.trees import tree_map
from rookery.types import EnvPool, Episode, PyTree, TimeStep

View = Literal["env", "agent"]
Frame = Any  # a picture, uint8 [H, W, 3]; a text; or None where the environment has a window of its own
FPS = 30.0  # where the environment does not say
TEXT, WINDOW = "ansi", "human"


class Stage:
    """An `EnvPool` of one environment; `frame()` is the picture of where it stands, until the next `send`."""

    def __init__(
        self, pool: EnvPool, picture: Callable[[Stage], Frame], *, camera: EnvPool | None = None, fps: float = FPS
    ) -> None:
        """camera: another pool of the same episodes, driven beside it."""
        self.spec, self.num_envs, self.groups, self.pool, self.camera, self.fps = pool.spec, 1, pool.groups, pool, camera, fps
        self.id = pool.spec.id
        self.last: TimeStep | None = None  # as it was played: before any pool option
        self.seen: PyTree = None  # of the camera
        self._picture = picture

    def frame(self) -> Frame:
        return self._picture(self)

    def reset(self, seed: int) -> TimeStep:
        self.last = self.pool.reset(seed)
        if self.camera is not None:
            self.seen = self.camera.reset(seed).observation
        return self.last

    def send(self, action: PyTree, group: int = 0) -> None:
        self.pool.send(action, group)
        if self.camera is not None:
            self.camera.send(action, group)

    def recv(self, group: int = 0) -> TimeStep:
        self.last = self.pool.recv(group)
        if self.camera is not None:
            self.seen = self.camera.recv(group).observation
        return self.last

    def rebuild(self, env_id: int) -> None:
        self.pool.rebuild(env_id)
        if self.camera is not None:
            self.camera.rebuild(env_id)

    def take_episodes(self) -> list[Episode]:
        return self.pool.take_episodes()

    def snapshot(self) -> PyTree | None:
        """Return None: what is looked at is not saved."""
        return None

    def restore(self, snapshot: PyTree) -> TimeStep:
        raise NotImplementedError(f"{self.id!r} is played to be looked at, and not saved")

    def close(self) -> None:
        for pool in (self.pool, self.camera):
            if pool is not None:
                pool.close()


def open_stage(id: Any, *, view: View = "env", text: bool = False, **options: Any) -> tuple[Stage, EnvPool]:
    """Make the environment to look at, and the pool to play it by, which is the same seen through the pool options.

    view: as the environment draws itself, or as the agent sees it. text: rather in letters than in colours, where it has both.
    Raises CannotDraw.
    """
    adaptation, rest = take_pool_options(id, options)
    stage = _drawn_from_outside(id, view, rest) or _rendered(id, text, rest)
    return stage, stage if adaptation is None else AdaptedPool(stage, adaptation)


def _drawn_from_outside(id: Any, view: View, options: dict[str, Any]) -> Stage | None:
    """Make the stage of an environment that is drawn here; None: it is asked to draw itself."""
    if view == "env" and isinstance(id, str) and is_atari(id):
        camera = options | {"grayscale": False, "height": 210, "width": 160, "stack": 1}
        pool = envs.as_played(id, 1, **options)
        return Stage(pool, lambda stage: stage.seen[0, -1], camera=AtariPool(id, 1, **camera), fps=_fps(id, pool, options))
    ours = id in TOYS or is_jax_id(id) or id.startswith("envpool:") if isinstance(id, str) else kind_of(id) is not None
    if view == "env" and not ours:
        return None
    pool = envs.as_played(id, 1, **options)
    return Stage(pool, _observation, fps=_fps(id, pool, options))


def _fps(id: Any, pool: EnvPool, options: dict[str, Any]) -> float:
    """Return how many steps of an environment are a second of its own time."""
    name = id if isinstance(id, str) else ""
    if is_atari(name):
        return 60.0 / options.get("frame_skip", 4)
    if name in TOYS or name in ("jax:catch", "jax:cue-recall"):
        return 5.0  # slow enough to be followed
    if name == "jax:CartPole-v1":
        return 50.0
    return float(getattr(pool, "metadata", {}).get("render_fps") or FPS)


def _observation(stage: Stage) -> Frame:
    """Draw what was observed last."""
    assert stage.last is not None, "reset() comes first"
    return drawing.draw(stage.id, stage.spec.observation, tree_map(lambda leaf: leaf[0], stage.last.observation))


# ------------------------------------------------------------------------------------- those that draw themselves


def _rendered(id: Any, text: bool, options: dict[str, Any]) -> Stage:
    """Make the stage of an environment in the first mode that it really draws in."""
    draw_without_display()
    name = id if isinstance(id, str) else getattr(id, "__name__", type(id).__name__)
    tried = []
    for mode in _modes(id, text):
        stage = None
        try:
            stage = _in_mode(id, mode, options)
            stage.reset(0)
            if _is_frame(frame := stage.frame(), mode):
                return stage
            tried.append(f"as {mode or 'it is made'}, render() gave {type(frame).__name__}")
        except envs.UnknownEnvironment:
            raise
        except gymnasium.error.DependencyNotInstalled as error:
            raise CannotDraw(f"{name!r} draws with a package that is missing: {error}") from error
        except Exception as error:
            tried.append(f"as {mode or 'it is made'}, {in_short(error)}")
        if stage is not None:
            with suppress(Exception):
                stage.close()
    raise CannotDraw(
        f"{name!r} cannot draw itself: {'; '.join(tried)}. What the agent sees can be drawn: --view agent. An environment of "
        f"yours draws itself when metadata['render_modes'] has {RGB!r} or {TEXT!r}, it takes render_mode, and has render()"
        f"{about_gl(' '.join(tried))}"
    )


def _modes(id: Any, text: bool) -> Iterator[str | None]:
    """Yield the modes to try, the preferred first; None: without one."""
    creator: Any = id
    if isinstance(id, str):
        spec = gymnasium.registry.get(id)
        creator = None if spec is None else spec.entry_point
        if isinstance(creator, str):
            with suppress(Exception):  # what it misses is told when it is made
                creator = gymnasium.envs.registration.load_env_creator(creator)
    known = (getattr(creator, "metadata", None) or {}).get("render_modes")
    order = (TEXT, RGB) if text else (RGB, TEXT)
    if isinstance(creator, type) and known is not None:
        yield from (mode for mode in (*order, WINDOW) if mode in known)
    else:
        yield from order
    yield None


def _in_mode(id: Any, mode: str | None, options: dict[str, Any]) -> Stage:
    given = {key: value for key, value in options.items() if key != "render_mode"}
    pool = envs.as_played(id, 1, **(given if mode is None else given | {"render_mode": mode}))
    return Stage(pool, _render, fps=4.0 if mode == TEXT else _fps(id, pool, given))  # letters are read


def _render(stage: Stage) -> Frame:
    return picture(stage.pool.render())  # type: ignore[attr-defined]


def _is_frame(frame: Frame, mode: str | None) -> bool:
    return is_picture(frame) or isinstance(frame, str) or (mode == WINDOW and frame is None)
