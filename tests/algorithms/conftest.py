from collections.abc import Iterator

import pytest

from rookery.run import startup

startup.prepare()  # before jax: the flags and the compilation cache of a real run

import jax  # noqa: E402
import numpy as np  # noqa: E402


@pytest.fixture(autouse=True)
def no_silent_rank_promotion() -> Iterator[None]:
    """[T, B] + [B] is how a batch axis is mistaken for a time axis: every loss here must work when it is an error."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)
