"""A replay table that lives in actors: shards, each with a part of the items (Horgan et al. 2018 cut theirs likewise).

    collector ──rollout──▶ object store ──▶ shard k ──batch, several asked for ahead──▶ learner
                  └─────reference─────▶ driver ─┘ ▲──────────── priorities ──────────────┘

It is a Table (data/interface.py). Rollouts never pass through the driver, only
references to them. A collector always writes to the same shard, so that its chains stay whole.

One rate limiter over all shards decides who waits: inserts and deletes count when a shard has reported them, samples when
they are requested, and those that never came are refunded. The driver requests everything, so the counts are exact.
Batches are requested of shards in turn, in proportion to their mass (the number of items, or the sum of p^exponent), so that
every item is as likely as in one table. A batch comes from one shard; importance weights are relative to its largest.

A shard that is lost loses its items, and nothing else: it is replaced by an empty one, rollouts on their way to it go to
that, the limiter counts the items as lost and begins the warm-up again where too few are left, and priorities for what the
old one gave are dropped: a key means something only to the life of the shard that gave it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVarTuple

import numpy as np

from rookery.data.files import Gone, Sealed
from rookery.data.interface import Part, Taken
from rookery.data.replay import items_per_rollout, limiter_for
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import ArgumentLost, Handle, Runtime
from rookery.runtime.roster import Life, Roster, Terms
from rookery.types import Batch, Needs, PyTree, Rollout
from rookery.workers.replay.shard import Shard, Stand

IN_FLIGHT = 16  # calls that a shard is sent ahead of time
TICK_SECONDS = 0.5  # between looks at what has answered
Ts = TypeVarTuple("Ts")


class _Order(NamedTuple):
    """A call to a shard, queued."""

    method: Callable[..., Any]
    args: tuple[Any, ...]
    life: Life | None = None  # whom it is for alone; None: whoever is there
    part: Part | None = None  # of an insert

    @staticmethod
    def of(method: Callable[[Shard, *Ts], Any], *args: *Ts) -> _Order:
        """Bind a method to its arguments, type-checked."""
        return _Order(method, args)


def written(part: Part, collected: Any) -> Part:
    """Fill in collector and reference of a rollout that stayed where it was written; return any other part as it is."""
    if part.rollout is not None:
        return part
    return part._replace(slot=collected.collector, rollout=collected.rollout)


class Shards:
    def __init__(
        self, runtime: Runtime, needs: Needs, specs: Rollout, *, collectors: int, writers: int, slots: int, seed: int
    ) -> None:
        """slots: batches that are requested, waiting or being learned from, together."""
        self._runtime, self._needs, self._specs, self._seed = runtime, needs, specs, seed
        self._spec, config, self._discount = needs.table, needs.table.config, needs.discount
        self._collectors, self._slots, self._writers = collectors, slots, writers
        self._count = count = config.shards
        share = lambda whole: -(-whole // count)
        part = dataclasses.replace(
            config, capacity=share(config.capacity), min_size=1, save_megabytes=config.save_megabytes // count
        )
        self._share = self._spec._replace(config=part)
        self.limiter = limiter_for(specs, self._spec, collectors=collectors)
        self._per_rollout = items_per_rollout(specs, self._spec)
        self._saved: list[PyTree | None] = [None] * count
        self._open_fleet(())
        self._orders: list[deque[_Order]] = [deque() for _ in range(count)]
        self._stands = [Stand() for _ in range(count)]
        self._credit = np.zeros(count)  # how far each is behind its share of the batches
        self._claimed: set[int] = set()
        self._asked, self._batches, self._number = 0, 0, 0  # not answered; asked for so far; taken so far
        self._arrived: deque[tuple[Life, Batch]] = deque()
        self._taken: dict[int, tuple[Life, np.ndarray]] = {}
        self.items_lost = self.rows_lost = self.rollouts_lost = self.updates_dropped = 0

    def _open_fleet(self, lives: Iterable[int]) -> None:
        patience = self._runtime.patience
        terms = Terms(least=self._count, most=self._count, in_flight=IN_FLIGHT, call_deadline=patience, start_deadline=patience)
        self._begin = [*lives] or [0] * self._count
        self.fleet = Fleet(self._runtime, "shard", Roster(terms, self._begin), self._start)
        self._lives = self.fleet.roster.lives

    def _start(self, life: Life) -> Handle[Shard]:
        place, number = life
        saved = None
        if number == self._begin[place]:  # nobody else is given it, and it may be large
            saved, self._saved[place] = self._saved[place], None
        seed = self._seed if life == (0, 0) else int(np.random.SeedSequence((self._seed, *life)).generate_state(1)[0])
        return self._runtime.spawn(
            Shard, self._specs, self._share, discount=self._discount,
            collectors=len(range(place, self._collectors, self._count)), seed=seed,
            snapshot=saved, name=f"shard-{place}", role="shard",
        )  # fmt: skip

    @property
    def discount(self) -> float:
        return self._discount

    @discount.setter
    def discount(self, value: float) -> None:
        self._discount = value
        self.fleet.tell(Shard.use_discount, value)

    # ------------------------------------------------------------------------------------------- inserting

    def claim(self) -> Part | None:
        """Reserve the insert of one rollout, which is written elsewhere; None when the limiter makes collectors wait."""
        self._tend()
        pending = (len(self._claimed) + 1) * self._per_rollout
        if len(self._claimed) == self._writers or not self.limiter.can_insert(pending):
            return None
        place = next(place for place in range(self._writers) if place not in self._claimed)
        self._claimed.add(place)
        return Part(0, place, None)

    def commit(self, part: Part, priorities: np.ndarray | None = None) -> None:
        """Insert a rollout into its collector's shard. part: with that collector as slot, and the reference to the rollout."""
        given = None if priorities is None else np.asarray(priorities)
        self._send(part.slot % self._count, _Order.of(Shard.insert, part.rollout, given)._replace(part=part))

    def abandon(self, part: Part) -> None:
        self._claimed.remove(part.place)

    # ------------------------------------------------------------------------------------------- sampling

    def take(self) -> Taken | None:
        """Return a batch that has arrived; request as many more as slots and limiter allow."""
        self._tend()
        size = self._spec.batch_size
        while self._asked + len(self._arrived) + len(self._taken) < self._slots and self.limiter.can_sample(size):
            if (place := self._turn()) is None:
                break
            self.limiter.sampled(size)
            self._send(place, _Order.of(Shard.sample, self._batches))
            self._batches += 1
            self._asked += 1
        if not self._arrived:
            return None
        life, batch = self._arrived.popleft()
        self._number += 1
        self._taken[self._number] = life, batch.key
        return Taken(self._number, batch)

    def _turn(self) -> int | None:
        """Choose the shard of the next batch, by weighted round-robin over their masses. None: all are empty."""
        masses = np.array([stand.mass if stand.size else 0.0 for stand in self._stands])
        if masses.sum() <= 0.0:
            masses = np.array([float(stand.size) for stand in self._stands])
        if masses.sum() <= 0.0:
            return None
        self._credit += masses / masses.sum()
        place = int(np.where(masses > 0, self._credit, -np.inf).argmax())
        self._credit[place] -= 1.0
        return place

    def release(self, slot: int, priorities: np.ndarray | None = None) -> None:
        """Free a batch after its update, and send its priorities to the shard that sampled it, if that still lives."""
        life, keys = self._taken.pop(slot)
        if priorities is not None and self._spec.config.selector == "prioritized":
            update = _Order.of(Shard.update, np.array(keys), np.asarray(priorities))
            self._send(life.place, update._replace(life=life))

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        raise NotImplementedError("a key means something only to the shard that gave it: a table that is refined has none")

    # -------------------------------------------------------------------------------------------- the shards

    @property
    def settled(self) -> bool:
        """Whether all calls to shards are answered."""
        return not self.fleet.busy and not any(self._orders)

    def pending(self) -> list[Future]:
        """List the futures to wait for, beside those of collectors and learner."""
        return self.fleet.waiting()

    def serve(self, ready: Iterable[Future]) -> None:
        """Process the replies of shards; send the inserts of a dead one to its replacement."""
        again: list[tuple[int, _Order]] = []
        for (life, order), result in self.fleet.take(ready):
            if result is None:
                if order.method is Shard.insert:  # the next one is given it
                    again.append((life.place, order))
                elif order.method is Shard.sample:
                    self._give_back()
                elif order.method is Shard.update:
                    self.updates_dropped += len(order.args[0])
            else:
                self._answered(life, order, result)
        for place, order in reversed(again):
            self._orders[place].appendleft(order)
        self._tend()

    def _answered(self, life: Life, order: _Order, result: Any) -> None:
        if order.method is Shard.sample:
            batch, result = result
            if batch is None:
                self._give_back()
            else:
                self._asked -= 1
                self._arrived.append((life, batch))
        if order.part is not None:
            self._claimed.remove(order.part.place)
            if isinstance(result, ArgumentLost):
                self.rollouts_lost += 1
                return
        before = self._stands[life.place]
        self._stands[life.place] = result
        self.limiter.inserted(result.inserts - before.inserts)
        self.limiter.deleted(result.deletes - before.deletes)

    def _give_back(self) -> None:
        """Refund the limiter for a batch that will not come."""
        self._asked -= 1
        self._batches -= 1
        self.limiter.sampled(-self._spec.batch_size)

    def _tend(self) -> None:
        self.fleet.tend()
        for place, number in enumerate(self.fleet.roster.lives):
            if number != self._lives[place]:
                self._lives[place] = number
                self._lose(place)
        for place in range(self._count):
            self._flush(place)

    def _lose(self, place: int) -> None:
        """Account for a shard that died with its items."""
        stand, self._stands[place] = self._stands[place], Stand()
        self.items_lost += stand.size
        self.rows_lost += stand.rows
        self.limiter.lost(stand.size)
        self._credit[:] = 0.0

    def _send(self, place: int, order: _Order) -> None:
        self._orders[place].append(order)
        self._flush(place)

    def _flush(self, place: int) -> None:
        orders = self._orders[place]
        while orders and orders[0].life is not None and not self.fleet.roster.alive(orders[0].life):
            self.updates_dropped += len(orders.popleft().args[0])  # for items of a shard that is gone
        while orders and (life := self.fleet.next_of((place,))) is not None:
            order = orders.popleft()
            if order.life in (None, life):
                self.fleet.call(life, (life, order), order.method, *order.args)
            else:
                self.updates_dropped += len(order.args[0])

    # -------------------------------------------------------------------------------------------- telling

    @property
    def num_full(self) -> int:
        return 0  # nothing has to be learned from before a snapshot

    def waiting(self) -> str | None:
        """Say what the learner, or the collectors, wait for; None where both may go on."""
        return self.limiter.waiting_for(samples=self._spec.batch_size, inserts=self._per_rollout)

    def metrics(self) -> dict[str, float]:
        told = [stand.metrics for stand in self._stands if stand.metrics]
        of = lambda name: [metrics[name] for metrics in told] or [0.0]
        values = {
            "size": float(sum(stand.size for stand in self._stands)),
            **self.limiter.metrics(),
            "reuse": sum(of("reuse")) / len(of("reuse")),
            "age": sum(of("age")) / len(of("age")),
            "max_priority": max(of("max_priority")),
            "ignored_updates": sum(of("ignored_updates")) + self.updates_dropped,
            "shards": float(self.fleet.roster.count("working")),
            "shards_lost": float(self.fleet.roster.lost_workers),
            "items_lost": float(self.items_lost),
            "rows_lost": float(self.rows_lost),
            "rollouts_lost": float(self.rollouts_lost),
        }
        return {f"replay/{name}": value for name, value in values.items()}

    def snapshot(self) -> PyTree:
        """Gather what the shards hold, as far as they may save it. One shard's is that of a Replay: it resumes on any runtime.

        The bytes of sealed chunks stay with the shards until whoever saves this asks for them, and it asks for those alone
        that no earlier checkpoint holds."""
        assert not self._taken, "nothing may be learned from at a snapshot"
        while not self.settled:
            self.serve(self._runtime.wait(self.pending(), TICK_SECONDS)[0])
        lives = self.fleet.roster.lives
        shards = self.fleet.gather(Shard.snapshot)
        for place, saved in enumerate(shards):
            if saved is not None and saved["store"] is not None:
                self._seal(Life(place, lives[place]), saved["store"])
        self._tend()
        limiter = self.limiter.snapshot()
        limiter["samples"] -= len(self._arrived) * self._spec.batch_size  # they wait here, and are not saved
        common = {"batches": self._batches - len(self._arrived), "lives": self.fleet.roster.lives}
        if self._count == 1 and (one := shards[0]) is not None:
            return one | common | ({"table": one["table"] | {"limiter": limiter}} if one["store"] is not None else {})
        return common | {"shards": shards, "sizes": [stand.size for stand in self._stands], "limiter": limiter}

    def _seal(self, life: Life, store: PyTree) -> None:
        """Put files that are fetched on demand in place of the sizes of a shard's sealed chunks."""

        def file(name: str, nbytes: int) -> Sealed:
            def read() -> np.ndarray:
                if (data := self.fleet.fetch(life, Shard.sealed, name)) is None:
                    raise Gone(f"{name} went with shard-{life.place} of the replay")
                return data

            return Sealed(name, nbytes, read)

        store["sealed"]["files"] = [file(name, size) for name, size in zip(store["names"], store["sealed"]["files"])]

    def restore(self, snapshot: PyTree) -> None:
        """Start each shard with what was saved of it; before anything is claimed or taken."""
        shards = snapshot.get("shards", [snapshot])
        if len(shards) != self._count:
            raise ValueError(f"the checkpoint's table is in {len(shards)} shards, not {self._count}: use --replay.shards")
        self._batches = int(snapshot["batches"])
        whole = [shard is not None and shard["store"] is not None for shard in shards]
        self._saved = [shard if there else None for shard, there in zip(shards, whole)]
        if any(whole):
            self.limiter.restore(snapshot["limiter"] if "limiter" in snapshot else shards[0]["table"]["limiter"])
            sizes = snapshot.get("sizes", [self.limiter.size])
            self.limiter.lost(sum(int(size) for size, there in zip(sizes, whole) if not there))
            self._stands = [Stand(size=int(size)) if there else Stand() for size, there in zip(sizes, whole)]
        self._open_fleet(map(int, snapshot.get("lives", ())))
        for place in range(self._count):
            if self._saved[place] is not None:
                self._orders[place].append(_Order.of(Shard.stand))  # what it holds, before it is asked for a batch
