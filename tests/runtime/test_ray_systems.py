"""Every topology on Ray: the smallest runs, on one cluster; what lives in actors is what the topology says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from test_matrix import cell

from rookery.run.trainer import Trainer

pytestmark = pytest.mark.usefixtures("cluster")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("PPO", "Sync", {}),
    ("DQN", "ActorLearner", {}),  # its table is an actor, too
    ("VTrace", "ActorLearner", {"inference": "central", "collectors": 2}),
    ("A2C", "AsyncGradients", {"workers": 1}),
    ("DQN", "ParameterServer", {"workers": 1, "shards": 2}),
    ("A2C", "Gossip", {}),
    ("A2C", "Anakin", {}),
    ("ES", "Evolution", {}),
]


@pytest.mark.parametrize("algorithm, topology, options", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_topology_runs_on_ray(algorithm: str, topology: str, options: dict[str, Any], tmp_path: Any) -> None:
    config = cell(algorithm, topology, runtime="ray", runs=str(tmp_path), **options)
    with Trainer.from_config(config) as trainer:
        while (progress := trainer.advance()).updates < 2:
            assert trainer.seconds < 120
        assert progress.env_steps > 0
        assert set(progress.items) <= {edge.name for edge in trainer.plan.edges}
        used = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)
        assert used > 0 or not trainer.plan.fleets, "its workers are actors"
