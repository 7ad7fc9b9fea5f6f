"""`rookery list`: what there is."""

from __future__ import annotations

import json

from rookery.commands.parsing import fail, nearest, peek

LISTS = ("systems", "matrix", "envs", "runs")
USAGE = """\
usage: rookery list systems | matrix | envs | runs [--json] [--runs DIRECTORY]

  systems           algorithms on topologies that have a name, with their papers
  matrix            every algorithm on every topology: which can be trained
  envs              environments by id: ours, and those of what is installed
  runs              what was trained: steps, return, how it ended and when
  --json            One JSON line instead of the table.
  --runs DIRECTORY  runs: the directory that holds them. (default: runs)
  -h, --help        Show this page.
"""


def list_things(args: list[str]) -> int:
    if {"-h", "--help"} & set(args):
        from rookery.run.two_columns import fitted

        print(fitted(USAGE), end="")
        return 0
    from rookery.run import listing

    root, rest = peek(args, "--runs") or "runs", [word for word in args if word != "--json"]
    what = rest.pop(0) if rest else ""
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
        print(listing.table(rows, width=listing.terminal_width(), spare=listing.SPARE.get(what, ())))
        if what == "systems":
            print("\nAny algorithm on any topology that can drive it (--topology): rookery list matrix")
        if what == "matrix":
            print("\nalgorithm × topology, each on local and on ray: systems of that name, yes, or -: refused, with the reason")
    return 0
