"""What a user may choose about replay, and what an algorithm asks of its table. Imports nothing heavy: `--help` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rookery.ranges import Long, Natural, Positive, Range, Share, Workers


@dataclass(frozen=True, kw_only=True)
class ReplayBuffer:
    """A replay buffer: what is kept of what was played, and how it is drawn."""

    capacity: Long = 100_000
    """Environment steps that the replay buffer holds."""
    min_size: Long = 1_000
    """Items (transitions or sequences) in the buffer before learning starts."""
    error_buffer: Positive | None = None
    """Samples by which the replay ratio may be exceeded or missed; None: a tenth of the warm-up, more for large batches."""
    selector: Literal["uniform", "prioritized"] = "uniform"
    """How items are drawn."""
    exponent: Annotated[float, Range(0, 10)] = 0.6
    """Priority exponent (alpha); 0: uniform."""
    beta: Share = 0.4
    """Importance-weight exponent; 1: full correction."""
    remover: Literal["fifo", "lifo", "min_heap", "prioritized"] = "fifo"
    """What is evicted when the table is full; prioritized: low priorities first (exponent -0.4)."""
    max_times_sampled: Natural = 0
    """Evict an item once it was sampled this often; 0: never."""
    stack: Annotated[int, Range(0, 255)] | None = None
    """Frames of an observation, each of which is stored once; 0: observations as they are; None: what the pool stacks."""
    shards: Workers = 1
    """Replay shards, one actor each (--runtime ray; on local: in the driver)."""
    save_megabytes: Natural = 1024
    """Copy the buffer into every checkpoint up to this size (MB)."""
    save_files: bool = True
    """Save a larger buffer in files that checkpoints share; if off, a resumed run starts with an empty buffer."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(ReplayBuffer):
    """A replay buffer, and how often it is drawn from; part of the config of Q-learning from replay."""

    samples_per_insert: Annotated[float, Range(1e-3, 1e5)] = 8.0
    """Replay ratio: how often an item is sampled, on average. Collectors and learner wait for each other to keep to it."""


class TableSpec(NamedTuple):
    """The table that an algorithm learns from (`Needs.table`): n-step transitions, or sequences."""

    config: ReplayBuffer
    batch_size: int  # columns of a batch
    n_step: int = 1  # of transitions
    reward_clip: float | None = None  # rewards are clipped to ± this before they are added up
    sequence_length: int = 0  # rows of a sequence, a multiple of the rollout length; 0: transitions
    burn_in: int = 0  # rows of a sequence that are not learned from: their priorities do not count
    eta: float = 0.9  # of a sequence's priority: eta · max + (1 − eta) · mean over its rows
    demo_ratio: float = 0.0  # the share of a batch that is drawn from demonstrations
    extras: tuple[str, ...] = ()  # of what act() or process() wanted remembered: those that are stored, and learned from
    anneal_batches: int | None = None  # beta goes to 1 over so many batches; None: it stays
    ratio: float | None = None  # samples per insert, of an algorithm that counts its gradient steps; None: the config's
    frames: int = 0  # that the pool stacks to each image: see columns.frames_of

    @property
    def samples_per_insert(self) -> float:
        """How often an item is sampled, on average."""
        return self.config.samples_per_insert if self.ratio is None else self.ratio  # type: ignore[attr-defined]

    @property
    def stack(self) -> int:
        """Frames of an observation that are stored one by one; 0: observations are stored as they are."""
        return self.frames if self.config.stack is None else self.config.stack
