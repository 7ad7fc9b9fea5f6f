"""Cores: memory between the steps of an episode. The state starts at zero and is set to zero where an episode does.

LSTM: Hochreiter and Schmidhuber (1997), with 1 added to the forget gate (Jozefowicz et al., 2015) so that a new
network remembers. GRU: Cho et al. (2014), with the reset gate after the product, so that one product serves a step.
The inputs of all steps are multiplied at once; only the recurrent product is inside the scan.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from rookery.types import Array

Memory = tuple[Array, ...]  # each [B, size]


def initial_memory(kind: str, size: int, B: int) -> Memory:
    """Return the memory [B, size] that an episode starts with: (hidden, cell), (hidden,), or () without a core."""
    return tuple(jnp.zeros((B, size)) for _ in range({"none": 0, "gru": 1, "lstm": 2}[kind]))


class Core(nn.Module):
    """features [T, B, F], memory, first [T, B] -> outputs [T, B, size], memory after the last row."""

    kind: Literal["lstm", "gru"]
    size: int

    @nn.compact
    def __call__(self, features: Array, memory: Memory, first: Array) -> tuple[Array, Memory]:
        gates = {"lstm": 4, "gru": 3}[self.kind]
        gain = nn.initializers.ones  # of orthogonal matrices, see `network.orthogonal`; one for each gate
        kernel = self.param("input", gain, (features.shape[-1], gates * self.size))
        stack = self.param("recurrent", gain, (gates, self.size, self.size))
        recurrent = stack.transpose(1, 0, 2).reshape(self.size, gates * self.size)
        bias = self.param("bias", nn.initializers.zeros, (gates * self.size,))
        cell = {"lstm": _lstm, "gru": _gru}[self.kind]

        def row(memory: Memory, inputs: tuple[Array, Array]) -> tuple[Memory, Array]:
            projected, first = inputs
            fresh = first.astype(bool)[:, None]
            memory = tuple(jnp.where(fresh, 0.0, state) for state in memory)
            memory = cell(projected, memory[0] @ recurrent, memory)
            return memory, memory[0]

        projected = features @ kernel + bias.reshape(1, 1, -1)  # [T, B, gates * size]
        if features.shape[0] == 1:  # acting: no loop for one step
            memory, output = row(memory, (projected[0], first[0]))
            return output[None], memory
        memory, outputs = lax.scan(row, memory, (projected, first))
        return outputs, memory


def _lstm(projected: Array, recurrent: Array, memory: Memory) -> Memory:
    i, g, f, o = jnp.split(projected + recurrent, 4, -1)
    cell = nn.sigmoid(f + 1.0) * memory[1] + nn.sigmoid(i) * nn.tanh(g)
    return nn.sigmoid(o) * nn.tanh(cell), cell


def _gru(projected: Array, recurrent: Array, memory: Memory) -> Memory:
    (r, z, n), (rr, rz, rn) = jnp.split(projected, 3, -1), jnp.split(recurrent, 3, -1)
    update = nn.sigmoid(z + rz)
    candidate = nn.tanh(n + nn.sigmoid(r + rr) * rn)
    return ((1.0 - update) * candidate + update * memory[0],)
