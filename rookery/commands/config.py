"""`rookery config`: what a run would be asked to do, and why; what differs between two of them; what is wrong with a file."""

from __future__ import annotations

import json

from rookery.commands.parsing import base_of, fail, nearest, peek

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = """\
rookery config: the options of a run, before it is one

  rookery config show SYSTEM --env ID [options]   every option with its value, and where that comes from
      --config FILE            a file of options, or a run, under what is typed
      --only preset,file,...   those alone that come from there: default, system, preset, file, command-line, derived
      --format toml|json       a file that --config reads back to the same config
  rookery config diff A B [--env ID]              what differs; each a run, a file or a system
  rookery config check FILE|RUN                   all that is wrong with it; status 0: nothing, 2: something

Every command takes --json.
"""
ACTIONS = ("show", "diff", "check")


def config(args: list[str]) -> int:
    if {"-h", "--help"} & set(args) or not args:
        print(USAGE, end="")
        return 0
    if args[0] not in ACTIONS:
        fail(f"config what? rookery config show | diff | check.{nearest(args[0], ACTIONS)}")
    return {"show": show, "diff": diff, "check": check}[args[0]](args[1:])


def show(args: list[str]) -> int:
    form, args = _taken(args, "--format", ("toml", "json"))
    only, args = _taken(args, "--only")
    base, file, words = base_of("config show", args)
    from rookery.run import config_files, options, origins
    from rookery.run.flags import FileFlags

    cfg, flags = options.parse("rookery config show", words, base, FileFlags)
    if form is not None:
        print(config_files.dump(cfg, form), end="")
        return 0
    wanted = origins.KINDS if only is None else tuple(only.split(","))
    for kind in wanted:
        if kind not in origins.KINDS:
            fail(f"--only {kind}: one or several of {', '.join(origins.KINDS)}.{nearest(kind, origins.KINDS)}")
    found = [option for option in origins.options(cfg, file, words) if option.kind in wanted]
    if flags["json"]:
        print(json.dumps([option._asdict() for option in found]))
        return 0
    print(f"{cfg.system} on {cfg.env_name}, {type(cfg.topology).__name__}\n")
    print(origins.listed(found) if found else f"no option comes from {' or '.join(wanted)}")
    return 0


def diff(args: list[str]) -> int:
    env, rest = _taken(args, "--env")
    root, rest = _taken(rest, "--runs")
    sides = [word for word in rest if word != "--json"]
    if len(sides) != 2 or any(word.startswith("-") for word in sides):
        fail("which two? rookery config diff A B [--env ID]: each a run, a file or a system")
    from rookery.run import origins

    found = origins.differences(*(_of_any(side, env, root or "runs") for side in sides))
    if "--json" in rest:
        print(json.dumps([dict(zip(("option", "a", "b"), row)) for row in found]))
        return 0
    if not found:
        print(f"{sides[0]} and {sides[1]} say the same")
        return 0
    rows = [("option", *sides), *((name.replace("_", "-"), one, other) for name, one, other in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    print("\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows))
    return 0


def check(args: list[str]) -> int:
    root, rest = _taken(args, "--runs")
    env, rest = _taken(rest, "--env")
    words = [word for word in rest if word != "--json"]
    if len(words) != 1 or words[0].startswith("-"):
        fail("check what? rookery config check FILE|RUN")
    from rookery.run import config_files, startup
    from rookery.run.assemble import assemble, shown_to

    startup.prepare()
    try:
        cfg = config_files.read(words[0], root or "runs").resolve(env=env).settled()
        shown_to(cfg, assemble(cfg).spec)
    except Exception as error:
        from rookery.commands.status import status_of

        if "--json" not in rest or status_of(error) == 1:
            raise
        print(json.dumps({"fine": False, "wrong": str(error).splitlines()}))
        return status_of(error)
    told = {"fine": True, "system": cfg.system, "env": cfg.env_name, "topology": type(cfg.topology).__name__}
    print(json.dumps(told) if "--json" in rest else f"{words[0]} is fine: {cfg.system} on {cfg.env_name}")
    return 0


def _of_any(name: str, env: str | None, root: str) -> dict[str, Any]:
    """Read the config of a run, a file or a system, as `Config.to_dict` writes it. A run is read as it is: nothing is made."""
    from pathlib import Path

    from rookery import systems
    from rookery.run import config, config_files
    from rookery.run.directory import Run, RunError
    from rookery.run.resuming import config_of

    if Path(name).is_file():
        return config_files.read(name).resolve(env=env).to_dict()
    try:
        return config_of(Run.open(name, root))
    except RunError:
        try:
            entry = systems.system(name, env)
        except systems.UnknownSystem:
            entry = None
        if entry is None:
            raise
    return config.resolve(entry.name, env=env or "CartPole-v1").to_dict()


def _taken(args: list[str], flag: str, choices: tuple[str, ...] = ()) -> tuple[str | None, list[str]]:
    """Take a flag with its value out of the words."""
    value, rest = peek(args, flag), []
    words = iter(args)
    for word in words:
        if word == flag:
            next(words, None)
        elif not word.startswith(f"{flag}="):
            rest.append(word)
    if value is None and flag in args:
        fail(f"{flag} takes a value{': ' + ' or '.join(choices) if choices else ''}")
    if value is not None and choices and value not in choices:
        fail(f"{flag} {value}: {' or '.join(choices)}.{nearest(value, choices)}")
    return value, rest

