from collections.abc import Iterator

import jax
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def no_silent_rank_promotion() -> Iterator[None]:
    """[T, B] + [B] is how a batch axis is mistaken for a time axis: every loss here must work when it is an error."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)
