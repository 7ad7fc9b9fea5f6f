"""Every test runs with the flags that a run sets, and shares one compilation cache with the others."""

from typing import Any

import pytest

from rookery.run import startup

startup.prepare()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules stay whole, and those on Ray together: one Ray is enough, and while its tests wait, the others can compute."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "on Ray" if "/test_ray_" in nodeid else super()._split_scope(nodeid)

    return Together(config, log)
