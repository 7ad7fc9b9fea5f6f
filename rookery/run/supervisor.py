"""A run on Ray has a parent that outlives it: Ray ends the process that drives a run when its raylet is lost, unsaid.

    rookery train impala --runtime ray ──the same command──▶ the driver, in a process group of its own
        waits, passes signals on            ◀──its run, by a pipe; how it ended, by its status──┘

No thread of the driver can prevent it: Ray's store has left with `_exit(1)` before the kernel says that the raylet is dead. So
whoever typed the command waits for a small process, which says what was lost, writes result.json and leaves with status 7.
The driver is killed when it is; one that ends by itself has said everything, and its status is passed on.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery import signals

CHILD = "ROOKERY_SUPERVISED"  # in the environment of the driver: the pipe to its supervisor
PR_SET_PDEATHSIG = 1
CLUSTER_LOST = 7


def wanted(args: Sequence[str]) -> bool:
    """Return whether this is a run on Ray without a supervisor. Decided before anything heavy is imported."""
    if sys.platform != "linux" or os.environ.get(CHILD) or {"-h", "--help"} & {*args}:
        return False
    if args[:1] not in (["train"], ["resume"]):
        return False
    runtime = _value(args, "--runtime")
    if runtime is None and args[0] == "resume" and len(args) > 1:
        runtime = _saved_runtime(args[1], _value(args, "--runs") or "runs")
    return runtime == "ray"


def supervise() -> int:
    """Run this very command again as a child, to its end; return the status to leave with."""
    mine, theirs = os.pipe()
    with signals.Shielded():  # an interpreter that is starting would answer what is passed on with a traceback
        child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]], env=os.environ | {CHILD: str(theirs)}, pass_fds=(theirs,), process_group=0,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
    os.close(theirs)
    with signals.Shielded():  # until now a signal ended this process, and the driver with it; from now on the driver decides
        signals.unwatch()
        for number in signals.NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup: it stays ignored
                signal.signal(number, lambda number, frame: child.send_signal(number))
    status = child.wait()
    with os.fdopen(mine) as pipe:
        told = pipe.read().splitlines()
    if not told or status == 0 or _has_result(told):
        return status if status >= 0 else 128 - status
    return _tell_loss(Path(told[0]), status)


def tell(run: Path) -> None:
    """Tell the supervisor, if there is one, which run the driver works on, and how result.json stands now."""
    if pipe := os.environ.get(CHILD):
        os.write(int(pipe), f"{run.absolute()}\n{_written(run)}\n".encode())


def _has_result(told: Sequence[str]) -> bool:
    """Return whether the driver itself has written how it ended."""
    return str(_written(Path(told[0]))) != told[1]


def _written(run: Path) -> int:
    try:
        return (run / "result.json").stat().st_mtime_ns
    except OSError:
        return 0


def _tell_loss(path: Path, status: int) -> int:
    """Report the loss of the cluster in place of a driver that could not."""
    from rookery.run import checkpoint
    from rookery.run.directory import Run, run_argument

    how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
    reason = f"the process that drives the run was ended ({how}), as Ray does when the raylet of its machine is lost"
    run = Run.open(path)
    run.write_result("failed", {"run": str(path), "reason": f"ClusterLost: {reason}"})
    last = checkpoint.newest(run.checkpoints)[0]
    go_on = f"Last good checkpoint: {last}. Go on with: rookery resume {run_argument(run.name, os.path.relpath(path))}"
    print(f"rookery: {reason}.\n{go_on if last else 'There was no checkpoint yet.'}", file=sys.stderr)
    return CLUSTER_LOST


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _value(args: Sequence[str], flag: str) -> str | None:
    for word, following in zip(args, [*args[1:], None]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _saved_runtime(run: str, root: str) -> str | None:
    """Read the runtime of a run, by its path or name, or the path of a checkpoint; None where that cannot be read here."""
    places = (Path(run), Path(root) / run, Path(run).parent.parent)
    for place in places:
        try:
            saved: Any = json.loads((place / "config.json").read_text())
            return str(saved["config"]["run"]["runtime"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
