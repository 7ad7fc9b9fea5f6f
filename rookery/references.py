"""Names of Python objects: `my_envs:GridEnv` in a module, `path/to/file.py:GridEnv` in a file.

A module is looked for where Python looks and then in the working directory; a file is imported as the module that its name
says, and what lies beside it can be imported by it. To import is to run: only what somebody typed or wrote in Python comes
here, never what a file of a run says (rookery/run/trust.py decides that).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCES = ("jax", "gymnax", "brax", "pgx", "envpool")  # what stands before a colon of an environment's id, and is no module
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_imported: dict[Path, ModuleType] = {}  # files, by their real paths
_by_value: list[ModuleType] = []  # of those, the ones whose name means another module to other processes


class BadReference(ValueError):
    """There is no such file, module or name, or it cannot be imported; the message says what is near."""

    exit_code = 2


def split(text: str) -> tuple[str, str] | None:
    """Split a reference into the place, a module or a file, and the name there; None where `text` is none."""
    place, colon, name = text.rpartition(".py:")
    if colon:
        return (f"{place}.py", name) if place and name else None
    place, colon, name = text.partition(":")
    return (place, name) if colon and name and place not in SOURCES and _MODULE.fullmatch(place) else None


def is_reference(value: Any) -> bool:
    return isinstance(value, str) and split(value) is not None


def absolute(text: str) -> str:
    """Return a reference that means the same from any directory; a module's is that already."""
    place, name = _parts(text)
    return f"{Path(place).absolute()}:{name}" if place.endswith(".py") else text


def name_in(text: str) -> str:
    """Return what stands behind the colon: `GridEnv`, `Grid-v0`."""
    return _parts(text)[1]


def load(text: str) -> Any:
    """Import the place and return what has the name there."""
    return attribute(module_of(text), text)


def module_of(text: str) -> ModuleType:
    """Import the module or the file of a reference."""
    place, _ = _parts(text)
    return _file(Path(place)) if place.endswith(".py") else _module(place, text)


def attribute(module: ModuleType, text: str) -> Any:
    """Find the name of a reference in its module; BadReference, with the near ones, where there is none."""
    found: Any = module
    name = name_in(text)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise BadReference(f"{where(module)} has no {name!r}: {near(name, names(module))}") from None
    return found


def made(text: str, what: str) -> Any:
    """Load what a reference names and, where that is a class or a function, return what it makes without arguments."""
    found = load(text)
    if not isinstance(found, type) and not inspect.isroutine(found):
        return found
    try:
        return found()
    except TypeError as error:
        raise BadReference(f"{text} makes no {what}: it is called without arguments, and said: {error}") from error


def name_of(value: Any) -> str | None:
    """Return the reference that gives a class or a function again, in another process as well; None where none does."""
    module, name = sys.modules.get(getattr(value, "__module__", None) or ""), getattr(value, "__qualname__", "")
    if module is None or module.__name__ == "__main__" or not name or "<" in name:
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return None
    file = getattr(module, "__file__", None)
    if file and file.endswith(".py") and "." not in module.__name__ and not _is_installed(file) and not _is_package(file):
        return f"{Path(file).absolute()}:{name}"
    return f"{module.__name__}:{name}" if getattr(module, "__spec__", None) is not None else None


