"""What a network is, and what a user may choose about it. No jax here: `--help` prints it without that import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rookery.ranges import Range, Units
from rookery.types import Array, PyTree


class Output(NamedTuple):
    policy: Array  # [..., num_outputs] logits, action values, or mean and log_std
    value: Array  # [...]


class Network(NamedTuple):
    """A tuple of pure functions; the parameters are a plain tree of arrays."""

    init: Callable[[Array], PyTree]  # (key) -> params
    memory: Callable[[int], PyTree]  # (B) -> [B, ...] what a new episode starts with; () without a core
    step: Callable[[PyTree, PyTree, PyTree], tuple[Output, PyTree]]
    #   (params, observation [B, ...], memory [B, ...]) -> (Output [B, ...], memory)
    unroll: Callable[[PyTree, PyTree, PyTree, Array], Output]
    #   (params, observation [T, B, ...], memory [B, ...], first [T, B]) -> Output [T, B, ...]
    #   memory is reset where first[t] is 1, before observation[t] is read


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Encoder -> core -> heads; part of every algorithm's config."""

    encoder: Literal["auto", "mlp", "nature", "shallow", "compact", "impala", "small"] = "auto"
    """Convolutions; auto: Nature from 44 pixels a side, compact from 24, small from 8, else an MLP. shallow: A3C's."""
    hidden: tuple[Units, ...] = (64, 64)
    """Layers of the MLP for vectors; beside an image only the last (see encoders.py)."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Of the MLP; convolutions use relu."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core."""
    core_size: Units = 128
    """Units of the core."""
    heads: Literal["auto", "shared", "separate"] = "auto"
    """Encoder of policy and value; auto: separate for vectors without a core, else shared."""
    initial_log_std: Annotated[float, Range(-20, 5)] = 0.0
    """First log standard deviation of continuous actions (learned, the same in all states)."""


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """What of an image is seen: all of it, or another window of it each time that it is learned from."""

    kind: Literal["whole", "crop", "shift"] = "whole"
    """Images as they are; crop: windows cut out of them, what lies at the border is lost to whoever acts (CURL); shift:
    windows as large as the image, moved over its repeated border, which loses nothing (DrQ)."""
    window: Annotated[float, Range(0.1, above=0, below=1)] = 0.84
    """Side of a window that is cut out, of the image's; what is left on both sides is how far a shift goes."""
