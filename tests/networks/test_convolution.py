"""The products and the ordinary convolution are one function of one kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rookery.networks import convolution as module
from rookery.networks.convolution import convolution, image_convolution, max_pool, space_to_depth

CASES = [  # height, width, in, out, kernel, stride, padding
    (84, 84, 4, 32, 8, 4, "VALID"),
    (20, 20, 32, 64, 4, 2, "VALID"),
    (9, 9, 64, 64, 3, 1, "VALID"),
    (42, 42, 16, 16, 3, 1, "SAME"),
    (11, 7, 3, 5, 3, 1, "SAME"),
    (23, 18, 2, 8, 4, 2, "VALID"),  # trailing rows that no window reads
    (23, 18, 2, 8, 4, 2, "SAME"),
    (13, 13, 3, 8, 3, 2, "VALID"),  # the stride does not divide the kernel: the ordinary convolution
]


def ordinary(x, kernel, stride, padding):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=dimensions)


def with_gradients(function, *arguments):
    """The output, and the gradients of its product with fixed noise."""
    out = function(*arguments)
    noise = jax.random.normal(jax.random.key(7), out.shape)
    gradients = jax.grad(lambda *a: jnp.sum(function(*a) * noise), argnums=range(len(arguments)))(*arguments)
    return out, *gradients


@pytest.mark.parametrize("height, width, channels, out, size, stride, padding", CASES)
def test_products_equal_the_ordinary_convolution_in_values_and_gradients(
    height, width, channels, out, size, stride, padding
):
    x = jax.random.normal(jax.random.key(0), (3, height, width, channels))
    kernel = jax.random.normal(jax.random.key(1), (size, size, channels, out)) / np.sqrt(size * size * channels)
    ours = with_gradients(lambda x, k: convolution(x, k, stride=stride, padding=padding), x, kernel)
    theirs = with_gradients(lambda x, k: ordinary(x, k, stride, padding), x, kernel)
    for mine, reference in zip(ours, theirs):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4 * float(jnp.abs(reference).max()))


@pytest.mark.parametrize("batch", [1, 2, 7, 63, 64])
def test_the_gradient_of_the_kernel_is_right_for_any_batch_size(batch):
    x = jax.random.normal(jax.random.key(0), (batch, 9, 9, 8))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 8, 16))
    ours = with_gradients(lambda x, k: convolution(x, k), x, kernel)
    theirs = with_gradients(lambda x, k: ordinary(x, k, 1, "VALID"), x, kernel)
    for mine, reference in zip(ours, theirs):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4 * float(jnp.abs(reference).max()))


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("side, size, stride, padding", [(84, 8, 4, "VALID"), (86, 8, 4, "VALID"), (24, 3, 1, "SAME")])
def test_bytes_are_scaled_and_read_in_either_layout(channels_first, side, size, stride, padding):
    image = jax.random.randint(jax.random.key(0), (2, side, side, 4), 0, 256).astype(jnp.uint8)
    kernel = jax.random.normal(jax.random.key(1), (size, size, 4, 8))
    given = image.transpose(0, 3, 1, 2) if channels_first else image
    options = {"stride": stride, "scale": 1 / 255, "channels_first": channels_first, "padding": padding}
    ours = with_gradients(lambda k: image_convolution(given, k, **options), kernel)
    theirs = with_gradients(lambda k: ordinary(image / 255.0, k, stride, padding), kernel)
    for mine, reference in zip(ours, theirs):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4 * float(jnp.abs(reference).max()))


def test_a_cpu_uses_products_and_an_accelerator_the_ordinary_convolution(monkeypatch):
    def operations() -> str:
        return str(
            jax.make_jaxpr(lambda x, k: convolution(x, k, stride=2))(jnp.ones((1, 8, 8, 2)), jnp.ones((4, 4, 2, 3)))
        )

    assert "dot_general" in operations() and "conv_general_dilated" not in operations()
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    assert "conv_general_dilated" in operations()


def test_space_to_depth_gathers_each_block_into_one_pixel():
    x = jnp.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    blocks = space_to_depth(x, 2)
    assert blocks.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(blocks[1, 1, 2], x[1, 2:4, 4:6].reshape(-1))
    np.testing.assert_array_equal(space_to_depth(x.transpose(0, 3, 1, 2), 2, channels_first=True), blocks)


@pytest.mark.parametrize("side", [6, 7])
def test_max_pool_takes_the_largest_of_each_window_and_sends_the_gradient_there(side):
    x = jax.random.normal(jax.random.key(0), (2, side, side, 3))
    pooled = max_pool(x)
    padded = np.pad(np.asarray(x), ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=-np.inf)
    before = 0 if side % 2 == 0 else 1  # "SAME" puts the odd pixel after
    half = -(-side // 2)
    for i in range(half):
        for j in range(half):
            row, column = 2 * i + 1 - before, 2 * j + 1 - before
            window = padded[:, row : row + 3, column : column + 3]
            np.testing.assert_array_equal(pooled[:, i, j], window.max((1, 2)))
    gradient = jax.grad(lambda x: max_pool(x).sum())(x)
    assert float(gradient.sum()) == pytest.approx(pooled.size)
    assert not np.any(gradient[~np.isin(np.asarray(x), np.asarray(pooled))])
