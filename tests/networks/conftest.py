import jax
import pytest


@pytest.fixture(autouse=True)
def no_silent_broadcasts():
    with jax.numpy_rank_promotion("raise"):
        yield
