"""`--strict-security` refuses what others could use (faults 31, 32); the cluster without a token is in test_ray_runtime.py."""

from __future__ import annotations

import pytest

from rookery.run import config
from rookery.run.assemble import assemble

OPTIONS = {"env": "catch", "num_envs": 8, "network": {"hidden": (4,)}}


@pytest.mark.parametrize("learners", [None, 1])
def test_one_learner_opens_no_port_and_is_allowed(learners: int | None) -> None:
    assemble(config.resolve("a2c", strict_security=True, learners=learners, **OPTIONS))


def test_learners_that_meet_at_an_open_port_are_refused() -> None:
    assemble(config.resolve("a2c", learners=2, **OPTIONS))
    with pytest.raises(config.ConfigError, match=r"--learners 2 with --strict-security: .* asks nobody for a token"):
        assemble(config.resolve("a2c", strict_security=True, learners=2, **OPTIONS))
