"""Columns that processes share: the gradient is summed as one vector, and nothing changes where nobody shares."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks import NetworkConfig
from rookery.networks.network import actor_critic
from rookery.ops import spread
from rookery.types import Spec

SPEC = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2), "small")
NETWORK = actor_critic(SPEC, 2, NetworkConfig(hidden=(4,)))
TWO = jax.sharding.AbstractMesh((2,), (spread.AXIS,))


def program(columns: int) -> str:
    params = NETWORK.init(jax.random.key(0))
    observation, first = jnp.ones((5, columns, 3)), jnp.zeros((5, columns))
    loss = lambda params: jnp.square(NETWORK.unroll(params, observation, (), first).value).mean()
    return str(jax.make_jaxpr(jax.grad(loss))(params))


def test_the_gradient_is_summed_over_processes_as_one_vector() -> None:
    size = sum(leaf.size for leaf in jax.tree.leaves(NETWORK.init(jax.random.key(0))))
    with jax.sharding.use_abstract_mesh(TWO):
        sums = re.findall(r"(\S+) = psum", program(columns=6))
    assert len(sums) == 1 and sums[0].endswith(f":f32[{size}]"), sums


@pytest.mark.parametrize("columns", [6, 5])
def test_a_program_that_nobody_shares_is_as_it_was(columns: int) -> None:
    assert "shard_map" not in program(columns)
    with jax.sharding.use_abstract_mesh(TWO):
        assert ("shard_map" in program(columns)) == (columns == 6), "five columns cannot be shared by two: left to XLA"


def test_chunks_have_columns_of_every_process_and_lose_none() -> None:
    columns: Any = jnp.arange(24).reshape(2, 12)
    plain = spread.chunks(columns, 1, 3)
    np.testing.assert_array_equal(jnp.concatenate(plain, 1), columns)
    with jax.sharding.use_abstract_mesh(TWO):
        shared = spread.chunks(columns, 1, 3)
        assert [part[0].tolist() for part in shared] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
