"""`rookery list`: what there is."""

from __future__ import annotations

import json

from rookery.commands.parsing import fail, nearest, peek

LISTS = ("systems", "matrix", "envs", "runs")


def list_things(args: list[str]) -> int:
    from rookery.run import listing

    root, rest = peek(args, "--runs") or "runs", [word for word in args if word != "--json"]
    what = rest.pop(0) if rest else ""
    if what in ("-h", "--help"):
        print("usage: rookery list systems | matrix | envs | runs [--runs DIRECTORY] [--json]")
        return 0
    if what not in LISTS:
        fail(f"list what? rookery list systems | matrix | envs | runs.{nearest(what, LISTS)}")
    rest = [word for word in rest if not (what == "runs" and (word == root or word.startswith("--runs")))]
    if rest:
        fail(f"`rookery list {what}` takes no {rest[0]!r}.{nearest(rest[0], ['--json', '--runs'])}")
    rows = listing.runs(root) if what == "runs" else getattr(listing, what)()
    if "--json" in args:
        print(json.dumps(rows))
    elif not rows:
        print(f"no runs in {root}/ yet: rookery train ppo --env CartPole-v1 makes one")
    else:
        print(listing.table(rows, width=listing.terminal_width()))
        if what == "systems":
            print("\nAny algorithm on any topology that can drive it (--topology): rookery list matrix")
        if what == "matrix":
            print("\nalgorithm × topology, each on local and on ray: systems of that name, yes, or -: refused, with the reason")
    return 0
