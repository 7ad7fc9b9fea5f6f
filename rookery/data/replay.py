"""Replay, as topologies use it: collectors fill parts, the learner takes batches, priorities go back.

It is a Table (interface.py). Behind it stand a chunk store, a table and
what turns one into the other: rollouts are cut into items when they are committed, items become rollouts again when a batch
is taken. An item is an n-step transition (a rollout of one row whose discount is gamma to the n) or a sequence of rows with
the memory that it starts from. Only the driver calls it, so it needs no lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery.data import arrays, columns, copies, demonstrations, limiter, memory
from rookery.data.chunks import NOTHING, Store, row_bytes
from rookery.data.config import TableSpec
from rookery.data.demonstrations import Demonstrations
from rookery.data.interface import Part, Taken
from rookery.data.items import ItemTable, Mixture, Sample, importance_weights
from rookery.data.limiter import Limiter
from rookery.data.queue import Queue
from rookery.trees import ArraySpec, tree_leaves, tree_map
from rookery.types import Batch, Needs, PyTree, Rollout

CHUNK_ROWS = 64  # at most: what is open is not full yet, one chunk of every environment


def table_for(
    needs: Needs, specs: Rollout, *, collectors: int, in_flight: int, parts: int, slots: int, prefetch: int, seed: int,
    stored: bool = False, shown: Demonstrations | None = None,
) -> Queue | Replay:  # fmt: skip
    """Make the table between collectors and learner. parts, slots: of a queue; the others are those of the topology.

    stored: rollouts stay where they were made, see queue.py; a replay always has them here."""
    if needs.table is None:
        return Queue(specs, parts=parts, slots=slots, discount=needs.discount, stored=stored)
    return Replay(
        specs, needs.table, discount=needs.discount, collectors=collectors, writers=collectors * in_flight,
        slots=1 + prefetch, seed=seed, shown=shown, previous=needs.previous,
    )  # fmt: skip


def batch_specs(needs: Needs, specs: Rollout, parts: int) -> Rollout:
    """Derive the shapes of the rollouts that learn() is given; parts: rollouts per batch of a queue."""
    table: TableSpec | None = needs.table
    if table is None:
        return arrays.widen(specs, parts * specs.reward.shape[1])
    T = table.sequence_length or 1
    rows = lambda tree, length: tree_map(lambda s: ArraySpec((length, *s.shape[1:]), s.dtype), tree)
    names = ("action", "reward", "discount", "valid", "version", "weight")
    extras = {name: specs.extras[name] for name in _declared(specs, table)}
    cut = specs._replace(
        observation=rows(specs.observation, T + 1), extras=rows(extras, T), **{n: rows(getattr(specs, n), T) for n in names}
    )
    return arrays.widen(cut if table.sequence_length else cut._replace(memory=()), table.batch_size)


def items_per_rollout(specs: Rollout, table: TableSpec) -> int:
    """Count the items that a rollout makes, once there are rollouts before it."""
    T, width = specs.reward.shape
    return width if table.sequence_length else T * width


def limiter_for(specs: Rollout, table: TableSpec, *, collectors: int) -> Limiter:
    """Make the limiter of the config's ratio, with an error buffer that holds what all collectors insert at once."""
    config = table.config
    try:
        return limiter.sample_to_insert_ratio(
            table.samples_per_insert, min_size=config.min_size, error_buffer=config.error_buffer,
            insert_size=items_per_rollout(specs, table) * collectors, batch_size=table.batch_size,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"--replay.error-buffer: {error}") from error


