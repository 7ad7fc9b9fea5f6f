"""What value-based algorithms are made of, against rlax and against what must hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rookery import ops


def test_huber_equals_rlax_and_its_gradient_is_the_clipped_error():
    x = jnp.linspace(-4.0, 4.0, 41)
    for delta in (0.5, 1.0):
        np.testing.assert_allclose(ops.huber(x, delta), rlax.huber_loss(x, delta), rtol=1e-5, atol=1e-7)
        gradient = jax.vmap(jax.grad(lambda e, d=delta: ops.huber(e, d)))(x)
        np.testing.assert_allclose(gradient, np.clip(x, -delta, delta), rtol=1e-5)


def test_the_projection_equals_rlax_clipping_included(rng):
    atoms = ops.support(-2.0, 3.0, 11)
    returns = jnp.asarray(rng.normal(size=(20, 11)) * 4, jnp.float32)
    probabilities = jax.nn.softmax(jnp.asarray(rng.normal(size=(20, 11)), jnp.float32))
    ordered = jnp.sort(returns, -1)
    expected = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(ordered, probabilities, atoms)
    got = ops.categorical_projection(ordered, probabilities, atoms)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(got.sum(-1), 1.0, atol=1e-6)


def test_the_projection_keeps_the_mean_where_nothing_is_clipped_and_meets_an_atom_exactly(rng):
    atoms = ops.support(-10.0, 10.0, 51)
    probabilities = jax.nn.softmax(jnp.asarray(rng.normal(size=(6, 51)), jnp.float32))
    returns = jnp.asarray([0.3]).reshape(1, 1) + 0.9 * atoms[None]
    got = ops.categorical_projection(jnp.broadcast_to(returns, (6, 51)), probabilities, atoms)
    np.testing.assert_allclose((got * atoms[None]).sum(-1), 0.3 + 0.9 * (probabilities * atoms[None]).sum(-1), atol=1e-4)
    ended = jnp.full((1, 51), atoms[30])  # the episode terminated: every return is the reward
    one_hot = ops.categorical_projection(ended, probabilities[:1], atoms)
    np.testing.assert_allclose(one_hot[0], np.eye(51)[30], atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_takes_the_best_or_any_legal_action(epsilon):
    B = 20_000
    q = jnp.tile(jnp.array([[0.0, 5.0, 1.0, 2.0]]), (B, 1))
    legal = jnp.tile(jnp.array([[True, True, False, True]]), (B, 1))
    action = ops.epsilon_greedy(ops.random.key(0), q, epsilon=jnp.full(B, epsilon), legal=legal)
    shares = np.bincount(np.asarray(action), minlength=4) / B
    expected = epsilon / 3 * np.array([1, 1, 0, 1]) + (1 - epsilon) * np.array([0, 1, 0, 0])
    np.testing.assert_allclose(shares, expected, atol=0.015)
    assert action.dtype == jnp.int32 and shares[2] == 0


def test_each_environment_has_its_own_epsilon():
    q = jnp.tile(jnp.array([[0.0, 1.0]]), (2000, 1))
    epsilon = jnp.arange(2000) % 2 * 1.0
    action = np.asarray(ops.epsilon_greedy(ops.random.key(1), q, epsilon=epsilon))
    assert (action[::2] == 1).all() and 0.4 < action[1::2].mean() < 0.6


def test_values_of_actions_are_taken_along_the_right_axis(rng):
    values, action = rng.normal(size=(2, 3, 4, 5)), rng.integers(0, 4, (2, 3))
    got = ops.of_action(jnp.asarray(values), jnp.asarray(action))
    expected = [[values[t, b, action[t, b]] for b in range(3)] for t in range(2)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(
        ops.of_action(jnp.asarray(values[..., 0]), jnp.asarray(action)), np.array(expected)[..., 0], rtol=1e-6
    )


def test_squeezed_values_equal_rlax_and_come_back():
    x = jnp.concatenate([-jnp.logspace(-3, 4, 60), jnp.logspace(-3, 4, 60)])
    np.testing.assert_allclose(ops.squeeze_value(x), rlax.signed_hyperbolic(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(ops.unsqueeze_value(ops.squeeze_value(x)), x, rtol=1e-3, atol=1e-3)
