"""Checkpoints: raw arrays beside a JSON manifest with a digest per file. No pickle, so loading cannot run code.

    checkpoints/update-0000000200/
        arrays-000.bin    the arrays, one after the other, each aligned to 64 bytes
        chunk-*.bin       sealed chunks of a replay table: the same file in every checkpoint that holds them (data/files.py)
        manifest.json     structure, types, shapes, places and digests; its own digest too; written last

A checkpoint is whole or absent: it is written in a hidden directory beside its place, every file and the directory
are fsynced, and a rename makes it visible. Every byte is covered by a digest, so that a single flipped bit is found.
The order of checkpoints is the number in their names, never a clock. `checkpoints/best` has none: kept.py says what it is.

A tree is a nested dict (string keys) or list (tuples become lists) of numpy arrays, ints, floats, bools, strings and
None. Numpy scalars become arrays without axes. `jax.tree.leaves` gives the leaves of a loaded tree in the same order
as those of the saved one, so `jax.tree.unflatten(structure, leaves)` puts NamedTuples back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from rookery.data.files import NAME as SEALED_NAME
from rookery.data.files import Sealed
from rookery.run.manifest import (
    ArrayEntry,
    FileEntry,
    Manifest,
    ManifestError,
    NewerFormat,
    Placed,
    data_name,
    decode,
    encode,
    pack,
    parse,
)

MANIFEST = "manifest.json"
MILESTONE = "milestone"  # in the meta: which of them it is, from 1; it is never removed
MANIFEST_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20

_TEMPORARY = ".tmp-"
_OWN_FILE = re.compile(rf"arrays-[0-9]{{3,6}}\.bin|manifest\.json|{SEALED_NAME.pattern}")
_CHECKPOINT = re.compile(r"(?:[a-z]+-)?([0-9]{1,18})(\.old)?")
_DAMAGED = "Use an older checkpoint; `rookery resume RUN` takes the newest whole one by itself."
_logger = logging.getLogger(__name__)


class CheckpointError(Exception):
    """A checkpoint cannot be read. The message names the file and the remedy."""

    exit_code = 5


class StorageError(CheckpointError):
    """A checkpoint cannot be written: the disk is full, read-only or gone. Earlier checkpoints are intact."""

    exit_code = 6


# ------------------------------------------------------------------------------------------------------- names


def path_of(checkpoints: Path, updates: int) -> Path:
    """Return the path of a checkpoint; names sort by updates: `update-0000000200`."""
    return Path(checkpoints) / f"update-{updates:010d}"


def updates_of(path: Path) -> int:
    """Return the number of updates in the name of a checkpoint that is `listed`."""
    match = _CHECKPOINT.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def listed(checkpoints: Path) -> list[Path]:
    """List the directories with the name of a checkpoint, whole or not, the highest number first."""
    try:
        entries = [entry for entry in os.scandir(checkpoints) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    found = [(match, entry.path) for entry in entries if (match := _CHECKPOINT.fullmatch(entry.name))]
    # `.old` is what a second save of the same number replaces: it counts if that save was cut short.
    found.sort(key=lambda pair: (int(pair[0][1]), pair[0][2] is None, pair[1]), reverse=True)
    return [Path(path) for _, path in found]


def newest(checkpoints: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Find the newest whole checkpoint (None if there is none), and those newer that were skipped, with the reason."""
    skipped: list[tuple[Path, str]] = []
    for path in listed(checkpoints):
        try:
            verify(path)
        except CheckpointError as error:
            skipped.append((path, str(error)))
        else:
            return path, skipped
    return None, skipped


