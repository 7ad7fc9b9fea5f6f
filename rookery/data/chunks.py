"""The chunk store: every step is kept once, column by column, in memory that was allocated before.

    stream of an environment   ──▶  chunk 7 │ chunk 2 │ chunk 9 (open)          a chunk: `chunk_rows` consecutive rows
                                       └──────┴────────┘  linked both ways

A row is a number: chunk · chunk_rows + offset. An item is a reference to the row at which it starts; what follows it
(`later`) and what comes before it (`earlier`) is found through the links, so overlapping sequences, n-step transitions and
frame stacks cost no copies. Row t of a column holds what `Rollout` says of row t; the observation after the last row stands
in the row that comes next, where the next rollout begins, so that the one which two rollouts share is stored once.

A chunk is free again when no item starts in it, none can start in it any more, and no item of a neighbour reaches into it.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np

from rookery.data import copies
from rookery.data.arrays import aligned_zeros
from rookery.data.files import Sealed
from rookery.trees import ArraySpec, tree_leaves, tree_map
from rookery.types import PyTree

INCARNATIONS = 1 << 32  # stream = slot of the environment * INCARNATIONS + incarnation
NOTHING = -1
FOREVER = 1 << 60


class Full(Exception):
    """There is no free chunk: items must go first."""


class Appended(NamedTuple):
    rows: np.ndarray  # [T, B] where the rows were written
    lanes: np.ndarray  # [B] index of each column's lane
    length: np.ndarray  # [B] rows that the stream had before, in one unbroken chain


class Store:
    def __init__(
        self, columns: PyTree, *, num_chunks: int, chunk_rows: int, ahead: int = 0, behind: int = 0, num_lanes: int = 1
    ) -> None:
        """columns: tree of ArraySpec of one row. ahead, behind: how many rows an item reads after and before its first."""
        self.chunk_rows, self.num_chunks = chunk_rows, num_chunks
        self.columns = tree_map(lambda s: aligned_zeros((num_chunks * chunk_rows, *s.shape), s.dtype), columns)
        self._hops, self._behind = -(-ahead // chunk_rows), behind
        if behind > chunk_rows:
            raise ValueError(f"items look {behind} rows back, further than a chunk of {chunk_rows} rows: make chunks longer")
        whole = lambda value: np.full(num_chunks, value, np.int64)
        self._next, self._previous = whole(NOTHING), whole(NOTHING)
        self._items = whole(0)  # how many start in a chunk
        self._lane, self._serial = whole(NOTHING), whole(0)  # whose it is, and its number in the chain; NOTHING: free
        self._origin = np.zeros((num_chunks, 2), np.int64)  # stream, and the step of its first row
        self._free = list(range(num_chunks - 1, -1, -1))  # the lowest is taken first
        self._peak = 0  # chunks that were ever used: the first ones
        # lanes: one for each environment, whatever its incarnation
        self._lanes: dict[int, int] = {}
        lanes = lambda value: np.full(max(1, num_lanes), value, np.int64)
        self._stream, self._step, self._chunk, self._offset = (lanes(NOTHING) for _ in range(4))
        self._length, self._head = lanes(0), lanes(0)  # rows of the unbroken chain; the serial of its open chunk
        self._nonce = secrets.token_hex(8)  # of the names that chunks of this store are given; a restored one has another
        self._names: dict[tuple[int, int], str] = {}  # of chunks that were restored: lane and serial -> name
        self.broken = 0  # chains that ended because a stream was replaced or rows of it are missing

    # ------------------------------------------------------------------------------------------- writing

    def append(self, stream: np.ndarray, step: np.ndarray, rows: PyTree, heads: PyTree) -> Appended:
        """Append rows [T, B, ...] to the streams [B], from their steps [B] on; heads [B, ...]: what is known of the row after.

        rows: a tree with some of the columns' leaves, by the same names; heads likewise. Raises Full, and changes
        nothing, where there are not enough free chunks: see `shortage`.
        """
        leaves = tree_leaves(rows)
        T, B = leaves[0].shape[:2]
        lanes = self.lanes_of(stream)
        if self.shortage(lanes, stream, step, T):
            raise Full
        for b in np.flatnonzero(~self.continues(lanes, stream, step)):
            self._begin_chain(int(lanes[b]), int(stream[b]), int(step[b]))
        length = self._length[lanes].copy()
        index = np.empty((T + 1, B), np.int64)
        t = 0
        while t <= T:  # a step of this loop ends where a chunk of some lane does
            offset, chunk = self._offset[lanes], self._chunk[lanes]
            count = min(T + 1 - t, self.chunk_rows - int(offset.max()))
            index[t : t + count] = chunk * self.chunk_rows + offset + np.arange(count)[:, None]
            t += count
            self._offset[lanes] += min(count, T - (t - count))  # the row after the last is where the next rollout begins
            if t <= T:
                for b in np.flatnonzero(self._offset[lanes] == self.chunk_rows):
                    self._open_chunk(int(lanes[b]), int(step[b]) + t)
        self._step[lanes] = step + T
        self._length[lanes] += T
        self._write(self.columns, rows, index[:T])
        self._write(self.columns, heads, index[T:], axis=False)
        return Appended(index[:T], lanes, length)

    def shortage(self, lanes: np.ndarray, stream: np.ndarray, step: np.ndarray, count: int) -> int:
        """Count the free chunks that are missing to append `count` rows to each stream."""
        opened = np.where(
            self.continues(lanes, stream, step), (self._offset[lanes] + count) // self.chunk_rows, 1 + count // self.chunk_rows
        )
        return max(0, int(opened.sum()) - len(self._free))

    def continues(self, lanes: np.ndarray, stream: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return [B] bool: is this step of this stream the one that follows what was stored last?"""
        return (self._stream[lanes] == stream) & (self._step[lanes] == step)

    def _write(self, columns: PyTree, rows: PyTree, index: np.ndarray, *, axis: bool = True) -> None:
        if isinstance(rows, dict):
            for name, part in rows.items():
                self._write(columns[name], part, index, axis=axis)
        elif isinstance(rows, (list, tuple)):
            for column, part in zip(columns, rows):
                self._write(column, part, index, axis=axis)
        else:
            copies.put(columns, index if axis else index[0], rows)

    def lanes_of(self, stream: np.ndarray) -> np.ndarray:
        """Map streams [B] to lanes [B], as `shortage` and `continues` take them; a new environment gets a lane."""
        found = []
        for slot in (stream // INCARNATIONS).tolist():
            if slot not in self._lanes:
                self._lanes[slot] = len(self._lanes)
            found.append(self._lanes[slot])
        while len(self._lanes) > len(self._stream):
            for name in ("_stream", "_step", "_chunk", "_offset", "_length", "_head"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(len(old), NOTHING if name in "_stream_step" else 0)]))
        return np.array(found, np.int64)

    def _begin_chain(self, lane: int, stream: int, step: int) -> None:
        if self._stream[lane] != NOTHING:
            self.broken += 1
            alive = (self._lane == lane) & (self._serial > 0)
            self._serial[alive] -= FOREVER  # nothing will start in those chunks any more; once, or it would overflow
        self._stream[lane], self._length[lane], self._chunk[lane] = stream, 0, NOTHING
        self._open_chunk(lane, step)

    def _open_chunk(self, lane: int, step: int) -> None:
        chunk, last = self._free.pop(), int(self._chunk[lane])
        self._peak = max(self._peak, self.used_chunks)
        self._head[lane] += 1
        self._lane[chunk], self._serial[chunk] = lane, self._head[lane]
        self._previous[chunk], self._next[chunk] = last, NOTHING
        self._origin[chunk] = self._stream[lane], step
        if last != NOTHING:
            self._next[last] = chunk
        self._chunk[lane], self._offset[lane] = chunk, 0

    # ------------------------------------------------------------------------------------------- reading

    def later(self, rows: np.ndarray, count: Any) -> np.ndarray:
        """Find the rows `count` (a number, or an array of the shape of rows) after these, in their streams."""
        offset = rows % self.chunk_rows + count
        if (offset < self.chunk_rows).all():
            return rows + count
        chunk = rows // self.chunk_rows
        hops = offset // self.chunk_rows
        while (ahead := hops > 0).any():
            chunk = np.where(ahead, self._next[chunk], chunk)
            hops = hops - ahead
        return chunk * self.chunk_rows + offset % self.chunk_rows

    def earlier(self, rows: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Find the rows `count` before these, in their streams; count is at most a chunk."""
        offset = rows % self.chunk_rows - count
        before = offset < 0
        if not before.any():
            return rows - count
        chunk = rows // self.chunk_rows
        chunk = np.where(before, self._previous[chunk], chunk)
        return chunk * self.chunk_rows + offset % self.chunk_rows

    def sequence(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Find `length` consecutive rows from each of these on: [B] -> [length, B]."""
        steps = np.arange(length)[:, None]
        return self.later(np.broadcast_to(rows, (length, len(rows))), steps)

    def origin(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the stream [B] and the step [B] of rows [B]."""
        origin = self._origin.take(rows // self.chunk_rows, axis=0)
        return origin[:, 0], origin[:, 1] + rows % self.chunk_rows

    # ------------------------------------------------------------------------------------------- owning

    def hold(self, rows: np.ndarray) -> None:
        """Reference these rows, at which items start: the chunks that those items read are not freed."""
        np.add.at(self._items, rows // self.chunk_rows, 1)

    def drop(self, rows: np.ndarray) -> None:
        """Release the references of items that are gone."""
        np.subtract.at(self._items, rows // self.chunk_rows, 1)

    def sweep(self) -> int:
        """Free every chunk that no item needs; return how many there were."""
        used = self._lane != NOTHING
        lane = np.maximum(self._lane, 0)
        young = self._head[lane] - self._serial <= self._hops  # an item may still come to start there
        needed = busy = used & ((self._items > 0) | (young & (self._serial > 0)))
        reach = busy
        for _ in range(self._hops):
            reach = np.where(self._previous != NOTHING, reach[self._previous], False)
            needed = needed | reach
        if self._behind:
            needed = needed | np.where(self._next != NOTHING, busy[self._next], False)
        gone = np.flatnonzero(used & ~needed)
        self._lane[gone] = NOTHING
        before, after = self._previous[gone], self._next[gone]
        self._next[before[before != NOTHING]] = NOTHING
        self._previous[after[after != NOTHING]] = NOTHING
        self._next[gone] = self._previous[gone] = NOTHING
        self._free.extend(int(chunk) for chunk in gone[::-1])
        return len(gone)

    @property
    def used_chunks(self) -> int:
        return self.num_chunks - len(self._free)

    @property
    def used_rows(self) -> int:
        """Steps that are stored; rows left unused in the last chunk of a chain that has ended count as well."""
        known = self._stream != NOTHING
        return self.used_chunks * self.chunk_rows - int((self.chunk_rows - self._offset[known]).sum())

    @property
    def used_bytes(self) -> int:
        return self.nbytes * self.used_chunks // self.num_chunks

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in tree_leaves(self.columns))

    # ------------------------------------------------------------------------------------------- keeping

    _OF_CHUNKS = ("_next", "_previous", "_items", "_lane", "_serial", "_origin")
    _OF_LANES = ("_stream", "_step", "_chunk", "_offset", "_length", "_head")

    def snapshot(self, *, files: bool = False) -> PyTree:
        """Copy the chunks in use, with their links and streams. files: sealed chunks are not copied but handed over as
        files.Sealed, which must be read before anything is appended."""
        used = self._lane != NOTHING
        lane = np.maximum(self._lane, 0)
        sealed = np.flatnonzero(used & ((self._serial < 0) | (self._head[lane] - self._serial > self._hops)) & files)
        used[sealed] = False
        pick = lambda leaf: leaf.reshape(self.num_chunks, self.chunk_rows, *leaf.shape[1:])[used]
        return {
            "columns": tree_map(pick, self.columns),
            "used": np.flatnonzero(used),
            "sealed": {"chunks": sealed, "files": [self._sealed(int(chunk)) for chunk in sealed]},
            "names": [self._name(int(chunk)) for chunk in sealed],
            "num_chunks": self.num_chunks,
            "free": np.array(self._free[self.num_chunks - self._peak :], np.int64),  # of those that were ever used
            "lanes": np.array([*self._lanes], np.int64),
            "broken": self.broken,
            "arrays": {name: getattr(self, name)[: self._peak].copy() for name in self._OF_CHUNKS}
            | {name: getattr(self, name).copy() for name in self._OF_LANES},
        }

    def restore(self, snapshot: PyTree) -> None:
        used = np.asarray(snapshot["used"])
        arrays = snapshot["arrays"]
        peak = len(arrays["_next"])
        if (saved := int(snapshot.get("num_chunks", peak))) != self.num_chunks:  # older checkpoints have every chunk
            raise ValueError(
                f"the checkpoint's table has {saved} chunks of memory, this one {self.num_chunks}: "
                "use the capacity, number of environments and rollout length that it was made with"
            )

        def put(leaf: np.ndarray, saved: np.ndarray) -> None:
            leaf.reshape(self.num_chunks, self.chunk_rows, *leaf.shape[1:])[used] = saved

        tree_map(put, self.columns, snapshot["columns"])
        sealed = snapshot.get("sealed", {"chunks": (), "files": ()})
        for chunk, data in zip(sealed["chunks"], sealed["files"]):
            self._unseal(int(chunk), np.asarray(data))
        for name in self._OF_CHUNKS:
            getattr(self, name)[:peak] = arrays[name]
        for name in self._OF_LANES:
            setattr(self, name, np.array(arrays[name]))
        self._peak = peak
        self._names = {self._identity(int(c)): name for c, name in zip(sealed["chunks"], snapshot.get("names", ()))}
        self._free = [*range(self.num_chunks - 1, peak - 1, -1), *(int(chunk) for chunk in snapshot["free"])]
        self._lanes = {int(slot): lane for lane, slot in enumerate(snapshot["lanes"])}
        self.broken = int(snapshot["broken"])

    # A chunk is sealed when nothing will be written to it any more: as many chunks follow it as items reach ahead, for the
    # folds of its last rows are written when the rows after them come; or its chain has ended.

    def _identity(self, chunk: int) -> tuple[int, int]:
        """Return lane and serial number, whether its chain goes on or not: no two chunks of a store ever have the same."""
        return int(self._lane[chunk]), int(self._serial[chunk]) % FOREVER

    def _name(self, chunk: int) -> str:
        lane, serial = identity = self._identity(chunk)
        return self._names.get(identity, f"chunk-{self._nonce}-{lane}-{serial}.bin")

    def _sealed(self, chunk: int) -> Sealed:
        identity = self._identity(chunk)
        parts = lambda: [leaf[chunk * self.chunk_rows : (chunk + 1) * self.chunk_rows] for leaf in tree_leaves(self.columns)]

        def read() -> np.ndarray:
            if self._identity(chunk) != identity:
                raise RuntimeError("a chunk of the replay was overwritten before its snapshot was saved: this is a bug")
            return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts()])

        return Sealed(self._name(chunk), self.nbytes // self.num_chunks, read)

    def _unseal(self, chunk: int, data: np.ndarray) -> None:
        if data.nbytes != self.nbytes // self.num_chunks:
            raise ValueError(
                f"a chunk of the checkpoint's table has {data.nbytes:,} bytes, this table's have "
                f"{self.nbytes // self.num_chunks:,}: use the environment and the options that it was made with"
            )
        begin = 0
        for leaf in tree_leaves(self.columns):
            rows = leaf[chunk * self.chunk_rows : (chunk + 1) * self.chunk_rows]
            rows.reshape(-1).view(np.uint8)[:] = data[begin : begin + rows.nbytes]
            begin += rows.nbytes


def row_bytes(columns: PyTree) -> int:
    """Count the bytes of one row of these columns."""
    return sum(leaf.nbytes for leaf in tree_leaves(columns) if isinstance(leaf, ArraySpec))
