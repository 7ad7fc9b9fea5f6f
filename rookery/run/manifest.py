"""The manifest of a checkpoint: which arrays and values a tree holds, and where their bytes are. No disk in here.

    {"sha256": digest of the bytes of body,
     "body": {"format": 1, "rookery": "0.1.0", "files": [{"name", "bytes", "sha256"}], "tree": node, "meta": {}}}

A node is null, true, "text", 7, 0.5, [node, ...], or an object with one key: {"dict": {name: node}},
{"array": [dtype, shape, file, offset]} or {"float": "nan"}. `parse` trusts nothing: names, types, shapes and extents
are checked before anything is allocated, and nothing in a manifest can name a class, a module or a path.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rookery.data.files import NAME as SEALED_NAME
from rookery.data.files import Sealed
from rookery.run.versions import rookery_version

FORMAT = 1
ALIGNMENT = 64  # jax uses aligned arrays on CPU without a copy
FILE_BYTES = 256 << 20  # a file ends when the next array would make it larger; one larger array is a file alone
MAX_DEPTH = 200

_ENVELOPE = (b'{"sha256": "', b'", "body": ', b"}\n")
_DATA_NAME = re.compile(rf"arrays-[0-9]{{3,6}}\.bin|{SEALED_NAME.pattern}")
_HEX = re.compile(r"[0-9a-f]{64}")
_NUMPY_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)
_ML_DTYPES = frozenset(
    {"bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"}
    | {"int1", "int2", "int4", "uint1", "uint2", "uint4"}
)
_WRITTEN_AS = {math.inf: "inf", -math.inf: "-inf"}
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class ManifestError(Exception):
    """A manifest that this version cannot or must not use; the text is the reason, without the file's name."""


class NewerFormat(ManifestError):
    """Written by a later version: nothing is damaged."""


class ArrayEntry(NamedTuple):
    """Where the bytes of an array are: C order, little-endian."""

    place: str  # in the tree, for messages
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file: int
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class FileEntry(NamedTuple):
    name: str
    nbytes: int
    sha256: str


class Manifest(NamedTuple):
    tree: Any  # a node
    meta: dict[str, Any]
    files: list[FileEntry]
    arrays: list[ArrayEntry]  # in the order of the tree; extents inside their files, rising, without overlap


class Placed(NamedTuple):
    array: np.ndarray[Any, Any]  # C order, little-endian
    file: int
    offset: int


def data_name(index: int) -> str:
    return f"arrays-{index:03d}.bin"


# ------------------------------------------------------------------------------------------------------- write


def encode(tree: Any) -> tuple[Any, list[Placed], list[Sealed]]:
    """Encode a tree: its node, its arrays with the places given to them, and what has a file of its own, after theirs."""
    placed: list[Placed] = []
    sealed: list[tuple[Sealed, dict[str, Any]]] = []
    try:
        node = _encode(tree, "tree", placed, sealed)
    except RecursionError:
        raise TypeError("the tree contains itself or is too deep to be saved") from None
    first = placed[-1].file + 1 if placed else 0
    for index, (_, leaf) in enumerate(sealed):
        leaf["array"][2] = first + index
    return node, placed, [one for one, _ in sealed]


