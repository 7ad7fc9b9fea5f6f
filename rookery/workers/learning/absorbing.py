"""Steps of a loss beside the main one (`Agent.auxiliary`), whose gradients another worker has computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithms.sharing import program_of
from rookery.types import Agent, Array, PyTree, TrainState
from rookery.workers.learning.nonfinite import NonFinite


class Absorbed(NamedTuple):
    """What a gradient of the auxiliary loss has made of the parameters."""

    params: PyTree
    slow: PyTree  # a copy
    version: int  # of the updates so far: a gradient of this kind is none


def absorbed(agent: Agent, state: TrainState, tree: PyTree) -> TrainState:
    """Return the state after a step by this gradient, and wait until it is there. NonFinite: it is not a number."""
    after, finite = compiled_absorb(program_of(agent))(*state, tree)
    if not np.asarray(finite):
        raise NonFinite(f"a gradient of the auxiliary loss after update {int(after.updates)} is not finite: lower its rate")
    return after


@functools.lru_cache(maxsize=8)
def compiled_absorb(agent: Agent) -> Callable[..., tuple[TrainState, Array]]:
    """Compile a step of the auxiliary loss, once per process and agent, which keeps the state where it is not finite.

    (params, slow, optimizer, updates, tree) -> state, is it finite []"""
    assert agent.auxiliary is not None, "topologies refuse agents without"
    apply = agent.auxiliary.apply

    def absorb(params: PyTree, slow: PyTree, optimizer: PyTree, updates: Array, tree: PyTree) -> tuple[TrainState, Array]:
        old = TrainState(params, slow, optimizer, updates)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
        return jax.tree.map(lambda new, kept: jnp.where(finite, new, kept), apply(old, tree), old), finite

    return jax.jit(absorb, donate_argnums=(1, 2))
