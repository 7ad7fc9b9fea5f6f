"""The `rookery` command.

    rookery train impala --env CartPole-v1
    rookery eval RUN
"""

from __future__ import annotations

import io
import os
import sys

from rookery import signals
from rookery.commands import COMMANDS

TYPE_CHECKING = False
if TYPE_CHECKING:  # until signals are watched, Python answers them with a traceback: what takes time is imported later
    from collections.abc import Sequence

USAGE = """\
rookery: distributed reinforcement learning

  rookery train SYSTEM --env ID [options]    train an agent      (rookery train ppo --env CartPole-v1 --help)
  rookery resume RUN [options]               continue a run from its newest checkpoint
  rookery eval RUN [--which best|last|N]     play the policy of a run or a checkpoint, and report its returns
  rookery watch RUN [options]                see it play, in a window or in the terminal
  rookery video RUN [--out FILE] [options]   write it playing to a file (.mp4 or .gif)
  rookery record RUN --out FILE [options]    play it and keep the episodes, as demonstrations
  rookery plot RUN... [--x seconds]          learning curves of runs, with intervals over seeds
  rookery compare GROUP GROUP...             which is better, and how sure that is
  rookery show SYSTEM [--env ID] [options]   the figure of a system, with counts and bytes
  rookery config show|diff|check             the options of a run, where they come from, what is wrong with them
  rookery list systems | matrix | envs | runs
                                             what there is
  rookery doctor [ENV]                       what is right and wrong with this machine, or with an environment
  rookery bench NAME [options]               measure           (rookery bench --help)

Every command takes --json: one JSON line at the end instead of the display.
First steps:  rookery train impala --env CartPole-v1
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and leave with its status: 0 done, 2 bad request, 3 environment, 4 diverged, 5 checkpoint, 6 disk,
    7 collectors or cluster lost, 130 and 143 after SIGINT and SIGTERM."""
    signals.watch()
    open_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None and args[:1] in (["train"], ["resume"]):
        from rookery.run import supervisor

        if supervisor.wanted(args):
            sys.exit(supervisor.supervise())
    try:
        status = command(args)
    finally:
        signals.hold()
    sys.exit(status)


def command(args: list[str]) -> int:
    if args[:1] == ["help"] and len(args) > 1:  # `rookery help train`
        args = [*args[1:], "--help"]
    if not args or args[0] in ("-h", "--help", "help"):
        from rookery.run.two_columns import fitted

        print(fitted(USAGE), end="")
        return 0
    if args[0] in ("--version", "version"):
        from rookery.run.versions import rookery_version

        print(rookery_version())
        return 0
    from rookery.commands.parsing import fail, nearest

    if args[0] not in COMMANDS:
        fail(f"there is no command {args[0]!r}.{nearest(args[0], list(COMMANDS))} `rookery --help` lists them.")
    import importlib
    import warnings

    warnings.showwarning = lambda message, *_: print(f"rookery: {message}", file=sys.stderr)
    try:
        module, function = COMMANDS[args[0]].split(":")
        status = getattr(importlib.import_module(f"rookery.commands.{module}"), function)(args[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `rookery list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except KeyboardInterrupt:  # raised by a bench, which answers signals itself
        status = 130
    except Exception as error:
        from rookery.commands.status import status_of

        status = status_of(error)
        if status == 1:
            raise
        fail(str(error), status)
    return status


def open_streams() -> None:
    """Make standard streams safe to write to: characters that a stream cannot encode become `?`, and one that is closed
    (`>&-`) becomes /dev/null, else the next file to be opened would take its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or a notebook put in its place
            stream.reconfigure(errors="replace")
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or open(0), sys.stdout or open(1, "w"), sys.stderr or open(2, "w")  # noqa: SIM115


if __name__ == "__main__":
    main()
