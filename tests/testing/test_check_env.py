"""check_env and check_pool pass pools that keep their contracts, and name what is wrong with those that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.testing import ContractBroken, ScriptedPool, check_env, check_pool
from rookery.types import Episode, TimeStep


@pytest.mark.parametrize("env", ["CartPole-v1", "catch", "truncating", "jax:catch", "Pendulum-v1"])
def test_an_environment_of_ours_passes(env: str) -> None:
    check_env(env, steps=210)


@pytest.mark.parametrize("savable", [True, False])
def test_the_scripted_pool_passes(savable: bool) -> None:
    check_pool(lambda num_envs, groups: ScriptedPool(num_envs, groups, savable=savable), steps=40)


class Broken(ScriptedPool):
    """A scripted pool with one fault."""

    made = 0

    def __init__(self, num_envs: int, groups: int, fault: str) -> None:
        super().__init__(num_envs, groups)
        self.fault = fault
        Broken.made += 1
        self._number, self._answered = Broken.made, 0
        if fault == "fewer":
            self.num_envs -= 1
        if fault == "groups":
            self.groups = (slice(0, num_envs),)

    def recv(self, group: int = 0) -> TimeStep:
        step = super().recv(group)
        self._answered += 1
        changed: dict[str, Any] = {
            "wide": {"observation": step.observation[:, :2]},
            "double": {"observation": step.observation.astype(np.float64)},
            "reward type": {"reward": step.reward.astype(np.float64)},
            "reward": {"reward": np.where(self._answered == 7, np.nan, step.reward).astype(np.float32)},
            "first": {"first": np.zeros_like(step.first)},
            "reset reward": {"reward": np.where(step.first, 1, step.reward).astype(np.float32)},
            "ids": {"env_ids": step.env_ids + 1},
            "seed": {"observation": step.observation + np.float32(self._number)},
        }.get(self.fault, {})
        return step._replace(**changed)

    def take_episodes(self) -> list[Episode]:
        episodes = super().take_episodes()
        if self.fault == "episodes":
            return episodes[1:]
        return [e._replace(length=e.length + 1) for e in episodes] if self.fault == "lengths" else episodes

    def restore(self, snapshot: Any) -> TimeStep:
        if self.fault == "restore":
            snapshot = snapshot | {"slots": np.zeros_like(snapshot["slots"])}
        return super().restore(snapshot)

    def rebuild(self, env_id: int) -> None:
        if self.fault != "rebuild":
            super().rebuild(env_id)


BROKEN = {
    "fewer": "num_envs is 3, 4 were asked for",
    "groups": "there are 1 groups, 2 were asked for",
    "wide": r"an observation is float32\[4, 2\], the spec says float32\[4, 3\]",
    "double": "an observation is float64",
    "reward type": r"step 1: reward is float64\[4\], not float32\[4\]",
    "reward": "step 7: a reward is not finite",
    "first": "autoreset is not next-step",
    "reset reward": "autoreset is not next-step",
    "ids": "env_ids are",
    "seed": "gave something else the second time",
    "episodes": r"take_episodes\(\) gives \d+ episodes",
    "lengths": "has no episode of",
    "restore": "does not continue as if never stopped",
    "rebuild": r"rebuild\(\d\): the next answer",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_pool_that_breaks_a_contract_is_told_which(fault: str) -> None:
    with pytest.raises(ContractBroken, match=BROKEN[fault]):
        check_pool(lambda num_envs, groups: Broken(num_envs, groups, fault), steps=40)


def test_too_few_steps_for_an_end_are_no_proof() -> None:
    with pytest.raises(ContractBroken, match="no episode ended in 3 steps"):
        check_env("Pendulum-v1", steps=3)
