"""A worker of `rookery train --seeds`: trains what it is told to, one seed after the other, and answers how each ended.

It reads a line of JSON for each, the words that follow `rookery train`, and writes one: its status, and its metrics or error.
"""

from __future__ import annotations

from rookery import signals

if __name__ == "__main__":  # before anything that takes time
    signals.watch()

import contextlib
import io
import json
import os
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1


def answer(words: list[str]) -> dict[str, Any]:
    """Train one seed to its end, or go on with it; report how it ended."""
    from rookery.commands.parsing import parse_system
    from rookery.commands.status import status_of
    from rookery.commands.train import train_one

    out, err, began = io.StringIO(), io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cfg, _ = parse_system("train", words)
            status = train_one(cfg, auto=True, as_json=True, began=began)
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
        except Exception as error:
            status = status_of(error)
            if status == 1:
                import traceback

                traceback.print_exc()
            else:
                print(f"rookery: {error}", file=sys.stderr)
    lines = out.getvalue().strip().splitlines()
    metrics = json.loads(lines[-1]) if lines and (status == 0 or status > 128) else {}
    return {"status": status, "metrics": metrics, "error": err.getvalue()}


def end_with_parent() -> None:
    """Save and end where the process that asks for seeds is gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    for line in sys.stdin:
        told = answer(json.loads(line))
        print(json.dumps(told), file=replies, flush=True)
        if told["status"] > 128:
            signals.hold()
            os._exit(told["status"])


if __name__ == "__main__":
    main()