def prune(checkpoints: Path, keep: int) -> list[Path]:
    """Remove what is older than the `keep` newest sound checkpoints, and return it. Never raises for a failing disk.

    Sound: the manifest is right and every file has its size; the digests of the data are not computed again here.
    A damaged checkpoint does not count, so the last good one is never given up for it. Milestones stay.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must stay; use keep=1")
    sound, removed = 0, []
    for path in listed(checkpoints):
        if sound >= keep:
            try:
                if _is_milestone(path):
                    continue
                _discard(path)
                removed.append(path)
            except OSError as error:
                _logger.warning("%s: an old checkpoint cannot be removed: %s", path, error)
            continue
        with contextlib.suppress(CheckpointError):
            read_meta(path)
            sound += 1
    return removed


def _is_milestone(path: Path) -> bool:
    with contextlib.suppress(CheckpointError):
        return MILESTONE in read_meta(path)
    return False


# --------------------------------------------------------------------------------------------------------- save


class Contents(NamedTuple):
    """What a checkpoint consists of."""

    node: Any
    placed: list[Placed]
    sealed: list[Sealed]
    meta: dict[str, Any]

    @classmethod
    def of(cls, tree: Any, meta: dict[str, Any]) -> Contents:
        node, placed, sealed = encode(tree)
        pack(node, meta, [])  # a wrong meta is an error before anything is written
        return cls(node, placed, sealed, meta)

    def held(self, checkpoints: Path, limit: int) -> Contents | None:
        """Copy into memory of its own, so that what it was taken from may change; None if that is more than `limit` bytes.

        Sealed chunks that a checkpoint there holds are not copied: they will be linked."""
        known = _sealed_before(checkpoints) if self.sealed else {}
        new = [one for one in self.sealed if one.name not in known]
        if sum(item.array.nbytes for item in self.placed) + sum(one.nbytes for one in new) > limit:
            return None
        placed = [item._replace(array=item.array.copy()) for item in self.placed]
        sealed = [Sealed(one.name, one.nbytes, _gone(one) if one.name in known else _kept(one)) for one in self.sealed]
        return self._replace(placed=placed, sealed=sealed)


def _kept(one: Sealed) -> Callable[[], np.ndarray[Any, Any]]:
    data = one.read().copy()
    return lambda: data


def _gone(one: Sealed) -> Callable[[], np.ndarray[Any, Any]]:
    def read() -> np.ndarray[Any, Any]:
        raise FileNotFoundError(errno.ENOENT, f"{one.name} was removed from the checkpoint before while it was needed")

    return read


def save(directory: Path, tree: Any, *, meta: dict[str, Any]) -> Path:
    """Write `tree` and `meta` (plain JSON) at `directory` and return it. Raises StorageError when the disk fails.

    A checkpoint that is already there is replaced; at every moment one of the two is on disk and whole.
    """
    return write(directory, Contents.of(tree, meta))


def write(directory: Path, contents: Contents) -> Path:
    directory = Path(os.path.abspath(directory))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _sweep(directory.parent)
        temporary = directory.parent / f"{_TEMPORARY}{directory.name}-{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir()
        try:
            with _in_use(temporary) as handle:
                files = _write_arrays(temporary, contents.placed) + _write_sealed(temporary, contents.sealed)
                with open(temporary / MANIFEST, "xb") as file:
                    file.write(pack(contents.node, contents.meta, files))
                    _sync(file)
                os.fsync(handle)
                _publish(temporary, directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Make room, or keep fewer checkpoints." if full else "Check that the directory exists and is writable."
        why = error.strerror or str(error)
        raise StorageError(f"{directory}: not saved: {why}; earlier checkpoints are intact. {remedy}") from error
    return directory


def _write_arrays(temporary: Path, placed: list[Placed]) -> list[FileEntry]:
    files = []
    for index in range(placed[-1].file + 1 if placed else 0):
        digest, size = hashlib.sha256(), 0
        with open(temporary / data_name(index), "xb", buffering=0) as file:
            for array, _, offset in (item for item in placed if item.file == index):
                for part in (memoryview(bytes(offset - size)), _raw(array)):
                    digest.update(part)
                    _write_all(file, part)
                size = offset + array.nbytes
            _sync(file)
        files.append(FileEntry(data_name(index), size, digest.hexdigest()))
    return files


def _write_sealed(temporary: Path, sealed: list[Sealed]) -> list[FileEntry]:
    """Link what another checkpoint here holds under the same name, and write the rest."""
    known = _sealed_before(temporary.parent) if sealed else {}
    files = []
    for one in sealed:
        if one.name in known and known[one.name][1].nbytes == one.nbytes:
            path, entry = known[one.name]
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile: it is written
                _link(path, temporary / one.name)
                files.append(entry)
                continue
        data = _raw(one.read())
        with open(temporary / one.name, "xb", buffering=0) as file:
            _write_all(file, data)
            _sync(file)
        files.append(FileEntry(one.name, one.nbytes, hashlib.sha256(data).hexdigest()))
    return files


def _link(path: Path, new: Path) -> None:
    try:
        os.link(path, new, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links; its digest is that of the manifest, or reading it says so
        shutil.copyfile(path, new, follow_symlinks=False)
        with open(new, "rb") as file:
            os.fsync(file.fileno())


def _sealed_before(checkpoints: Path) -> dict[str, tuple[Path, FileEntry]]:
    """Find the files of sealed chunks in checkpoints whose manifest is right: name -> path and entry, with the digest."""
    found: dict[str, tuple[Path, FileEntry]] = {}
    for path in listed(checkpoints):
        with contextlib.suppress(CheckpointError), _opened(path) as handle:
            for entry in _check(handle, path).files:
                if SEALED_NAME.fullmatch(entry.name):
                    found.setdefault(entry.name, (path / entry.name, entry))
    return found


def _raw(array: np.ndarray[Any, Any]) -> memoryview:
    if array.nbytes == 0:  # numpy gives no bytes of an array without elements
        return memoryview(b"")
    return array.reshape(-1).view(np.uint8).data


def _write_all(file: io.FileIO, part: memoryview) -> None:
    while len(part):  # a single write takes at most 2 GiB, and less when the disk is nearly full
        part = part[file.write(part) :]


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(temporary: Path, directory: Path) -> None:
    """Rename into place. What was there steps aside as `.old`, which `newest` finds too, and then goes."""
    old = directory.with_name(directory.name + ".old")
    if directory.is_dir() and os.listdir(directory):
        if foreign := [name for name in os.listdir(directory) if not _OWN_FILE.fullmatch(name)]:
            raise FileExistsError(errno.EEXIST, f"holds {foreign[0]!r}, which is no part of a checkpoint")
        if old.exists():
            _discard(old)
        os.rename(directory, old)
    os.rename(temporary, directory)
    _sync_directory(directory.parent)
    if old.exists():
        _discard(old)


def _discard(path: Path) -> None:
    """Hide in one step, so that a half-removed checkpoint is never listed; then remove."""
    hidden = path.with_name(f"{_TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def _in_use(temporary: Path) -> Iterator[int]:
    """Hold a lock on a temporary directory, so that _sweep leaves it alone. The lock ends with the process."""
    handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle
    finally:
        os.close(handle)


def _sweep(parent: Path) -> None:
    """Remove what saves that were killed left behind."""
    for path in parent.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


# --------------------------------------------------------------------------------------------------------- load


def load(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Load the tree and the meta. Nothing is returned before every digest has been found right; arrays own their memory."""
    directory = Path(directory)
    with _opened(directory) as handle:
        manifest = _check(handle, directory)
        by_file: dict[int, list[ArrayEntry]] = {}
        for entry in manifest.arrays:
            by_file.setdefault(entry.file, []).append(entry)
        arrays: dict[ArrayEntry, np.ndarray[Any, Any]] = {}
        for index, file in enumerate(manifest.files):
            arrays.update(_read(handle, directory, file, by_file.get(index, [])))
    return decode(manifest.tree, arrays.__getitem__), manifest.meta


