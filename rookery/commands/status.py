"""Exit statuses: 0 done, 1 a bug of ours, 2 bad request, 3 environment, 4 diverged, 5 checkpoint, 6 disk, 7 cluster lost."""

from __future__ import annotations

BAD_CONFIG, ENV_FAILED, DIVERGED = 2, 3, 4


def status_of(error: Exception) -> int:
    """Return the exit status of an error that is the user's to mend; 1 for one that is ours."""
    from rookery import systems
    from rookery.envs import EnvironmentFailed, UnknownEnvironment
    from rookery.spaces import UnsupportedSpace

    if isinstance(error, (UnknownEnvironment, UnsupportedSpace, systems.UnknownSystem)):
        return BAD_CONFIG
    if isinstance(error, EnvironmentFailed):
        return ENV_FAILED
    return getattr(error, "exit_code", 1)