def max_items(specs: Rollout, table: TableSpec, *, num_envs: int) -> int:
    """Count the transitions or sequences that fit; refuse a table that could never take a rollout or end its warm-up."""
    (T, width), config = specs.reward.shape, table.config
    if T * width > config.capacity:
        raise ValueError(f"--replay.capacity {config.capacity}: one rollout has {T * width:,} steps; it must be at least that")
    held = max(num_envs, config.capacity // T) if table.sequence_length else config.capacity
    _check_held(config.min_size, held, f"--replay.min-size {config.min_size}", table)
    return held


def _check_held(number: int, held: int, flag: str, table: TableSpec) -> None:
    if number > held:
        what = "sequences" if table.sequence_length else "steps"
        raise ValueError(
            f"{flag}: a table of {held:,} {what} never holds {number:,}; lower it, or raise --replay.capacity "
            f"{table.config.capacity}"
        )


def check_memory(needs: Needs, specs: Rollout, *, num_envs: int) -> int:
    """Count the bytes of the table; refuse one that does not fit into memory, or cannot work, before anything is started."""
    layout = _Layout(specs, needs.table, num_envs)
    held = max_items(specs, needs.table, num_envs=num_envs)
    _check_held(needs.table.batch_size, held, "--batch-size (times --gradient-steps)", needs.table)
    limiter_for(specs, needs.table, collectors=num_envs // specs.reward.shape[1])
    nbytes = layout.num_chunks * layout.chunk_rows * row_bytes(layout.columns)
    what = f"a replay of {needs.table.config.capacity:,} steps"
    each = f"a step takes {nbytes / needs.table.config.capacity:,.0f} bytes"
    memory.check_fits(nbytes, what=what, remedy=f"lower --replay.capacity, {each}")
    return nbytes


class _Layout:
    """Which columns are stored, and in what chunks."""

    def __init__(self, specs: Rollout, table: TableSpec, num_lanes: int, shown: Demonstrations | None = None) -> None:
        config, T = table.config, specs.reward.shape[0]
        small = lambda dtype: ArraySpec((), np.dtype(dtype))
        row = lambda tree: tree_map(lambda s: ArraySpec(tuple(s.shape[2:]), s.dtype), tree)
        self.columns: dict[str, PyTree] = {
            "observation": tree_map(self.frame(table.stack), row(specs.observation)),
            "action": row(specs.action),
            "reward": small(np.float32),
            "discount": small(np.float32),
            "valid": small(np.float32),
            "version": small(np.int32),
            "priority": small(np.float32),
            "age": small(np.uint8),
            "extras": row({name: specs.extras[name] for name in _declared(specs, table)}),
            "weight": row(specs.weight),
        }
        if table.sequence_length:
            if table.sequence_length % T:
                raise ValueError(
                    f"a sequence of {table.sequence_length} rows (--burn-in and --sequence-length) is no multiple of "
                    f"--rollout-length {T}"
                )
            self.ahead = table.sequence_length
        else:
            self.columns |= {"n_reward": small(np.float32), "n_discount": small(np.float32), "span": small(np.uint8)}
            self.ahead = table.n_step
        self.behind = max(0, table.stack - 1)
        rows = max(self.behind, min(CHUNK_ROWS, config.capacity // (8 * num_lanes)), 4)
        self.chunk_rows = -(-rows // T) * T if table.sequence_length else rows
        hops = -(-self.ahead // self.chunk_rows)
        self.num_chunks = -(-config.capacity // self.chunk_rows) + num_lanes * (2 + hops)
        if shown is not None:  # they stay for ever, in a lane of their own
            rows = demonstrations.row_count(shown, length=T, ahead=self.ahead)
            self.num_chunks += -(-rows // self.chunk_rows) + 2 + hops

    @staticmethod
    def frame(stack: int) -> Any:
        """Return a function from a leaf's spec to what is stored of it: of a stack of frames, one frame."""

        def of(spec: ArraySpec) -> ArraySpec:
            return ArraySpec(spec.shape[1:], spec.dtype) if columns.is_stack(spec.shape, stack) else spec

        return of


def _declared(specs: Rollout, table: TableSpec) -> tuple[str, ...]:
    """Return the names of the extras that a table stores; refuse one that no rollout has."""
    if missing := [name for name in table.extras if name not in specs.extras]:
        there = ", ".join(specs.extras) or "none"
        raise ValueError(
            f"the table is to store the extras {', '.join(missing)}, and a rollout has {there}: act() or process() gives them"
        )
    return table.extras


class Replay:
    def __init__(
        self, specs: Rollout, table: TableSpec, *, discount: float, collectors: int, writers: int, slots: int, seed: int,
        limit: Limiter | None = None, shown: Demonstrations | None = None, previous: bool = False,
    ) -> None:  # fmt: skip
        """limit: the rate limiter; None: made from the table's config.

        shown: demonstrations, of which a batch has the share `table.demo_ratio`; previous: as `Needs` says."""
        T, width = specs.reward.shape
        num_envs, config = width * collectors, table.config
        layout = _Layout(specs, table, num_envs, shown)
        self._specs, self._spec, self.discount, self._config = specs, table, discount, config
        self._sequences = bool(table.sequence_length)
        self._per_rollout = items_per_rollout(specs, table)
        self.store = Store(
            layout.columns, num_chunks=layout.num_chunks, chunk_rows=layout.chunk_rows, ahead=layout.ahead,
            behind=layout.behind, num_lanes=num_envs + (shown is not None),
        )  # fmt: skip
        max_size = max_items(specs, table, num_envs=num_envs)
        limit = limit or limiter_for(specs, table, collectors=collectors)
        self.table = ItemTable(
            self.store, max_size=max_size, limiter=limit, selector=config.selector, remover=config.remover,
            exponent=config.exponent, max_times_sampled=config.max_times_sampled, seed=seed,
        )  # fmt: skip
        # parts that collectors write into, and batches that the learner reads
        self._parts = [arrays.allocate(specs) for _ in range(writers)]
        self._free_parts, self._claimed = [*range(writers - 1, -1, -1)], set[int]()
        shapes = batch_specs(Needs(T, discount, table=table), specs, 1)
        self._slots = [arrays.allocate(shapes) for _ in range(slots)]
        self._weights = [arrays.aligned_zeros((table.batch_size,), np.dtype(np.float32)) for _ in range(slots)]
        self._keys: dict[int, np.ndarray] = {}
        self._free_slots = [*range(slots - 1, -1, -1)]
        self.batches = 0
        # what is known of each environment's newest rows; demonstrations are one more
        window = table.sequence_length // T if self._sequences else table.n_step
        lanes = num_envs + (shown is not None)
        self._recent = np.full((lanes, max(0, window - 1)), NOTHING, np.int64)  # starts that wait for what follows them
        self._age = np.full(lanes, -1, np.int64)
        self._first = np.ones(lanes, bool)  # is the next row the first of an episode?
        self._blind = np.zeros(lanes, np.int64)  # rows whose stack of frames is not known
        stored = layout.num_chunks * layout.chunk_rows // T if self._sequences else 0
        self._memory = tree_map(lambda s: np.zeros((stored, *s.shape[1:]), s.dtype), specs.memory if stored else ())
        self._sampled: ItemTable | Mixture = self.table
        if shown is not None:
            self._sampled = self._show(shown, num_envs, previous=previous, ahead=layout.ahead, seed=seed)

    def _show(self, shown: Demonstrations, slot: int, *, previous: bool, ahead: int, seed: int) -> Mixture:
        """Store the demonstrations as a second table over the same store, never evicted; return the mixture of both tables."""
        T, config, ratio = self._specs.reward.shape[0], self._config, self._spec.demo_ratio
        rows = demonstrations.row_count(shown, length=T, ahead=ahead)
        table = ItemTable(
            self.store, max_size=rows, limiter=limiter.min_size(1), selector=config.selector, exponent=config.exponent,
            seed=seed + 1, name="demonstrations",
        )  # fmt: skip
        start = tree_map(lambda s: np.zeros((1, *s.shape[1:]), s.dtype), self._specs.memory)
        for rollout in demonstrations.rollouts(shown, length=T, ahead=ahead, previous=previous, memory=start, slot=slot):
            self.insert(rollout, into=table)
        return Mixture([self.table, table], [1.0 - ratio, ratio], seed=seed)

    # ------------------------------------------------------------------------------------------- inserting

    def claim(self) -> Part | None:
        """Claim a rollout to write; None when the limiter, or the number of writers, makes collectors wait."""
        pending = (len(self._claimed) + 1) * self._per_rollout
        if not self._free_parts or not self.table.limiter.can_insert(pending):
            return None
        place = self._free_parts.pop()
        self._claimed.add(place)
        return Part(0, place, self._parts[place])

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        """Store the steps of a part that is written, and make items of them. priorities: [T, B] of its rows, or None."""
        self.insert(part.rollout, priorities)
        self.abandon(part)

    def abandon(self, part: Part) -> None:
        """Free a part whose writer is gone, or done."""
        self._claimed.remove(part.place)
        self._free_parts.append(part.place)

    def insert(self, rollout: Rollout, priorities: np.ndarray | None = None, *, into: ItemTable | None = None) -> int:
        """Store a rollout; return how many items it made. into: another table over the same store."""
        T = len(rollout.reward)
        store, stream, step = self.store, rollout.stream, rollout.step
        lanes = store.lanes_of(stream)
        self._make_room(lanes, stream, step, T)
        reward, clip = rollout.reward, self._spec.reward_clip
        if clip is not None:
            reward = np.clip(reward, -clip, clip)
        frames = tree_map(lambda x: x[:, :, -1] if columns.is_stack(x.shape[2:], self._spec.stack) else x, rollout.observation)
        rows: dict[str, PyTree] = {
            "observation": tree_map(lambda x: x[:-1], frames), "action": rollout.action, "reward": reward,
            "discount": rollout.discount, "valid": rollout.valid, "version": rollout.version, "weight": rollout.weight,
            "extras": {name: rollout.extras[name] for name in self._spec.extras},
        }  # fmt: skip
        if priorities is not None:
            rows["priority"] = priorities
        heads: dict[str, PyTree] = {"observation": tree_map(lambda x: x[-1], frames)}
        if self._spec.stack:
            ages, known = self._ages(lanes, rollout)
            rows["age"], heads["age"] = ages[:-1], ages[-1]
        appended = store.append(stream, step, rows, heads)
        begun = appended.length == 0
        self._recent[lanes[begun]] = NOTHING
        starts, eligible = self._sequence_items(appended, rollout) if self._sequences else self._transitions(appended)
        if self._spec.stack and not self._sequences and not known.all():
            eligible &= ~np.isin(starts, appended.rows[~known[:-1]])
        chosen = starts[eligible]
        given = None if priorities is None else self._priorities(chosen)
        (self.table if into is None else into).insert(chosen, given)  # an empty table is false
        return len(chosen)

    def _make_room(self, lanes: np.ndarray, stream: np.ndarray, step: np.ndarray, count: int) -> None:
        """Free chunks until the rows fit: first those that no item needs, then those of items that the remover evicts."""
        while self.store.shortage(lanes, stream, step, count):
            if not self.store.sweep():
                if not len(self.table):
                    raise RuntimeError("the replay has no item to give up and no chunk to write to: this is a bug")
                self.table.evict(max(self.store.chunk_rows * len(lanes) // 4, 1) if not self._sequences else len(lanes))

    def _transitions(self, appended: Any) -> tuple[np.ndarray, np.ndarray]:
        """Fold n-step transitions: return the rows [T, B] whose window is complete now, and which of them are transitions."""
        T, n, column = len(appended.rows), self._spec.n_step, self.store.columns
        window = np.concatenate([self._recent[appended.lanes].T, appended.rows])  # [n - 1 + T, B]
        self._recent[appended.lanes] = window[T:].T
        there = window != NOTHING
        reward, discount, span = columns.n_step(
            reward=column["reward"][window], discount=column["discount"][window], valid=column["valid"][window] * there,
            gamma=self.discount, n=n,
        )  # fmt: skip
        starts, eligible = window[:T], there[:T] & (span > 0)
        at = starts[eligible]
        column["n_reward"][at], column["n_discount"][at], column["span"][at] = (x[eligible] for x in (reward, discount, span))
        return starts, eligible

    def _sequence_items(self, appended: Any, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Find the sequences that are complete now, one per column once enough rollouts have come: first rows [B], [B] bool."""
        begin, T = appended.rows[0], len(appended.rows)
        for to, source in zip(tree_leaves(self._memory), tree_leaves(rollout.memory)):
            to[begin // T] = source
        window = np.concatenate([self._recent[appended.lanes], begin[:, None]], axis=1)
        self._recent[appended.lanes] = window[:, 1:]
        return window[:, 0], window[:, 0] != NOTHING

    def _priorities(self, starts: np.ndarray) -> np.ndarray:
        column = self.store.columns
        if not self._sequences:
            return column["priority"].take(starts)
        rows = self.store.sequence(starts, self._spec.sequence_length)[self._spec.burn_in :]
        return columns.sequence_priority(column["priority"][rows], column["valid"][rows], self._spec.eta)

    def _ages(self, lanes: np.ndarray, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Count rows since the episode's first, [T + 1, B], and say whether the stack of frames is known there.

        It is not where rows of a stream were lost, until an episode starts or the stack is full again.
        """
        most = self._spec.stack - 1
        goes_on = self.store.continues(lanes, rollout.stream, rollout.step)
        new = ~goes_on & (rollout.step == 0)
        first = np.concatenate([(np.where(goes_on, self._first[lanes], new))[None], rollout.valid == 0])
        age = columns.ages(first, np.where(goes_on, self._age[lanes], -1), most)
        blind = np.where(goes_on, self._blind[lanes], np.where(new, 0, most))
        known = np.ones(age.shape, bool)
        for t in np.flatnonzero(np.arange(len(age)) < blind.max()):
            blind = np.where(first[t], 0, blind)
            known[t] = blind == 0
            blind = np.maximum(blind - 1, 0)
        self._first[lanes], self._age[lanes], self._blind[lanes] = first[-1], age[-2], blind
        return age, known

    # ------------------------------------------------------------------------------------------- sampling

    def take(self) -> Taken | None:
        """Sample a batch; None when the limiter refuses or every slot is being learned from."""
        if not self._free_slots or (sample := self._sampled.sample(self._spec.batch_size)) is None:
            return None
        taken = self._taken(sample)
        self.batches += 1
        return taken

    def draw(self) -> Taken | None:
        """Sample a batch for whoever reads beside the learner, of what was played: the limiter does not count it, so that it
        changes no ratio. None: there is none yet, or every slot is being read."""
        if not self._free_slots or (sample := self.table.look(self._spec.batch_size)) is None:
            return None
        return self._taken(sample)

    def _taken(self, sample: Sample) -> Taken:
        slot = self._free_slots.pop()
        rollout, column, store = self._slots[slot], self.store.columns, self.store
        if self._sequences:
            rows = store.sequence(sample.rows, self._spec.sequence_length + 1)
            copies.take(column["reward"], rows[:-1], rollout.reward)
            copies.take(column["valid"], rows[:-1], rollout.valid)
            np.multiply(column["discount"][rows[:-1]], self.discount, out=rollout.discount)
            for to, saved in zip(tree_leaves(rollout.memory), tree_leaves(self._memory)):
                copies.take(saved, sample.rows // self._specs.reward.shape[0], to)
        else:
            rows = np.stack([sample.rows, store.later(sample.rows, column["span"].take(sample.rows))])
            copies.take(column["n_reward"], rows[:1], rollout.reward)
            copies.take(column["n_discount"], rows[:1], rollout.discount)
            rollout.valid[:] = 1.0
        tree_map(lambda to, kept: self._gather(kept, rows, to), rollout.observation, column["observation"])
        tree_map(lambda to, kept: copies.take(kept, rows[:-1], to), rollout.action, column["action"])
        for name in ("extras", "weight"):
            tree_map(lambda to, kept: copies.take(kept, rows[:-1], to), getattr(rollout, name), column[name])
        copies.take(column["version"], rows[:-1], rollout.version)
        rollout.stream[:], rollout.step[:] = store.origin(sample.rows)
        self._weights[slot][:] = importance_weights(sample, self._beta()) if self._config.selector == "prioritized" else 1.0
        self._keys[slot] = sample.keys
        return Taken(slot, Batch(rollout, self._weights[slot], sample.keys))

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        """Free a batch whose update is ready, and set the new priorities, [B] by column, of its items."""
        keys = self._keys.pop(slot)
        self._free_slots.append(slot)
        if priorities is not None and self._config.selector == "prioritized":
            self._sampled.update(keys, np.asarray(priorities))

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Set new priorities of items whose batch was released before; those of items that are gone are ignored."""
        if self._config.selector == "prioritized":
            self._sampled.update(keys, priorities)

    def _gather(self, kept: np.ndarray, rows: np.ndarray, to: np.ndarray) -> None:
        """Copy rows [R, B] of a column into `to` [R, B, ...]; rebuild stacks from single frames, zero before an episode."""
        if to.ndim == rows.ndim + kept.ndim - 1:
            copies.take(kept, rows, to)
            return
        back = np.arange(self._spec.stack - 1, -1, -1)
        age = self.store.columns["age"][rows]
        missing = age[..., None] < back
        steps = np.minimum(back, age[..., None])
        copies.take(kept, self.store.earlier(np.broadcast_to(rows[..., None], steps.shape), steps), to)
        to[missing] = 0

    def _beta(self) -> float:
        beta, over = self._config.beta, self._spec.anneal_batches
        return beta if over is None else beta + (1.0 - beta) * min(1.0, self.batches / over)

    # -------------------------------------------------------------------------------------------- telling

    @property
    def num_full(self) -> int:
        return 0  # nothing has to be learned from before a snapshot

    settled = True  # nothing is ever under way between the driver and its own table

    def pending(self) -> list[Any]:
        return []

    def serve(self, ready: Any) -> None: ...

    def waiting(self) -> str | None:
        """Explain why the learner waits, or the collectors; None where both may go on."""
        return self.table.limiter.waiting_for(samples=self._spec.batch_size, inserts=self._per_rollout)

    def metrics(self) -> dict[str, float]:
        values = self.table.metrics()
        if isinstance(self._sampled, Mixture):
            values["demo_share"] = float(self._sampled.drawn[1] / max(1, self._sampled.drawn.sum()))
        return {f"replay/{name}": value for name, value in values.items()}

    def snapshot(self) -> PyTree:
        """Copy everything; of a table too large for that, hand over sealed chunks as files.Sealed, or leave it out."""
        assert not self._claimed and not self._keys, "nothing may be in flight at a snapshot"
        large = self.store.used_bytes > self._config.save_megabytes << 20
        if large and not self._config.save_files:
            return {"batches": self.batches, "store": None}
        known = {name: getattr(self, name).copy() for name in ("_recent", "_age", "_first", "_blind")}
        saved = {
            "batches": self.batches,
            "store": self.store.snapshot(files=large),
            "table": self._sampled.snapshot(),
            "lanes": known,
        }
        return saved | {"memory": [leaf.copy() for leaf in tree_leaves(self._memory)]}

    def restore(self, snapshot: PyTree) -> None:
        if "shards" in snapshot:
            raise ValueError(
                f"the checkpoint's table is in {len(snapshot['shards'])} shards: resume with --runtime ray and as many "
                "--replay.shards"
            )
        self.batches = int(snapshot["batches"])
        if snapshot["store"] is None:
            return
        self.store.restore(snapshot["store"])
        self._sampled.restore(snapshot["table"])
        for name, value in snapshot["lanes"].items():
            getattr(self, name)[:] = value
        for leaf, saved in zip(tree_leaves(self._memory), snapshot["memory"]):
            leaf[:] = saved
