"""Every test runs with the flags that a run sets, and shares one compilation cache with the others.

LLVM does not optimise what XLA gives it: the programs are the same, and most of a suite's time is compiling programs that run
for a second. Whoever sets that flag, or clears it by --xla_backend_optimization_level=3, is obeyed.
"""

import os
from typing import Any

import pytest

from rookery.run import startup

if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
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
