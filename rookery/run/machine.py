"""`rookery doctor`: what this machine has, what is missing, and what would stop a run. Quick: little is started, nothing stays.

The versions that are compared are those of constraints.txt, which is no part of a wheel: a test keeps them equal.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from rookery.data.memory import available_bytes
from rookery.envs.examination import Finding
from rookery.envs.processes.cores import usable_cores
from rookery.ranges import Range
from rookery.run import startup
from rookery.run.config import ConfigError
from rookery.run.doctor import PATIENCE_SECONDS, where
from rookery.run.screen import has_display
from rookery.run.versions import rookery_version
from rookery.run.words import value_of

NEEDED = {  # package -> the version that is tested, and the least that is asked for
    "jax": ("0.10.2", "0.10"), "optax": ("0.2.8", "0.2.8"), "flax": ("0.12.8", "0.12"), "gymnasium": ("1.4.0", "1.4"),
    "cloudpickle": ("3.1.2", "3"), "numpy": ("2.4.6", "2.2"), "tyro": ("1.0.16", "1.0"), "msgspec": ("0.22.0", "0.20"),
    "rich": ("15.0.0", "14"),
}  # fmt: skip
EXTRAS = {  # extra -> its packages with the versions that are tested, and what it is for
    "atari": ({"ale-py": "0.12.1"}, "Atari games"),
    "mujoco": ({"mujoco": "4.0.0"}, "Hopper-v5 and others of MuJoCo"),
    "box2d": ({"Box2D": "2.3.10"}, "LunarLander-v3, BipedalWalker-v3, CarRacing-v3"),
    "envpool": ({"envpool": "1.2.5"}, "envpool:ID"),
    "pgx": ({"pgx": "2.6.0"}, "board games written in JAX: pgx:ID"),
    "plot": ({"matplotlib": "3.11.2", "scipy": "1.17.1"}, "learning curves and comparisons"),
    "video": ({"imageio": "2.38.1", "imageio-ffmpeg": "0.8.1"}, "rookery video, --video-every"),
    "tensorboard": ({"tensorboardX": "2.6.5"}, "--tensorboard"),
    "wandb": ({"wandb": "0.31.0"}, "curves in Weights & Biases"),
    "ray": ({"ray": "2.60.0"}, "--runtime ray: several machines"),
}
PYTHON = (3, 11)
EGL_SECONDS = 3.0
TRY_EGL = "import mujoco\ncontext = mujoco.GLContext(64, 64)\ncontext.make_current()\n"


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Examine this machine or, with ENV, an environment: its spaces, seeds, answers and speed, and what to train on it."""

    env_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=VALUE ...]")] = ()
    """Handed to the environment."""
    seconds: Annotated[float, Range(above=0)] = PATIENCE_SECONDS
    """Longest wait for an answer of the environment."""
    runs: str = "runs"
    """The directory that runs are written to."""
    ray: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also start a Ray on this machine, and end it: takes some seconds."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """One JSON line instead of the text."""


def env_options(chosen: DoctorOptions) -> dict[str, Any]:
    """Read NAME=VALUE pairs."""
    pairs = [word.partition("=") for word in chosen.env_options]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise ConfigError(f"--env-options takes NAME=VALUE, not {wrong[0]!r}")
    return {name.replace("-", "_"): value_of(value) for name, _, value in pairs}


def examine_machine(chosen: DoctorOptions) -> list[Finding]:
    """Look at everything that a run depends on."""
    trial = _begin_egl()
    found = [*_hardware(), *_packages(), *_extras(), *_accelerators(), *_drawing(trial), *_directories(Path(chosen.runs))]
    if chosen.ray:
        found += _ray()
    return found


def _ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def _hardware() -> Iterator[Finding]:
    here, all_cores = usable_cores(), os.cpu_count() or 1
    limited = f" of {all_cores}: a control group or an affinity leaves no more" if here < all_cores else ""
    yield _ok("cores", f"{here}{limited} ({platform.machine()}, {platform.system()})")
    if sys.platform != "linux":
        yield Finding("platform", "note", "environments are stepped in process", "Worker processes need Linux")
    free = available_bytes()
    if free is not None:
        level = "note" if free < 2e9 else "ok"
        yield Finding("memory", level, f"{free / 1e9:.1f} GB are left for this process, by the machine and its control groups",
                      "A run takes 0.5 to 2 GB; a replay of a million frames more" if level == "note" else "")  # fmt: skip
    with contextlib.suppress(OSError):
        size = shutil.disk_usage("/dev/shm").total
        yield _ok("/dev/shm", f"{size / 1e9:.2g} GB; its size does not matter here: shared memory has no name")
    with contextlib.suppress(ImportError):
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files < 1024:
            yield Finding("files", "note", f"{files} may be open at once", "ulimit -n 4096, before many worker processes")


def _packages() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info[:2] < PYTHON:
        yield Finding("python", "problem", version, f"Rookery needs Python {'.'.join(map(str, PYTHON))} or newer")
    else:
        yield _ok("python", f"{version}, rookery {rookery_version()} in {where(Path(__file__).parents[1])}")
    same = []
    for name, (tested, least) in NEEDED.items():
        found = _version(name)
        if found is None or _number(found) < _number(least):
            has = "is missing" if found is None else f"{found} is too old"
            yield Finding("packages", "problem", f"{name} {has}", f"pip install '{name}=={tested}'")
        elif found != tested:
            remedy = f"If it fails: pip install '{name}=={tested}'"
            yield Finding("packages", "note", f"{name} {found}, and {tested} is what is tested", remedy)
        else:
            same.append(f"{name} {found}")
    if same:
        yield _ok("packages", f"as tested: {', '.join(same)}")


def _extras() -> Iterator[Finding]:
    absent = []
    for extra, (packages, gives) in EXTRAS.items():
        found = {name: _version(name) for name in packages}
        if None in found.values():
            absent.append((extra, gives))
            continue
        other = [f"{name} is tested with {packages[name]}" for name, version in found.items() if version != packages[name]]
        text = ", ".join(f"{name} {version}" for name, version in found.items())
        yield Finding(extra, "note" if other else "ok", f"{text}: {gives}", "; ".join(other))
    for extra, gives in absent:
        yield Finding(extra, "ok", f"not installed: {gives}", f"pip install 'rookery[{extra}]'")


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _accelerators() -> Iterator[Finding]:
    begin = time.perf_counter()
    try:
        startup.prepare()
        import jax

        devices = jax.devices()
    except Exception as error:
        yield Finding("jax", "problem", f"it does not start: {str(error).splitlines()[0]}",
                      "JAX_PLATFORMS=cpu does without; else pip install -U 'jax[cuda12]' with a driver that fits")  # fmt: skip
        return
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in devices})
    yield _ok("jax", f"sees {len(devices)} × {', '.join(kinds)}, after {time.perf_counter() - begin:.1f} s")
    if Path("/proc/driver/nvidia/version").exists() and all(device.platform == "cpu" for device in devices):
        yield Finding("gpu", "note", "there is one of NVIDIA's, and jax does not use it", "pip install 'rookery[cuda]'")
    cache = Path(getattr(jax.config, "jax_compilation_cache_dir", None) or startup.cache_directory())
    if not _writable(cache):
        yield Finding("cache", "note", f"{where(cache)} cannot be written: every run compiles anew", "Set XDG_CACHE_HOME")
        return
    size = sum(entry.stat().st_size for entry in os.scandir(cache)) if cache.is_dir() else 0
    yield _ok("cache", f"compiled programs are kept in {where(cache)} ({size / 1e6:.0f} MB)")


# --------------------------------------------------------------------------------------------------------- drawing


def _begin_egl() -> subprocess.Popen[bytes] | None:
    """Try EGL in a process of its own, beside all else: a driver that is broken may crash."""
    if find_spec("mujoco") is None or sys.platform != "linux":
        return None
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", TRY_EGL], env=os.environ | {"MUJOCO_GL": "egl"}, **quiet)


def _drawing(trial: subprocess.Popen[bytes] | None) -> Iterator[Finding]:
    if has_display():
        window = find_spec("pygame") is not None
        yield Finding("display", "ok", "there is one: rookery watch opens a window" if window else "there is one",
                      "" if window else "pip install pygame-ce, for windows; else it draws in the terminal")  # fmt: skip
    else:
        yield _ok("display", "none: rookery watch draws in the terminal, rookery video writes files")
    if trial is not None:
        try:
            works = trial.wait(EGL_SECONDS) == 0
        except subprocess.TimeoutExpired:
            works = False
            trial.kill()
            trial.wait()
        if works:
            yield _ok("EGL", "MuJoCo can draw without a display (MUJOCO_GL=egl)")
        else:
            yield Finding("EGL", "note", "MuJoCo cannot draw without a display",
                          "Install libegl1 and libgl1-mesa-dri, or libosmesa6 with MUJOCO_GL=osmesa")  # fmt: skip
    elif sys.platform == "linux":
        there = find_library("EGL") is not None
        yield _ok("EGL", "libEGL is there" if there else "no libEGL: only MuJoCo's videos need it")
    if find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        try:
            yield _ok("ffmpeg", where(imageio_ffmpeg.get_ffmpeg_exe()))
        except RuntimeError:
            yield Finding("ffmpeg", "note", "imageio-ffmpeg has none for this machine", "Install ffmpeg; .gif needs none")


def _directories(runs: Path) -> Iterator[Finding]:
    if not _writable(runs):
        yield Finding("runs", "problem", f"{runs}/ cannot be written", "Change to another directory, or give --runs DIRECTORY")
        return
    free = shutil.disk_usage(_nearest(runs)).free
    level = "note" if free < 1e9 else "ok"
    yield Finding("runs", level, f"{runs}/ can be written, {free / 1e9:.1f} GB are free",
                  "A checkpoint with a replay takes up to some GB: --replay.save-megabytes" * (level == "note"))  # fmt: skip


def _nearest(path: Path) -> Path:
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def _writable(path: Path) -> bool:
    """Try to make a file there, or where the directory would be made."""
    place = _nearest(path)
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _ray() -> Iterator[Finding]:
    begin = time.perf_counter()
    try:
        from rookery.runtime.ray import RayRuntime

        RayRuntime(resources={}, counts={}, prepare=startup.prepare, versions=dict).close()
    except ModuleNotFoundError:
        yield Finding("ray", "problem", "it is not installed, so --ray can start none", "pip install 'rookery[ray]'")
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        yield Finding("ray", "problem", f"it does not start: {said}", "docs/cluster.md says what it needs")
    else:
        yield _ok("ray", f"one was started here and ended, in {time.perf_counter() - begin:.1f} s")
