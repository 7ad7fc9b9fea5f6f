"""What a user may choose about replay, and what an algorithm asks of its table. Imports nothing heavy: `--help` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rookery.ranges import Long, Natural, Positive, Range, Share, Workers


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """A table of experience that is learned from again; part of every replay algorithm's config."""

    capacity: Long = 100_000
    """Steps the replay holds."""
    min_size: Long = 1_000
    """Items before learning starts."""
    samples_per_insert: Annotated[float, Range(1e-3, 1e5)] = 8.0
    """How often a step is learned from, on average: collectors and learner wait for each other to keep to it."""
    error_buffer: Positive | None = None
    """How far samples may run ahead of or behind that; by default a tenth of the warm-up, or what bulks need."""
    selector: Literal["uniform", "prioritized"] = "uniform"
    exponent: Annotated[float, Range(0, 10)] = 0.6
    """Priority exponent (alpha); 0: uniform."""
    beta: Share = 0.4
    """Importance-weight exponent; 1: full correction."""
    remover: Literal["fifo", "lifo", "min_heap", "prioritized"] = "fifo"
    """What is evicted when the table is full; prioritized: low priorities first (exponent -0.4)."""
    max_times_sampled: Natural = 0
    """Evict an item after so many samples; 0: never."""
    stack: Annotated[int, Range(0, 255)] = 0
    """Store stacks of so many frames frame by frame; 0: as they come."""
    shards: Workers = 1
    """Replay shards, one actor each (--runtime ray; on local: in the driver)."""
    save_megabytes: Natural = 1024
    """Largest table that checkpoints copy."""
    save_files: bool = True
    """A larger one is kept in files that checkpoints share; else it is filled anew by a resumed run."""


class TableSpec(NamedTuple):
    """The table that an algorithm learns from (`Needs.table`): n-step transitions, or sequences."""

    config: ReplayConfig
    batch_size: int  # columns of a batch
    n_step: int = 1  # of transitions
    reward_clip: float | None = None  # rewards are clipped to ± this before they are added up
    sequence_length: int = 0  # rows of a sequence, a multiple of the rollout length; 0: transitions
    burn_in: int = 0  # rows of a sequence that are not learned from: their priorities do not count
    eta: float = 0.9  # of a sequence's priority: eta · max + (1 − eta) · mean over its rows
    demo_ratio: float = 0.0  # the share of a batch that is drawn from demonstrations
    extras: tuple[str, ...] = ()  # of what act() or process() wanted remembered: those that are stored, and learned from
    anneal_batches: int | None = None  # beta goes to 1 over so many batches; None: it stays