def names(module: ModuleType) -> list[str]:
    """List the classes and functions that a module has of its own, and what else it has where there are none."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    return own or [name for name, value in public.items() if not isinstance(value, ModuleType)]


def near(name: str, known: list[str]) -> str:
    """Say which of the known names are near, or some of what there is."""
    lower = {one.lower(): one for one in known}
    found = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if found:
        return f"did you mean {' or '.join(map(repr, found))}?"
    return f"it has {', '.join(known[:8])}{' ...' if known[8:] else ''}." if known else "it has no names of its own."


def where(module: ModuleType) -> str:
    """Return how a message names a module: by its name, and the file that it came from."""
    file = getattr(module, "__file__", None)
    if file is None or any(module is one for one in _imported.values()):
        return _shown(Path(file)) if file else module.__name__
    return f"{module.__name__} ({_shown(Path(file))})"


def by_value() -> list[ModuleType]:
    """List the modules that other processes would not find by their names, as far as they are still there."""
    return [module for module in _by_value if _is_there(module)]


def from_files() -> list[ModuleType]:
    """List the modules that were imported by the path of their file, as far as they are still there: other machines have no
    such file."""
    return [module for module in _imported.values() if _is_there(module)]


def _is_there(module: ModuleType) -> bool:
    """Tell whether a module is still the one of its name; whoever took it away has no use for what is in it."""
    return sys.modules.get(module.__name__) is module


def look_in(folder: Path) -> None:
    """Let modules of a folder be found, after all others: a file there hides nothing that is installed."""
    if str(folder) not in sys.path and not (folder == Path.cwd() and "" in sys.path):
        sys.path.append(str(folder))


def forget() -> None:
    """Forget the files that were imported: a reference imports them anew."""
    _imported.clear()
    _by_value.clear()


# --------------------------------------------------------------------------------------------------------- importing


def _parts(text: str) -> tuple[str, str]:
    parts = split(text)
    assert parts is not None, f"{text!r} is no reference"
    return parts


def _module(name: str, text: str) -> ModuleType:
    look_in(Path.cwd())
    importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _broken(name, error) from error  # one that it imports itself
        raise BadReference(_no_module(name, missing, text)) from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _no_module(name: str, missing: str, text: str) -> str:
    said = f"there is no module {missing!r} for {text!r}"
    if (file := Path(*name.split(".")).with_suffix(".py")).is_file():  # a folder of that name is found elsewhere
        return f"{said}. For the file: {file}:{name_in(text)}"
    known = [found.name for found in pkgutil.iter_modules([str(Path.cwd())])]
    close = difflib.get_close_matches(missing, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{said}: neither in {Path.cwd()} nor installed.{hint} A file is named by its path: path/to/file.py:{name_in(text)}"


def _file(path: Path) -> ModuleType:
    real = path.resolve()
    if real in _imported:
        return _imported[real]
    if not path.is_file():
        folder = path.parent
        close = difflib.get_close_matches(path.name, [one.name for one in folder.glob("*.py")], n=1)
        hint = f" Did you mean {_shown(folder / close[0])!r}?" if close else ""
        raise BadReference(f"there is no file {_shown(path)!r}, seen from {Path.cwd()}.{hint}")
    _imported[real] = _import_file(real)
    return _imported[real]


def _import_file(path: Path) -> ModuleType:
    """Import a file by the name that it has; by one of its own where that name means another module."""
    look_in(path.parent)
    importlib.invalidate_caches()
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and _is_file(getattr(known, "__file__", None), path):
        return known
    free = name.isidentifier() and known is None and _is_file(_origin(name), path)
    if not free:
        name = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(_shown(path), error, path) from error
    if not free:
        _by_value.append(module)
    return module


def _origin(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None


def _is_file(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path


def _broken(what: str, error: BaseException, path: Path | None = None) -> BadReference:
    """Name what raised while it was imported, with the last line that is no part of importing."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    frames = [frame for frame in frames if frame.filename != __file__]
    place = f", in {_shown(Path(frames[-1].filename))} line {frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        place = f", in {_shown(Path(error.filename or what))} line {error.lineno}"
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    hint = ""
    if path is not None and "relative import" in said:
        hint = f". It is part of a package: name it as {path.parent.name}.{path.stem}:NAME, from the directory above"
    return BadReference(f"{what} raises when it is imported{place}: {said}{hint}")


def _is_installed(file: str) -> bool:
    places = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(place and Path(file).is_relative_to(place) for place in places)


def _is_package(file: str) -> bool:
    return Path(file).name == "__init__.py"


def _shown(path: Path) -> str:
    """Return a path as it is shortest, from here or from the root."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
