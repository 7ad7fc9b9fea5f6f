import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery import ops
from rookery.ops.gradients import chunks_of
from rookery.types import Rollout


@pytest.fixture
def tree(rng):
    make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return {"encoder": {"Dense_0": {"kernel": make(3, 4), "bias": make(4)}}, "head": [make(2), make(1, 5)]}


def test_a_leaf_that_is_not_finite_makes_the_norm_so(tree):
    tree["head"][0] = jnp.array([1.0, jnp.nan])
    _, norms = ops.clip_by_global_norm(tree, 1.0)
    assert not np.isfinite(norms.total)


@pytest.mark.parametrize("max_norm", [0.5, 1e3, math.inf])
def test_clipping_equals_that_of_optax(tree, max_norm):
    clipped, norms = jax.jit(ops.clip_by_global_norm)(tree, max_norm)
    expected, _ = optax.clip_by_global_norm(max_norm).update(tree, optax.EmptyState())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), clipped, expected)
    np.testing.assert_allclose(norms.total, optax.tree.norm(tree), rtol=1e-6)


def test_zero_gradients_and_empty_trees_are_left_alone(tree):
    zeros = jax.tree.map(jnp.zeros_like, tree)
    clipped, norms = ops.clip_by_global_norm(zeros, 1.0)
    jax.tree.map(np.testing.assert_array_equal, clipped, zeros)
    assert norms.total == 0
    assert ops.clip_by_global_norm({}, 1.0)[1].total == 0


def make_rollout(rng, T=5, B=12):
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    valid = (rng.random((T, B)) < 0.7).astype(np.float32)
    valid[:, :3] = 0.0  # a whole chunk without a transition
    return Rollout(
        observation={
            "vector": normal(T + 1, B, 3),
            "image": jnp.asarray(rng.integers(0, 255, (T + 1, B, 2, 2)), jnp.uint8),
        },
        action=jnp.asarray(rng.integers(0, 4, (T, B))),
        reward=normal(T, B),
        discount=jnp.ones((T, B)),
        valid=jnp.asarray(valid),
        extras={"value": normal(T, B)},
        memory=(normal(B, 3),),
        version=jnp.zeros((T, B), jnp.int32),
        stream=jnp.arange(B),
        step=jnp.arange(B),
    )


def loss(params, rollout):
    """Uses every kind of leaf: [T + 1, B, ...], [T, B], [B, ...]."""
    image = rollout.observation["image"].astype(jnp.float32).reshape(*rollout.observation["image"].shape[:2], 4) / 255
    seen = jnp.concatenate([rollout.observation["vector"], image], -1)[:-1] @ params["w"]
    memory = (rollout.memory[0] @ params["m"] + 0.1 * rollout.stream)[None]
    error = jnp.square(jnp.tanh(seen) + memory - rollout.reward - rollout.extras["value"] * rollout.action)
    mean = ops.masked_mean(error, rollout.valid)
    return mean, {"loss/value": mean, "seen": ops.masked_mean(seen, rollout.valid)}


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 12])
def test_chunked_gradients_and_reports_equal_those_of_the_whole_rollout(rng, num_chunks):
    rollout = make_rollout(rng)
    params = {name: jnp.asarray(rng.normal(size=(size,)), jnp.float32) for name, size in (("w", 7), ("m", 3))}
    grads, report = jax.jit(ops.accumulate, static_argnums=(0, 3))(loss, params, rollout, num_chunks)
    (_, expected_report), expected = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, rollout)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), grads, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), report, expected_report)


def test_chunks_compile_to_straight_line_code(rng):
    """Inside a loop XLA's convolutions on CPU are slow."""
    rollout, params = make_rollout(rng), {"w": jnp.ones(7), "m": jnp.ones(3)}
    program = jax.make_jaxpr(lambda p, r, n: ops.accumulate(loss, p, r, n), static_argnums=2)
    assert not any("scan[" in str(program(params, rollout, n)) or "while[" in str(program(params, rollout, n)) for n in (1, 4))


def test_a_chunk_holds_the_same_columns_of_every_leaf(rng):
    rollout = make_rollout(rng)
    part = chunks_of(rollout, 4)[1]
    np.testing.assert_array_equal(part.stream, [3, 4, 5])
    np.testing.assert_array_equal(part.memory[0], rollout.memory[0][3:6])
    np.testing.assert_array_equal(part.observation["image"], rollout.observation["image"][:, 3:6])
    assert part.reward.shape == (5, 3)


def test_a_number_of_chunks_that_does_not_divide_the_columns_is_refused(rng):
    with pytest.raises(ValueError, match=r"12 columns.*num_chunks=5"):
        ops.accumulate(loss, {"w": jnp.ones(7), "m": jnp.ones(3)}, make_rollout(rng), 5)
