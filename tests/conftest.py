"""Every test runs with the flags that a run sets, and shares one compilation cache with the others.

But for two: most of a suite's time is compiling programs that run for a second, so LLVM does not optimise what XLA gives it,
and XLA writes loops in its older way, which compiles in half the time. A flag that is already set is obeyed.
"""

import os
import signal
import tempfile
from typing import Any

import pytest

from rookery.run import startup

QUICK = {"--xla_backend_optimization_level": "0", "--xla_cpu_use_fusion_emitters": "false"}
flags = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([flags, *(f"{flag}={value}" for flag, value in QUICK.items() if flag not in flags)]).strip()
startup.prepare()
state = tempfile.TemporaryDirectory(prefix="rookery-state-")
os.environ["XDG_STATE_HOME"] = state.name  # the key that signs configs is not the user's (rookery/run/trust.py)

# A shell ignores these for what it starts in the background, and what is ignored stays so (rookery/signals.py)
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


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