def _encode(value: Any, place: str, placed: list[Placed], sealed: list[tuple[Sealed, dict[str, Any]]]) -> Any:
    if isinstance(value, Sealed):
        leaf = {"array": ["uint8", [value.nbytes], -1, 0]}
        sealed.append((value, leaf))
        return leaf
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        array = _portable(value, place)
        file, offset = _next_place(placed, array.nbytes)
        placed.append(Placed(array, file, offset))
        return {"array": [array.dtype.name, list(array.shape), file, offset]}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": _WRITTEN_AS.get(value, "nan")}
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{place} has the key {name!r}; a checkpoint's dicts have string keys: use str(key)")
        return {"dict": {name: _encode(child, f"{place}[{name!r}]", placed, sealed) for name, child in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_encode(child, f"{place}[{index}]", placed, sealed) for index, child in enumerate(value)]
    raise TypeError(
        f"{place} is a {type(value).__name__}; a checkpoint holds arrays, ints, floats, bools, strings, None, "
        "and dicts and lists of them"
    )


def _portable(value: Any, place: str) -> np.ndarray[Any, Any]:
    array = np.asarray(value, order="C")
    if array.dtype.name not in _NUMPY_DTYPES | _ML_DTYPES:
        raise TypeError(f"{place} is an array of {array.dtype}; a checkpoint holds numbers and booleans only")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array


def _next_place(placed: list[Placed], nbytes: int) -> tuple[int, int]:
    if not placed:
        return 0, 0
    last = placed[-1]
    offset = -(-(last.offset + last.array.nbytes) // ALIGNMENT) * ALIGNMENT
    if offset and offset + nbytes > FILE_BYTES:
        return last.file + 1, 0
    return last.file, offset


def pack(tree: Any, meta: dict[str, Any], files: list[FileEntry]) -> bytes:
    """Write the bytes of the manifest. `tree` is a node."""
    listing = [{"name": file.name, "bytes": file.nbytes, "sha256": file.sha256} for file in files]
    body = {"format": FORMAT, "rookery": rookery_version(), "files": listing, "tree": tree, "meta": meta}
    try:
        text = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"meta of a checkpoint must be plain JSON (string keys, finite numbers): {error}") from error
    start, middle, end = _ENVELOPE
    return start + hashlib.sha256(text).hexdigest().encode() + middle + text + end


# -------------------------------------------------------------------------------------------------------- read


def parse(data: bytes) -> Manifest:
    """Read and check a manifest. Raises ManifestError; allocates nothing for the arrays."""
    body = _body(data)
    written_by = body.get("rookery")
    version = body.get("format")
    if not isinstance(version, int) or version < 1:
        raise ManifestError(f"has the format {version!r}, which never existed")
    if version > FORMAT:
        raise NewerFormat(
            f"was written by rookery {str(written_by)[:40]} (format {version}), "
            f"this is rookery {rookery_version()} (format {FORMAT})"
        )
    meta, files = body.get("meta"), _files(body.get("files"))
    if not isinstance(meta, dict) or "tree" not in body:
        raise ManifestError("has no tree or no meta")
    arrays: list[ArrayEntry] = []
    try:
        decode(body["tree"], arrays.append)
    except RecursionError:
        raise ManifestError("is nested too deeply") from None
    _check_extents(arrays, files)
    return Manifest(body["tree"], meta, files, arrays)


def _body(data: bytes) -> dict[str, Any]:
    start, middle, end = _ENVELOPE
    head = len(start) + 64 + len(middle)
    body = data[head : -len(end)]
    digest = hashlib.sha256(body).hexdigest().encode()
    if len(data) < head + len(end) or data != start + digest + middle + body + end:
        raise ManifestError("does not match its own digest: it was cut short or changed")
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ManifestError("is nested too deeply") from None
    except ValueError as error:
        raise ManifestError(f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ManifestError("is not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ManifestError("has the same key twice in one object")
    return result


def _refuse_constant(name: str) -> float:
    raise ManifestError(f"contains {name}, which is not JSON")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _files(listing: Any) -> list[FileEntry]:
    if not isinstance(listing, list):
        raise ManifestError("has no list of files")
    files = []
    for entry in listing:
        if not isinstance(entry, dict):
            raise ManifestError("has a wrong list of files")
        name, nbytes, sha256 = entry.get("name"), entry.get("bytes"), entry.get("sha256")
        if not (isinstance(name, str) and _DATA_NAME.fullmatch(name)):
            raise ManifestError(f"names the file {str(name)[:60]!r}; only arrays-NNN.bin and chunk-*.bin are allowed")
        if not (isinstance(nbytes, int) and nbytes >= 0 and isinstance(sha256, str) and _HEX.fullmatch(sha256)):
            raise ManifestError(f"gives no size or digest for {name}")
        files.append(FileEntry(name, nbytes, sha256))
    if len({file.name for file in files}) != len(files):
        raise ManifestError("lists the same file twice")
    return files


def decode(node: Any, leaf: Callable[[ArrayEntry], Any], place: str = "tree", depth: int = 0) -> Any:
    """Decode a node into a tree; `leaf` makes what stands for each array, in the order of the tree."""
    if depth > MAX_DEPTH:
        raise ManifestError("is nested too deeply")
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, list):
        return [decode(child, leaf, f"{place}[{index}]", depth + 1) for index, child in enumerate(node)]
    kind, value = next(iter(node.items())) if len(node) == 1 else ("", None)
    if kind == "dict" and isinstance(value, dict):
        return {name: decode(child, leaf, f"{place}[{name!r}]", depth + 1) for name, child in value.items()}
    if kind == "float" and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if kind == "array" and isinstance(value, list) and len(value) == 4:
        return leaf(_array_entry(place, *value))
    raise ManifestError(f"has an unknown kind of value at {place[:80]}")


def _array_entry(place: str, dtype: Any, shape: Any, file: Any, offset: Any) -> ArrayEntry:
    if not (isinstance(shape, list) and len(shape) <= 32 and all(map(_is_count, shape))):
        raise ManifestError(f"has a wrong shape at {place[:80]}")
    if not (_is_count(file) and _is_count(offset)):
        raise ManifestError(f"has a wrong file or offset at {place[:80]}")
    return ArrayEntry(place, _dtype(dtype, place), tuple(shape), file, offset)


def _dtype(name: Any, place: str) -> np.dtype[Any]:
    if isinstance(name, str) and name in _NUMPY_DTYPES:
        return np.dtype(name).newbyteorder("<")
    if isinstance(name, str) and name in _ML_DTYPES:
        import ml_dtypes  # installed with jax; late, as most checkpoints need none of it

        if hasattr(ml_dtypes, name):
            return np.dtype(getattr(ml_dtypes, name))
    raise ManifestError(f"has an array of type {str(name)[:40]!r} at {place[:80]}; only numbers and bools are allowed")


def _check_extents(arrays: list[ArrayEntry], files: list[FileEntry]) -> None:
    """Check that arrays lie inside their files, rising, without overlap: no more is allocated than is on disk."""
    ends = [0] * len(files)
    for array in arrays:
        if array.file >= len(files):
            raise ManifestError(f"places {array.place[:80]} in a file that is not listed")
        end = array.offset + array.nbytes
        if array.offset < ends[array.file] or end > files[array.file].nbytes:
            raise ManifestError(f"places {array.place[:80]} outside its file or over another array")
        if max(array.shape, default=0) >= 2**62:
            raise ManifestError(f"has a wrong shape at {array.place[:80]}")
        ends[array.file] = end
