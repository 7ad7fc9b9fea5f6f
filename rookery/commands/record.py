"""`rookery record`: play a run and keep the episodes."""

from __future__ import annotations

import json

from rookery.commands.parsing import run_and_options


def record(args: list[str]) -> int:
    from rookery.run.config import ConfigError
    from rookery.run.options import RecordOptions

    run, options = run_and_options(args, RecordOptions, "rookery record", "--out FILE [options]")
    if options.best is not None and options.best > options.episodes:
        raise ConfigError(
            f"--best {options.best}: no more can be kept than are played; lower it, or raise --episodes {options.episodes}"
        )
    from rookery.run.demonstrations import record as record_run

    report = record_run(
        run, which=options.which, episodes=options.episodes, out=options.out, best=options.best, seed=options.seed,
        root=options.runs, trust=options.trust,
    )  # fmt: skip
    if options.json:
        print(json.dumps(report))
        return 0
    low, high = min(report["returns"]), max(report["returns"])
    print(f"{report['out']}  {report['episodes']} episodes of {report['env']}, {report['steps']:,} steps, "
          f"by {report['run']}, checkpoint {report['checkpoint']}")
    print(f"return_mean {report['return_mean']:.3g} (from {low:.3g} to {high:.3g})")
    print(f"learn from them: rookery train r2d3 --env {report['env']} --demonstrations {report['out']}")
    return 0
