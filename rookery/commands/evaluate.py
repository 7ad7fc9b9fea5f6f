"""`rookery eval`: play the greedy policy of a run."""

from __future__ import annotations

import json

from rookery.commands.parsing import run_and_options


def evaluate(args: list[str]) -> int:
    from rookery.run.options import EvalOptions

    run, options = run_and_options(args, EvalOptions, "rookery eval", "[options]")
    from rookery.run.api import evaluate_run

    report = evaluate_run(
        run, which=options.which, episodes=options.episodes, seed=options.seed, root=options.runs, trust=options.trust
    )
    if options.json:
        print(json.dumps(report))
        return 0
    low, high = min(report["returns"]), max(report["returns"])
    print(f"{report['run']}  {report['system']} on {report['env']}, checkpoint {report['checkpoint']}: "
          f"{report['env_steps']:,} steps trained")
    print(f"eval_return_mean {report['eval_return_mean']:.1f} over {report['episodes']} greedy episodes "
          f"(from {low:.1f} to {high:.1f}, mean length {report['length_mean']:.0f}, {report['seconds']:.1f} s)")
    return 0
