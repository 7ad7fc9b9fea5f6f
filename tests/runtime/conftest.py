"""One Ray for all tests here: it takes seconds to start. It ends with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("workers", "topologies"):  # engine_fakes and simulation
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A Ray of 8 counted cores, as `--runtime ray` starts one; runtimes that are made meanwhile use it."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
    import engine_fakes
    import ray
    import simulation
    from ray import cloudpickle

    from rookery.runtime.ray import cluster as ray_cluster

    for module in (engine_fakes, simulation):  # actors cannot import what only pytest finds
        cloudpickle.register_pickle_by_value(module)
    directory = ray_cluster.start(cpus=8)
    yield
    ray.shutdown()
    ray_cluster.remove(directory)
