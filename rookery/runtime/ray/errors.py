"""Ray's errors in our words: what a worker raised comes out as it was raised, everything that means "gone" is a WorkerLost."""

from __future__ import annotations

from ray import exceptions

from rookery.runtime.interface import ArgumentLost, WorkerLost
from rookery.runtime.remote_error import RemoteError

LOST = (
    exceptions.RayActorError, exceptions.ActorUnschedulableError, exceptions.ObjectLostError, exceptions.NodeDiedError,
    exceptions.WorkerCrashedError, exceptions.OutOfMemoryError, exceptions.RaySystemError,
)  # fmt: skip


class ClusterLost(WorkerLost):
    """The head of the cluster is gone, and nothing can be started or ended without it."""


class InsecureCluster(UserWarning):
    """Whoever reaches this cluster can run code in it."""


def translated(error: BaseException, name: str) -> BaseException:
    """Translate Ray's errors: to what a worker raised, as it raised it, or to WorkerLost."""
    if isinstance(error, exceptions.RayTaskError):
        if isinstance(error.cause, RemoteError):
            return error.cause.unpacked(f"{name}, a Ray actor")
        if isinstance(error.cause, exceptions.ObjectLostError):  # of an argument: the task itself was begun
            return ArgumentLost(f"what {name} was to be given is gone: {str(error.cause).splitlines()[0]}")
        if isinstance(error.cause, BaseException):
            error.cause.add_note(f"in {name}, a Ray actor:\n{error}")
            return error.cause
    if isinstance(error, LOST):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = [line for line in lines if not line.startswith(("class_name", "actor_id", "namespace"))]
        return WorkerLost(f"{name} is gone ({type(error).__name__}): {' '.join(words)[:400]}")
    return error

