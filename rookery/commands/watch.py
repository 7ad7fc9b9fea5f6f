"""`rookery watch`: see a policy play, in a window or in the terminal."""

from __future__ import annotations

import json

from rookery.commands.parsing import run_and_options


def watch(args: list[str]) -> int:
    from rookery.run.viewing import WatchOptions, watch_run

    run, options = run_and_options(args, WatchOptions, "rookery watch", "[options]")
    report = watch_run(
        run, which=options.which, episodes=options.episodes, fps=options.fps, stochastic=options.stochastic, seed=options.seed,
        view=options.view, where=options.where, root=options.runs, trust=options.trust,
    )  # fmt: skip
    if options.json:
        print(json.dumps(report))
        return 0
    for number, (total, length) in enumerate(zip(report["returns"], report["lengths"]), start=1) if report else ():
        print(f"episode {number}  return {total:.5g}  steps {length}")
    if report is None:
        print("no episode was played to its end")
    return 0
