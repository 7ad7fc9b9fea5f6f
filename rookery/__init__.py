"""Rookery: distributed reinforcement learning. Choose the algorithm, the topology and the runtime independently.

    result = rookery.train("ppo", env="CartPole-v1")
    action, memory = result.policy(observation, None)

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes a third of the time until the command can watch for signals
    from typing import Any

    from rookery.run import demonstrations as demonstrations
    from rookery.run.api import load as load
    from rookery.run.api import resume as resume
    from rookery.run.callbacks import STOP as STOP
    from rookery.run.seeds import train_seeds as train_seeds
    from rookery.run.standing import Result as Result
    from rookery.run.typed import Trainer as Trainer  # those of run/trainer.py and run/api.py, with their options as types
    from rookery.run.typed import train as train

__version__ = "0.1.0"
# docs/public_api.md has a line for each
__all__ = ["STOP", "Result", "Trainer", "__version__", "demonstrations", "load", "resume", "train", "train_seeds"]

_LAZY = {
    "train": "rookery.run.api",
    "train_seeds": "rookery.run.seeds",
    "load": "rookery.run.api",
    "resume": "rookery.run.api",
    "Trainer": "rookery.run.trainer",
    "Result": "rookery.run.standing",
    "STOP": "rookery.run.callbacks",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "demonstrations":
        return importlib.import_module("rookery.run.demonstrations")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rookery' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, those that are imported late among them."""
    return sorted(__all__)
