"""A run is a directory. Everything that is known of a run is in plain files there.

    runs/impala-CartPole-v1-20261115-213305/
        config.json     the resolved config, the command that repeats it, the versions of what was installed, and a digest of
                        all that; every checkpoint has a copy of the config (see rookery/run/resuming.py)
        metrics.jsonl   one JSON object per line, appended and never rewritten but by `rewind`; docs/metrics.md has the names
        episodes.jsonl  every training episode, see rookery/run/episodes.py
        evaluations.jsonl
                        every evaluation, with the return of each episode
        log.txt         what the python logger `rookery` said
        checkpoints/    those that training continues from, see rookery/run/checkpoint.py; best/, see rookery/run/kept.py
        result.json     how it ended
        lock            held (flock) by the process that writes; its pid is inside

Environment variables are never written: they may hold secrets. A disk that fails while training is warned of once and
never raises into the training loop. The wall clock is for names and display only.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rookery.run import checkpoint
from rookery.run.episodes import EpisodeFile
from rookery.run.records import DIGEST, LogFile, RowFile, plain, read_json, replace, sealed, unsealed, write_json
from rookery.run.versions import versions

FORMAT = 2  # 1: the digest was that of the config alone
GROUP = "group.json"  # of a directory that holds runs of several seeds, see rookery/run/seeds.py
CONFIG, METRICS, LOG, RESULT, LOCK, CHECKPOINTS = (
    "config.json", "metrics.jsonl", "log.txt", "result.json", "lock", "checkpoints"
)  # fmt: skip
EPISODES, EVALUATIONS = "episodes.jsonl", "evaluations.jsonl"
STATUSES = ("running", "done", "failed", "stopped")
BEST, LAST = "best", "last"  # policies of a run: by evaluation, and the one that training continues from

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=,@-]{0,199}")
_logger = logging.getLogger(__name__)


class RunError(Exception):
    """A run cannot be made, found or written to: what the user asked for must change."""

    exit_code = 2


class ConfigDamaged(RunError):
    """config.json is not what was written: what it says must not be used."""

    exit_code = 5


class RunRow(NamedTuple):
    """A line of `rookery list runs`."""

    name: str
    system: str
    env: str
    env_steps: int | None
    return_mean: float | None
    status: str  # one of STATUSES
    age_seconds: float  # since it was created
    path: Path


Rows = list[RunRow]


class Run:
    """A run's directory: `Run.create` to write a new one, `Run.open` to read one, then `lock` to write to it again."""

    def __init__(self, path: Path, checkpoint: Path | None = None, base: Path | None = None) -> None:
        """base: what a relative path starts from; by default, the working directory of now, whatever it is later."""
        self.shown = path  # as it was asked for, for messages and commands
        self.path = Path(os.path.abspath(path if base is None else base / path))
        self.checkpoint = checkpoint  # the one that was asked for by path, if any
        self.metrics = RowFile(self.path / METRICS)
        self.episodes = EpisodeFile(self.path / EPISODES)
        self.evaluations = RowFile(self.path / EVALUATIONS)
        self._lock: int | None = None
        self._handlers: list[tuple[logging.Logger, logging.Handler]] = []

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def shown_as(self, path: Path) -> Path:
        """Return a path inside the run as the user would write it, relative to the path that the run was opened by."""
        return self.shown / path.relative_to(self.path) if path.is_relative_to(self.path) else path

    # ------------------------------------------------------------------------------------------- create and find

    @classmethod
    def create(
        cls, root: Path | str, name: str | None, config: Mapping[str, Any], command: str, *, base: Path | None = None
    ) -> Run:
        """Create a directory below `root`, locked for writing. `config` names its `system` and `env`; base: as for `Run`."""
        root, base = Path(root), base or Path.cwd()
        if name is not None and not _NAME.fullmatch(name):
            raise RunError(f"run name {name!r}: use letters, digits and . _ - only; --runs sets the place")
        try:
            (base / root).mkdir(parents=True, exist_ok=True)
            run = cls(root / (claim(base / root, config) if name is None else name), base=base)
            run.path.mkdir(exist_ok=True)
            run.lock()
            try:
                if any((run.path / file).exists() for file in (CONFIG, METRICS, CHECKPOINTS)):
                    raise RunError(
                        f"{run.shown} already holds a run. {run.what_to_do()}, choose another --run, or remove the directory."
                    )
                run.write_config(config, command)
                run.checkpoints.mkdir()
            except BaseException:
                run.close()
                raise
        except OSError as error:
            raise RunError(
                f"cannot make a run in {root}: {error.strerror or error}. Choose a writable place with --runs."
            ) from error
        return run

    @classmethod
    def open(cls, path_or_name: Path | str, root: Path | str = "runs") -> Run:
        """Open the run of that path, name, or unambiguous beginning of a name; a checkpoint's path opens its run."""
        given, root = str(path_or_name), Path(root)
        if not given:
            raise RunError("the name of a run is empty. `rookery list runs` shows what there is.")
        for start in (root / given, Path(given)):
            place = (start.parent if start.is_file() else start).absolute()
            if place.parent.name == CHECKPOINTS and (place.parent.parent / CONFIG).is_file() and place.is_dir():
                return cls(place.parent.parent, place)
            for path in (place, place.parent) if place.name == CHECKPOINTS else (place,):
                if (path / CONFIG).is_file():
                    return cls(path if start.is_absolute() else Path(os.path.relpath(path)))
            if (place / GROUP).is_file():
                one = next((path for path in _runs(place)), place / "seed-0")
                raise RunError(f"{start} is a group of runs, one for each seed: give one of them, {start / one.name}")
        names = [str(path.relative_to(root)) for path in _runs(root)]
        matches = [name for name in names if name.startswith(given)]
        if len(matches) == 1:
            return cls(root / matches[0])
        if matches:
            raise RunError(f"{given!r} is the beginning of {len(matches)} runs: {_some(matches)}. Give more of it.")
        if not names:
            raise RunError(f"no run {given!r}: there are no runs in {root}/. `rookery train` makes one.")
        near = difflib.get_close_matches(given, names, n=3, cutoff=0.3) or names[:3]
        raise RunError(f"no run {given!r} in {root}/. The nearest: {_some(near)}. `rookery list runs` shows all.")

    @staticmethod
    def list(root: Path | str = "runs") -> Rows:
        """List every run below `root`, the newest first. Damaged files give empty cells, never an error."""
        now = datetime.now(UTC)
        return [row for _, row in sorted((_row(path, now, Path(root)) for path in _runs(Path(root))), key=lambda pair: pair[0])]

    @property
    def config(self) -> dict[str, Any]:
        """All of config.json: `config`, `command`, `versions`, `created`. Raises ConfigDamaged unless it is as written."""
        try:
            value = _described(self.path)
        except OSError as error:
            raise ConfigDamaged(f"{self.shown / CONFIG} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ConfigDamaged(f"{self.shown / CONFIG} {error}.") from error
        if value["format"] > FORMAT:
            by = value.get("versions", {}).get("rookery")
            raise RunError(f"{self.shown / CONFIG} was written by rookery {by}. Install that version, or a newer one.")
        return value

    @property
    def is_there(self) -> bool:
        """Is there still a run at its place? Somebody may have removed or moved the directory."""
        return (self.path / CONFIG).is_file()

    def what_to_do(self) -> str:
        """Advise what to do with a run that is there already, in a sentence."""
        if self._lock is None and _is_locked(self.path / LOCK):
            return "It is being trained and has none yet: wait for it"
        if checkpoint.listed(self.checkpoints):
            return f"Continue it with `{self.resume_call}`"
        told = "It was ended before its first checkpoint, so there is nothing to go on from: start it anew"
        with contextlib.suppress(OSError, ValueError):
            command = _described(self.path)["command"]
            return told if command.startswith("#") else f"{told}, `rm -r {shlex.quote(str(self.shown))} && {command}`"
        return told

    @property
    def resume_call(self) -> str:
        """The command that goes on with the run or, where parts of it are objects without a name, the call in Python."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            config = _described(self.path)["config"]
            named = config.get("references", {})
            lost = dict.fromkeys(part.partition(".")[0] for part in config.get("custom", ()) if part not in named)
            if lost:
                return f"rookery.resume({str(self.shown)!r}, {', '.join(f'{part}=...' for part in lost)})"
        return f"rookery resume {run_argument(self.name, self.shown)}"

    @property
    def kept(self) -> str:
        """Which policy stands for the run, as its result says: BEST where an evaluation ended it, else LAST."""
        return BEST if read_json(self.path / RESULT).get("policy") == BEST else LAST

    @property
    def status(self) -> str:
        """How it stands: one of STATUSES. Without a result it was killed before it could say anything: failed."""
        said = read_json(self.path / RESULT).get("status")
        return "running" if _is_locked(self.path / LOCK) else said if said in STATUSES else "failed"

    # -------------------------------------------------------------------------------------------------- writing

    def lock(self) -> None:
        """Become the only writer. Raises RunError if there is another."""
        if self._lock is not None:
            return
        try:
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"{self.shown} cannot be written to: {error.strerror}. Copy it elsewhere.") from error
        for attempt in range(10):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # `rookery list` holds it for a moment when it looks
                if attempt == 9:
                    holder = os.pread(handle, 200, 0).decode(errors="replace").split("\n")[0]
                    os.close(handle)
                    raise RunError(f"{self.shown} is being written by {holder}. {_remedy(holder)}") from None
                time.sleep(0.02)
            except OSError as error:
                _logger.warning("%s: no locks on this file system (%s): do not start the run twice", self.path, error)
                break
        self._lock = handle
        with contextlib.suppress(OSError):  # who holds it is for messages only
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()}\n".encode(), 0)

    def write_config(self, config: Mapping[str, Any], command: str) -> None:
        """Write config.json, or replace it when a run goes on with other options. Raises OSError."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError, ValueError):
            created = _described(self.path)["created"]
        replace(self.path / CONFIG, sealed({
            "format": FORMAT, "created": created, "command": command, "config": plain(config), "versions": versions(),
        }))  # fmt: skip

    def write_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a row; NaN and infinities become null. Never raises for the disk (see RowFile)."""
        self.metrics.append(row)

    def rewind(self, updates: int, *, env_steps: float = math.inf, episodes: int | None = None) -> None:
        """Drop the rows of later `updates`, steps and episodes, and the result: a run that resumes from there writes them
        again. Raises OSError."""
        self.metrics.keep(lambda row: (row.get("updates") or 0) <= updates and (row.get("env_steps") or 0) <= env_steps)
        self.evaluations.keep(lambda row: (row.get("updates") or 0) <= updates)
        if episodes is not None:
            self.episodes.rewind(episodes)
        with contextlib.suppress(FileNotFoundError):
            (self.path / RESULT).unlink()

    def attach_log(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        """Send what `logger` (by default the one named rookery) says to log.txt, until `close`."""
        logger = logger or logging.getLogger("rookery")
        handler = LogFile(self.path / LOG)
        handler.setLevel(level)
        if logger.getEffectiveLevel() > level:
            logger.setLevel(level)
        logger.addHandler(handler)
        self._handlers.append((logger, handler))

    def write_result(self, status: str, result: Mapping[str, Any]) -> bool:
        """Write result.json whole; False, with a warning, if the disk refuses. `status` is done, failed or stopped."""
        if status not in STATUSES[1:]:
            raise ValueError(f"status {status!r}: a run ends as one of {', '.join(STATUSES[1:])}")
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            write_json(self.path / RESULT, {"status": status, "ended": ended, **plain(result, lambda _: None)})
        except OSError as error:
            _logger.warning("%s: cannot be written: %s", self.path / RESULT, error.strerror)
            return False
        return True

    def close(self) -> None:
        """Let go of the lock, the log and the rows."""
        self.metrics.close()
        self.episodes.close()
        self.evaluations.close()
        for logger, handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        self._handlers.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_argument(name: str, path: Path | str) -> str:
    """Quote a run for a command: by its name where commands look for one, else by its path."""
    return shlex.quote(name if Path(path) == Path("runs") / name else str(path))


# -------------------------------------------------------------------------------------------------------- files


def claim(root: Path, config: Mapping[str, Any]) -> str:
    """Make a directory with a name of its own, whatever others do at the same time."""
    parts = [str(config.get("system") or "run"), str(config.get("env") or ""), f"{datetime.now():%Y%m%d-%H%M%S}"]
    base = re.sub(r"[^A-Za-z0-9._+=,@]+", "-", "-".join(part[:80] for part in parts if part)).strip("-.")
    for number in range(1, 10_000):
        path = root / (base if number == 1 else f"{base}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path.name
    raise RunError(f"{root}/{base} and 9,999 like it exist. Give a --run.")


def _described(path: Path) -> dict[str, Any]:
    """Read config.json. Raises OSError, or ValueError where it is not what was written."""
    data = (path / CONFIG).read_bytes()
    try:
        value = unsealed(data)
    except ValueError:
        value = read_json(path / CONFIG)
        if value.get("format") != 1 or value.get(DIGEST) != _first_digest(value.get("config")):
            raise
    if not isinstance(value.get("config"), dict) or not isinstance(value.get("format"), int):
        raise ValueError("holds no config")
    return value


def _first_digest(config: Any) -> str:
    """Compute the digest of a config as format 1 had it."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _runs(root: Path) -> list[Path]:
    """Find the runs below `root`, those of groups among them."""
    try:
        places = [*root.iterdir()]
    except OSError:
        return []
    inner = [run for place in places if (place / GROUP).is_file() for run in _runs(place)]
    return sorted([*(path for path in places if (path / CONFIG).is_file()), *inner])


def _row(path: Path, now: datetime, root: Path) -> tuple[float, RunRow]:
    described, result = {}, read_json(path / RESULT)
    with contextlib.suppress(OSError, ValueError):
        described = _described(path)
    config = described.get("config", {})
    try:
        created = datetime.fromisoformat(described["created"])
        age = max(0.0, (now - created).total_seconds())
    except (KeyError, TypeError, ValueError):
        age = max(0.0, now.timestamp() - path.stat().st_mtime)
    if _is_locked(path / LOCK):
        status, result = "running", {}
    else:  # without a result: killed before it could say anything
        status = result["status"] if result.get("status") in STATUSES else "failed"
    last = {**RowFile(path / METRICS).last(), **result}
    steps, returns = (last.get(key) for key in ("env_steps", "return_mean"))
    row = RunRow(
        name=str(path.relative_to(root)), system=str(config.get("system", "?")), env=str(config.get("env", "?")),
        env_steps=int(steps) if isinstance(steps, (int, float)) else None,
        return_mean=float(returns) if isinstance(returns, (int, float)) else None,
        status=status, age_seconds=age, path=path,
    )  # fmt: skip
    return age, row


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, PermissionError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _remedy(holder: str) -> str:
    pid = holder.removeprefix("process ")
    if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
        return "That process is gone, but one that it started still runs: end it first."
    return f"Wait until it ends, stop it with `kill {pid}`, or choose another --run."


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
