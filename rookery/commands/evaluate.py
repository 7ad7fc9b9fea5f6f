"""`rookery eval`: play the policy of a run, and report its returns."""

from __future__ import annotations

import json

from rookery.commands.parsing import run_and_options


def evaluate(args: list[str]) -> int:
    from rookery.run.options import EvalOptions

    run, options = run_and_options(args, EvalOptions, "rookery eval", "[options]")
    if options.render:
        from rookery.run.viewing import watch_run

        report = watch_run(
            run, which=options.which, episodes=options.episodes, stochastic=options.stochastic, seed=options.seed,
            root=options.runs, trust=options.trust, how="eval --render",
        )  # fmt: skip
        if report is None:
            print("null" if options.json else "no episode was played to its end")
            return 0
    else:
        from rookery.run.api import evaluate_run

        report = evaluate_run(
            run, which=options.which, episodes=options.episodes, seed=options.seed, root=options.runs,
            stochastic=options.stochastic, trust=options.trust,
        )  # fmt: skip
    if options.json:
        print(json.dumps(report))
        return 0
    from rookery.run.playing import in_words

    print(in_words(report))
    return 0