def verify(directory: Path) -> None:
    """Raise CheckpointError unless every byte is as it was written."""
    directory = Path(directory)
    with _opened(directory) as handle:
        for file in _check(handle, directory).files:
            _read(handle, directory, file, [])


def read_meta(directory: Path) -> dict[str, Any]:
    """Read the meta alone: the manifest is verified, of the arrays only that their files have the right sizes."""
    directory = Path(directory)
    with _opened(directory) as handle:
        return _check(handle, directory).meta


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open the directory by handle: what is read belongs together even if names change meanwhile."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointError(
            f"{directory}: no checkpoint here ({error.strerror}). `rookery list runs` shows what there is."
        ) from error
    try:
        yield handle
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}. {_DAMAGED}") from error
    except MemoryError:
        raise CheckpointError(f"{directory}: does not fit into memory. Stop other programs first.") from None
    finally:
        os.close(handle)


def _open_file(handle: int, path: Path) -> io.FileIO:
    try:  # O_NONBLOCK: a FIFO in the place of a file must not hang us
        file = io.FileIO(os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle))
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened ({error.strerror})"
        _refuse(path, reason)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        _refuse(path, "is not a regular file")
    return file


def _check(handle: int, directory: Path) -> Manifest:
    """Read the manifest, and check that its files are there in their sizes: what will be allocated fits what is on disk."""
    path = directory / MANIFEST
    with _open_file(handle, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MANIFEST_BYTES:
            _refuse(path, f"has {size:,} bytes, more than any manifest")
        data = b"".join(iter(lambda: file.read(CHUNK_BYTES), b""))
    try:
        manifest = parse(data)
    except NewerFormat as error:
        raise CheckpointError(f"{path} {error}. Install that rookery, or a newer one.") from None
    except ManifestError as error:
        _refuse(path, str(error))
    for entry in manifest.files:
        with _open_file(handle, directory / entry.name) as file:
            size = os.fstat(file.fileno()).st_size
        if size != entry.nbytes:
            _refuse(directory / entry.name, f"has {size:,} bytes, not {entry.nbytes:,}: it was cut short or changed")
    need = sum(entry.nbytes for entry in manifest.files)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > memory:  # a sparse file costs its author nothing
        raise CheckpointError(f"{directory}: needs {need:,} bytes of memory, this machine has {memory:,} in all.")
    return manifest


def _read(
    handle: int, directory: Path, entry: FileEntry, arrays: list[ArrayEntry]
) -> list[tuple[ArrayEntry, np.ndarray[Any, Any]]]:
    """Read a file once from end to end, the given arrays into memory of their own, all of it through the digest."""
    found, digest = [], hashlib.sha256()
    path = directory / entry.name
    chunk = memoryview(bytearray(min(CHUNK_BYTES, entry.nbytes)))
    with _open_file(handle, path) as file:

        def take(view: memoryview) -> None:
            while len(view):
                count = file.readinto(view[:CHUNK_BYTES])  # in pieces that the digest still finds in the cache
                if not count:
                    _refuse(path, "was cut short while it was read")
                digest.update(view[:count])
                view = view[count:]

        position = 0
        for array in [*arrays, None]:
            until = entry.nbytes if array is None else array.offset
            while position < until:
                take(chunk[: until - position])
                position += len(chunk[: until - position])
            if array is not None:
                found.append((array, np.empty(array.shape, array.dtype)))
                take(_raw(found[-1][1]))
                position += array.nbytes
    if digest.hexdigest() != entry.sha256:
        _refuse(path, "does not match its digest: its contents have changed since it was written")
    return found


def _refuse(path: Path, reason: str) -> NoReturn:
    raise CheckpointError(f"{path} {reason}. {_DAMAGED}")
