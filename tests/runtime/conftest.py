"""One Ray for all tests here: it takes seconds to start. It ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A Ray of 8 counted cores, as `--runtime ray` starts one; runtimes that are made meanwhile use it."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
    import ray

    from rookery.runtime.ray import cluster as ray_cluster

    directory = ray_cluster.start(cpus=8)
    yield
    ray.shutdown()
    ray_cluster.remove(directory)
