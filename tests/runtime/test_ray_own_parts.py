"""Parts that are named by files reach actors, which have no such files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
from own_files import GRID, NETWORK, forgotten, write

from rookery import Trainer

pytestmark = pytest.mark.usefixtures("cluster")
ALGORITHM = "from dataclasses import dataclass\n\nfrom rookery.algorithms.a2c import A2C\n\n\n" + (
    "@dataclass(frozen=True, kw_only=True)\nclass Mine(A2C):\n    rollout_length: int = 4\n"
)


def test_files_travel_to_actors_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, grid_ray=GRID, net_ray=NETWORK, mine_ray=ALGORITHM)
    with forgotten():
        parts = {"env": "grid_ray.py:GridEnv", "torso": "net_ray.py:small"}
        with Trainer("mine_ray.py:Mine", **parts, num_envs=4, runtime="ray", eval_episodes=0, env_processes=0) as trainer:
            for path in tmp_path.glob("*.py"):
                path.unlink()
            while trainer.advance().updates < 2:
                pass
            assert trainer.progress.env_steps >= 16 and trainer.metrics()["env"] == "GridEnv"
