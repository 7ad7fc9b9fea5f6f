"""The products and the ordinary convolution are one function of one kernel."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rookery.networks import convolution as module
from rookery.networks.convolution import convolution, image_convolution, inside_loop, max_pool, space_to_depth

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


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def with_gradients(function, *arguments):
    """The output, and the gradients of its product with fixed noise."""
    noise = normal(*jax.eval_shape(function, *arguments).shape, seed=7)

    @jax.jit  # everything here is jitted: operations on their own are compiled one by one
    def run(*arguments):
        out, pull = jax.vjp(function, *arguments)
        return out, *pull(noise)

    return run(*arguments)


def assert_same(ours, theirs):
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4 * float(np.abs(reference).max()))


@pytest.fixture(params=["straight", "loop"])
def place(request):
    """Both ways to compute a convolution on a CPU: in straight-line code, and as it is traced inside a loop."""
    with inside_loop() if request.param == "loop" else nullcontext():
        yield


@pytest.mark.parametrize("height, width, channels, out, size, stride, padding", CASES)
def test_either_way_equals_the_ordinary_convolution_in_values_and_gradients(
    place, height, width, channels, out, size, stride, padding
):
    x = normal(3, height, width, channels)
    kernel = normal(size, size, channels, out, seed=1)
    ours = with_gradients(lambda x, k: convolution(x, k, stride=stride, padding=padding), x, kernel)
    theirs = with_gradients(lambda x, k: ordinary(x, k, stride, padding), x, kernel)
    assert_same(ours, theirs)


@pytest.mark.parametrize("batch", [1, 2, 7, 63, 64])
def test_the_gradient_of_the_kernel_is_right_for_any_batch_size(place, batch):
    x = normal(batch, 9, 9, 8)
    kernel = normal(3, 3, 8, 16, seed=1)
    ours = with_gradients(lambda x, k: convolution(x, k), x, kernel)
    theirs = with_gradients(lambda x, k: ordinary(x, k, 1, "VALID"), x, kernel)
    assert_same(ours, theirs)


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("side, size, stride, padding", [(84, 8, 4, "VALID"), (86, 8, 4, "VALID"), (24, 3, 1, "SAME")])
def test_bytes_are_scaled_and_read_in_either_layout(place, channels_first, side, size, stride, padding):
    image = np.random.default_rng(0).integers(0, 256, (2, side, side, 4), dtype=np.uint8)
    kernel = normal(size, size, 4, 8, seed=1)
    given = image.transpose(0, 3, 1, 2) if channels_first else image
    options = {"stride": stride, "scale": 1 / 255, "channels_first": channels_first, "padding": padding}
    ours = with_gradients(lambda k: image_convolution(given, k, **options), kernel)
    theirs = with_gradients(lambda k: ordinary(image / 255.0, k, stride, padding), kernel)
    assert_same(ours, theirs)


def test_a_loop_on_a_cpu_uses_products_and_one_on_an_accelerator_the_ordinary_convolution(monkeypatch):
    def operations() -> str:
        with inside_loop():
            program = jax.make_jaxpr(lambda x, k: convolution(x, k, stride=2))
            return str(program(jnp.ones((1, 8, 8, 2)), jnp.ones((4, 4, 2, 3))))

    assert "dot_general" in operations() and "conv_general_dilated" not in operations()
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    assert "conv_general_dilated" in operations()


def test_space_to_depth_gathers_each_block_into_one_pixel():
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    blocks = space_to_depth(x, 2)
    assert blocks.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(blocks[1, 1, 2], x[1, 2:4, 4:6].reshape(-1))
    np.testing.assert_array_equal(space_to_depth(x.transpose(0, 3, 1, 2), 2, channels_first=True), blocks)


@pytest.mark.parametrize("side", [6, 7])
def test_max_pool_takes_the_largest_of_each_window_and_sends_the_gradient_there(side):
    x = normal(2, side, side, 3)
    pooled = np.asarray(jax.jit(max_pool)(x))
    padded = np.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=-np.inf)
    before = 0 if side % 2 == 0 else 1  # "SAME" puts the odd pixel after
    half = -(-side // 2)
    for i in range(half):
        for j in range(half):
            row, column = 2 * i + 1 - before, 2 * j + 1 - before
            window = padded[:, row : row + 3, column : column + 3]
            np.testing.assert_array_equal(pooled[:, i, j], window.max((1, 2)))
    gradient = np.asarray(jax.jit(jax.grad(lambda x: max_pool(x).sum()))(x))
    assert float(gradient.sum()) == pytest.approx(pooled.size)
    assert not np.any(gradient[~np.isin(x, pooled)])


def test_a_loop_is_traced_as_products_and_straight_code_as_a_convolution():
    x, kernel = normal(2, 9, 9, 4), normal(3, 3, 4, 8)
    straight = str(jax.make_jaxpr(convolution)(x, kernel))
    with inside_loop():
        looped = str(jax.make_jaxpr(lambda x, k: convolution(x, k))(x, kernel))
    assert "conv_general_dilated" in straight and "conv_general_dilated" not in looped and "dot_general" in looped
