"""An EnvHost: environments on their own, for a policy that lives elsewhere (central inference).

It steps what it is told to step and answers with what came of it; it knows neither agent nor parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rookery.envs import EnvironmentFailed, Restarts
from rookery.trees import tree_map
from rookery.types import EnvPool, Episode, PyTree, TimeStep


class HostStep(NamedTuple):
    """The answer of one group, in the numbering of its host. `failure` instead of `step`: rebuild() comes next."""

    step: TimeStep | None
    episodes: list[Episode]
    failure: EnvironmentFailed | None = None


class EnvHost:
    def __init__(self, make_pool: Callable[[], EnvPool], *, env_restarts: int = 10) -> None:
        self._pool = make_pool()
        self._env_restarts = env_restarts

    def reset(self, seed: int) -> TimeStep:
        """Reset every environment of the host; what fails meanwhile is rebuilt here."""
        return Restarts(self._pool, allowed=self._env_restarts).reset(seed)

    def step(self, group: int, action: PyTree) -> HostStep:
        self._pool.send(tree_map(np.asarray, action), group)  # it may have come as an array of a device
        return self._receive(group)

    def rebuild(self, env_id: int, group: int) -> HostStep:
        """Replace the environment in that slot. -> the answer of the group that waited for it."""
        self._pool.rebuild(env_id)
        return self._receive(group)

    def _receive(self, group: int) -> HostStep:
        try:
            return HostStep(self._pool.recv(group), self._pool.take_episodes())
        except EnvironmentFailed as error:  # an answer like any other: what is raised here would end the run
            return HostStep(None, self._pool.take_episodes(), error)

    def close(self) -> None:
        self._pool.close()
