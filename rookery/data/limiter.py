"""Rate limiters: who may insert and who may sample, as a state machine without clocks, locks or threads.

State: items inserted, sampled and deleted, over the whole life of a table. With d = inserts · samples_per_insert − samples,

    can_sample(k)   inserts − deletes ≥ min_size   and   d − k ≥ min_diff
    can_insert(k)   inserts + k − deletes ≤ min_size   or   d + k · samples_per_insert ≤ max_diff

the rule of Reverb (Cassirer et al. 2021, https://arxiv.org/abs/2102.04736). `samples_per_insert` counts items, not batches:
it is how often an item is sampled in its life, on average. Whoever is refused asks again later: nothing waits in here, so
nothing can hang in here, and `waiting_for` says in a sentence what is missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rookery.types import PyTree


@dataclass(kw_only=True)
class Limiter:
    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float
    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    offset: float = 0.0  # of d: what losses have changed, see `lost`

    def __post_init__(self) -> None:
        ratio, width = self.samples_per_insert, self.max_diff - self.min_diff
        if not 0 < ratio < math.inf:
            raise ValueError(f"samples_per_insert must be more than 0 and finite, not {ratio}")
        if self.min_size < 1:
            raise ValueError(f"min_size must be at least 1, not {self.min_size}: there is nothing to sample in an empty table")
        if not width >= 2 * max(1.0, ratio):
            raise ValueError(
                f"an error buffer from {self.min_diff:g} to {self.max_diff:g} is {width:g} wide: with {ratio:g} samples per "
                f"insert both sides could wait for each other for ever; make it at least {2 * max(1.0, ratio):g} wide"
            )
        if self.min_diff > ratio * self.min_size:
            raise ValueError(
                f"min_diff {self.min_diff:g} is more than the {ratio * self.min_size:g} samples that min_size={self.min_size} "
                "items allow: the first sample could never be taken; lower min_diff"
            )

    # --------------------------------------------------------------------------------------------- the rule

    @property
    def size(self) -> int:
        return self.inserts - self.deletes

    @property
    def diff(self) -> float:
        return self.inserts * self.samples_per_insert - self.samples + self.offset

    def can_sample(self, count: int = 1) -> bool:
        return self.size >= self.min_size and self.diff - count >= self.min_diff

    def can_insert(self, count: int = 1) -> bool:
        return self.size + count <= self.min_size or self.diff + count * self.samples_per_insert <= self.max_diff

    # ------------------------------------------------------------------------------------------- the events

    def inserted(self, count: int) -> None:
        self.inserts += count

    def sampled(self, count: int) -> None:
        self.samples += count

    def deleted(self, count: int) -> None:
        self.deletes += count

    def lost(self, count: int) -> None:
        """Count items that are gone though no remover chose them: a shard of the table was lost.

        Where fewer than min_size are left the warm-up begins anew: d becomes what it is after so many inserts and no
        sample, as at the start. So the inserts that fill the table again owe nothing, and what `check_bulk` has checked for
        the start holds again: without it, both sides could wait for each other below min_size.
        """
        self.deletes += count
        if count and self.size < self.min_size:
            self.offset += self.samples_per_insert * self.size - self.diff

    # ------------------------------------------------------------------------------------------ explanations

    def waiting_for(self, *, inserts: int | None = None, samples: int | None = None) -> str | None:
        """Explain why inserting (or sampling) so many at once is refused now, and what would allow it; None where it is not."""
        if samples is not None and not self.can_sample(samples):
            missing = max(self.min_size - self.size, math.ceil((self.min_diff + samples - self.diff) / self.samples_per_insert))
            if self.size < self.min_size:
                return f"waiting: {missing:,} more inserts before the next sample ({self.size:,} of min_size {self.min_size:,})"
            return (
                f"waiting: {missing:,} more inserts before the next sample (at {self.samples_per_insert:g} samples per insert)"
            )
        if inserts is not None and not self.can_insert(inserts):
            missing = math.ceil(self.diff + inserts * self.samples_per_insert - self.max_diff)
            return (
                f"waiting: {missing:,} more samples before the next insert (at {self.samples_per_insert:g} samples per insert)"
            )
        return None

    def metrics(self) -> dict[str, float]:
        """Report inserts, samples and deletes over the whole life of the table, and the ratio so far."""
        warm = self.inserts - self.min_size
        return {
            "inserts": float(self.inserts),
            "samples": float(self.samples),
            "deletes": float(self.deletes),
            "samples_per_insert": self.samples / warm if warm > 0 else 0.0,
        }

    def check_bulk(self, *, insert_size: int, batch_size: int) -> None:
        """Refuse a buffer in which inserts of `insert_size` and samples of `batch_size` could block each other for ever.

        Two things can go wrong: after the start, d is too low to sample and too high to insert; at the start, the bulk
        that reaches min_size is too much to insert while there is too little to sample.
        """
        bulk = insert_size * self.samples_per_insert
        need = bulk + batch_size
        above = self.max_diff - self.samples_per_insert * self.min_size
        if self.max_diff - self.min_diff < need or above < bulk - self.samples_per_insert:
            raise ValueError(
                f"inserts of {insert_size} at {self.samples_per_insert:g} samples per insert and batches of {batch_size} "
                f"need an error buffer of at least {need:g}, this one goes from {self.min_diff:g} to {self.max_diff:g}: raise "
                "error_buffer, or insert and sample less at once"
            )

    def snapshot(self) -> PyTree:
        return {"inserts": self.inserts, "samples": self.samples, "deletes": self.deletes, "offset": self.offset}

    def restore(self, snapshot: PyTree) -> None:
        self.inserts, self.samples, self.deletes = (int(snapshot[name]) for name in ("inserts", "samples", "deletes"))
        self.offset = float(snapshot.get("offset", 0.0))


def min_size(size: int) -> Limiter:
    """Make a limiter that lets sampling start at `size` items and never makes anyone wait after that."""
    return Limiter(samples_per_insert=1.0, min_size=size, min_diff=-math.inf, max_diff=math.inf)


def sample_to_insert_ratio(
    ratio: float,
    *,
    min_size: int,
    error_buffer: float | tuple[float, float] | None = None,
    insert_size: int = 1,
    batch_size: int = 1,
) -> Limiter:
    """Make a limiter that keeps `ratio` samples per insert, within an error buffer around it.

    error_buffer: a number e (min_diff and max_diff are ratio · min_size ∓ e: the warm-up is owed no samples), or the pair
    itself; by default a tenth of ratio · min_size, or more where bulks need it. A number must be at least
    insert_size · ratio + batch_size, what one bulk on each side can add up to; a pair is checked for what can block.
    """
    bulk = insert_size * ratio + batch_size
    if error_buffer is None:
        error_buffer = max(0.1 * ratio * min_size, bulk, max(1.0, ratio))
    elif not isinstance(error_buffer, tuple) and (insert_size, batch_size) != (1, 1) and error_buffer < bulk:
        raise ValueError(
            f"error_buffer {error_buffer:g} is less than {bulk:g}, which inserts of {insert_size} at {ratio:g} samples per "
            f"insert and batches of {batch_size} need: both sides could wait for each other for ever"
        )
    if isinstance(error_buffer, tuple):
        low, high = error_buffer
    else:
        low, high = ratio * min_size - error_buffer, ratio * min_size + error_buffer
    limiter = Limiter(samples_per_insert=ratio, min_size=min_size, min_diff=low, max_diff=high)
    limiter.check_bulk(insert_size=insert_size, batch_size=batch_size)
    return limiter
