"""`rookery bench`: every figure that is said of Rookery comes from a command here. Nothing heavy is imported.

A bench is a module with `parse(args)`, which gives its options (a frozen dataclass, by tyro), and `measure(options)`,
which gives its records (see record.py).
"""

from __future__ import annotations

import difflib
import importlib
import json
import signal
import sys

BENCHES = {
    "cartpole": "CartPole-v1 PPO: steps/s and time to a return of 475, beside other libraries",
    "dqn": "CartPole-v1 DQN: steps/s at stable-baselines3's update ratio, and time to a return of 475",
    "continuous": "HalfCheetah-v5 by SAC, TD3, DDPG: steps/s, roofline and time to a return, beside SBX and others",
    "pong": "ALE Pong with an asynchronous actor-learner: steady steps/s, beside other libraries",
    "roofline": "environment, inference, table and learner each alone, and how near the whole comes to their limit",
    "envs": "steps/s of an environment by each way to run it, beside Gymnasium's and EnvPool's",
    "torn": "worker processes of environments killed at random: no torn step, none counted twice",
    "kills": "collectors and environments killed at random on ray: the score, and a ledger of all steps",
    "scaling": "steps/s over collectors, runtimes, devices and learners; sums over them; bytes of each edge",
    "runtimes": "the same run on local and on ray: returns, steps/s, and the rate of large rollouts",
    "memory": "growth of memory over a long run, and what it leaves behind",
    "replay": "items per second into and out of a table, beside the memory that they move through",
    "central": "central beside local inference: steps/s at the same batch, and where the time goes",
    "updaters": "QT-Opt's collectors, logs, updaters and trainer: what each rate depends on, and what it does not",
    "returns": "two systems at equal steps: greedy returns over seeds, with intervals",
    "contrastive": "CURL from pixels: with and without its loss at equal steps, one learner and two at equal wall time",
    "zoo": "returns at equal steps beside stable-baselines3 and rejax: IQM over seeds",
    "evolution": "episodes/s of a population evaluated as one batch, beside one episode at a time",
    "compression": "bytes that codecs save on stored frames, and what reading them then costs",
    "learning": "returns of many tasks and seeds against the bar of each task",
    "anakin": "PPO and CartPole compiled into one program: steps/s beside rejax, and with thousands",
    "report": "the newest records of benchmarks/ as Markdown tables",
}
USAGES = {"roofline": " SYSTEM --env ID"}  # what stands before the options
USAGE = (
    "rookery bench: measure\n"
    + "\n".join(f"  rookery bench {name:<12} {summary}" for name, summary in BENCHES.items())
    + """

rookery bench NAME --help lists the options; --json and --out FILE (append the record) are everywhere. Leave the machine
alone while one runs: the load average before it is part of the record. Progress goes to stderr.
"""
)


def main(args: list[str]) -> int:
    """Run a bench; 0 when every measurement worked, whatever it showed, 1 when one failed, 2 for a bad request."""
    if not args or args[0] in ("-h", "--help", "help"):
        from rookery.run.two_columns import fitted

        print(fitted(USAGE), end="")
        return 0
    if args[0] not in BENCHES:
        near = difflib.get_close_matches(args[0], BENCHES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"rookery: there is no bench {args[0]!r}.{hint} `rookery bench --help` lists them.", file=sys.stderr)
        return 2
    module = importlib.import_module(f"rookery_bench.{args[0]}")
    if {"-h", "--help"} & set(args):
        from rookery.run.help_page import of_kind

        print(of_kind(f"rookery bench {args[0]}{USAGES.get(args[0], '')}", getattr(module, "Bench", module.Options)))
        return 0
    if args[0] == "report":
        return module.main(args[1:])
    from rookery_bench import process, record

    options = module.parse(args[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended
    try:
        records = module.measure(options)
    finally:
        process.end_all()
    if options.out:
        record.append(options.out, records)
    result = record.merge(records)
    print(json.dumps(result.to_dict()) if options.json else record.text(result))
    return 1 if result.failures else 0
