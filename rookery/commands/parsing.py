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


def parse_system(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Parse `SYSTEM --env ID [options]`, or `--config FILE`: the resolved config, and what is no part of it (run/flags.py)."""
    base, _, words = base_of(command, args, env_default)
    from rookery.run import options

    return options.parse(f"rookery {command} {base.system}", words, base, taken_by(command))


def taken_by(command: str) -> type:
    """Return what a command takes beside the options of a config."""
    from rookery.run import flags

    return flags.TrainFlags if command == "train" else flags.FileFlags


def base_of(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, Any, list[str]]:
    """Resolve what stands before the options: the config of system, environment, parts and file; the file; the options."""
    from rookery import references, systems

    named = args[0] if args and not args[0].startswith("-") else None
    path, explained = peek(args, "--config"), bool({"-h", "--help"} & set(args))
    if named is None and path is None:
        from rookery.run.two_columns import fitted

        names = "\n".join(f"  {s.name:<16}{s.summary} ({s.paper})" for s in systems.SYSTEMS.values())
        text = f"usage: rookery {command} SYSTEM --env ID [options]\n\nsystems:\n{names}\n\n"
        text += f"rookery {command} SYSTEM --env ID --help lists the options with their values for that environment."
        print(fitted(text), file=sys.stdout if explained else sys.stderr)
        sys.exit(0 if explained else BAD_CONFIG)
    env, own = peek(args, "--env"), own_parts(args)
    known = None if named is None or references.is_reference(named) else systems.system(named, env)
    if known is not None and known.name != named:
        print(f"rookery: {named} is called {known.name} here", file=sys.stderr)
    if path is None and env is None and env_default is None and not explained:
        fail(f"which environment? rookery {command} {named} --env ID (rookery list envs shows some)")
    if explained and known is not None and path is None and not own.keys() - {"topology"}:
        from rookery.run import help_page

        prog, shown = f"rookery {command} {known.name}", env or env_default or "CartPole-v1"
        if (page := help_page.of_system(prog, known.name, shown, own.get("topology"), taken_by(command))) is not None:
            print(page)
            sys.exit(0)
    from rookery.run import config, config_files, startup

    startup.prepare()
    words = args[1:] if named is not None else args
    if path is None:
        core = peek(args, "--network.core")  # a default depends on it
        network = {"network": {"core": core}} if core in ("lstm", "gru") else {}
        return config.resolve(named, env=env or env_default or "CartPole-v1", **own, **network), config_files.NO_FILE, words
    file = config_files.read(path, peek(args, "--runs") or "runs")
    if env is None and file.env is None:
        env = env_default or ("CartPole-v1" if explained else None)
    return file.resolve(named, env, **own), file, words


def own_parts(args: Sequence[str]) -> dict[str, Any]:
    """Read the words that name parts of a run, before the rest can be parsed: their options depend on them."""
    found = {part: peek(args, f"--{flag}") for flag, part in (("algorithm",) * 2, ("topology",) * 2, ("network", "torso"))}
    return {part: name for part, name in found.items() if name is not None}


def peek(args: Sequence[str], flag: str) -> str | None:
    """Read the value of a flag, the last where there are several, before the rest can be parsed."""
    found = None
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            found = args[i + 1]
        if word.startswith(flag + "="):
            found = word.partition("=")[2]
    return found


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


def runs_and_options(args: list[str], kind: Any, command: str) -> Any:
    """Parse `COMMAND RUN... [options]`: a `kind`, whose field `run` has the runs as they were typed."""
    import tyro

    from rookery import ranges
    from rookery.run import config, options

    if {"-h", "--help"} & set(args):
        from rookery.run import help_page

        print(help_page.of_kind(command, kind))
        sys.exit(0)
    kind = tyro.conf.configure(tyro.conf.FlagCreatePairsOff)(kind)
    chosen = tyro.cli(kind, args=args, prog=command, registry=options.NUMBERS)
    if not chosen.run:
        fail(f"which runs? {command} RUN... (rookery list runs shows them, {command} --help explains)")
    config.refuse([*ranges.problems(chosen)])
    return chosen
