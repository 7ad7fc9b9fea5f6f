"""What commands share of reading words: a system with its options, a run with its options, and how bad words are refused."""

from __future__ import annotations

import sys

from rookery.commands.status import BAD_CONFIG

TYPE_CHECKING = False
if TYPE_CHECKING:  # imported before anything is known to be needed
    from collections.abc import Sequence
    from typing import Any, NoReturn



def fail(message: str, status: int = BAD_CONFIG) -> NoReturn:
    print(f"rookery: {message}", file=sys.stderr)
    sys.exit(status)


def nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def parse_system(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, dict[str, bool]]:
    """Parse `SYSTEM --env ID [options]`: the resolved config, and the flags that are no part of it."""
    from rookery import systems

    if not args or args[0].startswith("-"):
        from rookery.run.two_columns import fitted

        names = "\n".join(f"  {s.name:<16}{s.summary} ({s.paper})" for s in systems.SYSTEMS.values())
        asked = bool({"-h", "--help"} & set(args))
        text = f"usage: rookery {command} SYSTEM --env ID [options]\n\nsystems:\n{names}\n\n"
        text += f"rookery {command} SYSTEM --env ID --help lists the options with their values for that environment."
        print(fitted(text), file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else BAD_CONFIG)
    systems.system(args[0])
    env = peek(args, "--env") or env_default
    if env is None and not {"-h", "--help"} & set(args):
        fail(f"which environment? rookery {command} {args[0]} --env ID (rookery list envs shows some)")
    topology = peek(args, "--topology")
    if {"-h", "--help"} & set(args):
        from rookery.run import help_page

        if (page := help_page.of_system(f"rookery {command} {args[0]}", args[0], env or "CartPole-v1", topology)) is not None:
            print(page)
            sys.exit(0)
    other = systems.topology_named(topology)() if topology is not None else None
    from rookery.run import config, options, startup

    startup.prepare()
    base = config.resolve(args[0], env=env or "CartPole-v1", topology=other)
    return options.parse(f"rookery {command} {args[0]}", args[1:], base)


def peek(args: Sequence[str], flag: str) -> str | None:
    """Read the value of a flag before the rest can be parsed."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def run_and_options(args: list[str], kind: Any, command: str, usage: str) -> tuple[str, Any]:
    """Parse `COMMAND RUN [options]`: the run as it was typed, and the options, a `kind`."""
    if not args or (args[0].startswith("-") and not {"-h", "--help"} & set(args)):
        fail(f"which run? {command} RUN {usage}: a run's name or path, or the path of a checkpoint")
    run = "" if args[0].startswith("-") else args[0]
    if {"-h", "--help"} & set(args):
        from rookery.run import help_page

        print(help_page.of_kind(f"{command} {run or 'RUN'}", kind))
        sys.exit(0)
    import tyro

    from rookery import ranges
    from rookery.run import config, options

    chosen = tyro.cli(kind, args=args[1:], prog=f"{command} {run}", registry=options.NUMBERS)
    config.refuse([*ranges.problems(chosen)])
    return run, chosen
