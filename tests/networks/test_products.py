"""A dense layer's product: what a plain one gives, and its gradients, whatever the widths; and its rectifier."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks import products

SHAPES = {"narrow": (40, 16, 2), "one column": (7, 5, 1), "wide": (12, 8, 64), "one row": (1, 3, 40)}


@pytest.mark.parametrize("rows, inner, columns", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_those_of_a_plain_product(rows, inner, columns):
    random = np.random.default_rng(0)
    x, kernel, weight = (random.standard_normal(shape) for shape in ((rows, inner), (inner, columns), (rows, columns)))
    given = [jnp.asarray(a, jnp.float32) for a in (x, kernel)]
    np.testing.assert_allclose(products.product(*given), x @ kernel, rtol=1e-5, atol=1e-5)
    found = jax.jit(jax.grad(lambda *args: jnp.sum(products.product(*args) * weight), argnums=(0, 1)))(*given)
    np.testing.assert_allclose(found[0], weight @ kernel.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], x.T @ weight, rtol=1e-4, atol=1e-4)


def test_leading_axes_stay_and_many_kernels_are_mapped_over():
    x, kernels = jnp.ones((5, 4, 3)), jnp.stack([jnp.eye(3, 2), 2 * jnp.eye(3, 2)])
    assert products.dot_general(x, kernels[0]).shape == (5, 4, 2)
    loss = lambda kernel: products.dot_general(x, kernel).sum()
    np.testing.assert_array_equal(jax.vmap(jax.grad(loss))(kernels), np.full((2, 3, 2), 20.0))


@pytest.mark.parametrize("columns", [2, 64])
def test_on_a_cpu_no_side_of_a_gradients_product_is_read_across(columns):
    """What it is for: XLA must not fold the transposition back into the product."""
    if jax.default_backend() != "cpu":
        pytest.skip("other backends multiply transposed sides at full speed")
    gradient = jax.grad(lambda kernel, x: jnp.tanh(products.product(jnp.tanh(x), kernel)).sum())
    text = jax.jit(gradient).lower(jnp.ones((16, columns)), jnp.ones((32, 16))).compile().as_text()
    assert "lhs_contracting_dims={1}" in text and "lhs_contracting_dims={0}" not in text


def test_the_rectifier_and_its_gradient_are_those_of_jax():
    x = jnp.asarray([-2.0, -0.0, 0.0, 1e-30, 3.0])
    d = jnp.asarray([5.0, 6.0, 7.0, 8.0, -9.0])
    for rectifier in (products.relu, jax.jit(products.relu)):
        np.testing.assert_array_equal(rectifier(x), jax.nn.relu(x))
        np.testing.assert_array_equal(jax.vjp(rectifier, x)[1](d)[0], jax.vjp(jax.nn.relu, x)[1](d)[0])


def test_what_is_not_a_number_passes_the_rectifier_in_both_directions():
    assert np.isnan(products.relu(jnp.asarray(jnp.nan))) and np.isnan(jax.grad(products.relu)(jnp.nan))
