"""The `rookery` command.

    rookery train impala --env CartPole-v1
    rookery eval RUN
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()  # as near to the typed command as this process can tell

import dataclasses  # noqa: E402
import difflib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

from rookery import systems  # noqa: E402

USAGE = """\
rookery: distributed reinforcement learning

  rookery train SYSTEM --env ID [options]    train an agent      (rookery train ppo --env CartPole-v1 --help)
  rookery resume RUN [options]               continue a run from its newest checkpoint
  rookery eval RUN [--which best|last|N]     play the greedy policy of a run or a checkpoint
  rookery record RUN --out FILE [options]    play it and keep the episodes, as demonstrations
  rookery show SYSTEM [--env ID] [options]   the figure of a system, with counts and bytes
  rookery list systems | envs | runs         what there is
  rookery bench NAME [options]               measure           (rookery bench --help)

Every command takes --json: one JSON line at the end instead of the display.
First steps:  rookery train impala --env CartPole-v1
"""
BAD_CONFIG, ENV_FAILED, DIVERGED = 2, 3, 4


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and leaves with its status: 0 done, 2 bad request, 3 environment, 4 diverged, 5 checkpoint, 6 disk,
    7 collectors or cluster lost, 130 and 143 after SIGINT and SIGTERM."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        sys.exit(0)
    if args[0] in ("--version", "version"):
        from rookery.run.versions import rookery_version

        print(rookery_version())
        sys.exit(0)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train, "resume": resume, "eval": evaluate, "record": record, "show": show, "list": list_things, "bench": bench,
    }  # fmt: skip
    if args[0] not in commands:
        fail(f"there is no command {args[0]!r}.{nearest(args[0], list(commands))} `rookery --help` lists them.")
    warnings.showwarning = lambda message, *_: print(f"rookery: {message}", file=sys.stderr)
    try:
        status = commands[args[0]](args[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `rookery list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except KeyboardInterrupt:  # before there was anything to save
        status = 128 + signal.SIGINT
    except Exception as error:
        status = status_of(error)
        if status == 1:
            raise
        fail(str(error), status)
    sys.exit(status)


def fail(message: str, status: int = BAD_CONFIG) -> NoReturn:
    print(f"rookery: {message}", file=sys.stderr)
    sys.exit(status)


def nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def status_of(error: Exception) -> int:
    """The exit status of an error that is the user's to mend; 1 for one that is ours."""
    from rookery.envs import EnvironmentFailed, UnknownEnvironment
    from rookery.spaces import UnsupportedSpace

    if isinstance(error, (UnknownEnvironment, UnsupportedSpace, systems.UnknownSystem)):
        return BAD_CONFIG
    if isinstance(error, EnvironmentFailed):
        return ENV_FAILED
    return getattr(error, "exit_code", 1)


# -------------------------------------------------------------------------------------------------------- train


def train(args: list[str]) -> int:
    cfg, flags = parse_system("train", args)
    from rookery.run import threads
    from rookery.run.trainer import Trainer

    threads.limit(cfg)
    with Trainer.from_config(cfg, began=BEGAN) as trainer:
        return run_to_the_end(trainer, flags["json"])


def resume(args: list[str]) -> int:
    if not args or args[0].startswith("-"):
        usage = "rookery resume RUN [options], with a run's name or path, or the path of one of its checkpoints"
        if not {"-h", "--help"} & set(args):
            fail(f"which run? {usage} (rookery list runs shows them)")
        print(f"usage: {usage}\n\nrookery resume RUN --help lists the options with the values of that run.")
        return 0
    from rookery.run import api, config, options, startup, threads
    from rookery.run.directory import Run

    startup.prepare()
    run = Run.open(args[0], root=peek(args, "--runs") or "runs")
    cfg, flags = options.parse(f"rookery resume {args[0]}", args[1:], config.from_dict(run.config["config"]))
    threads.limit(cfg)
    with api.resume(run, cfg, began=BEGAN) as trainer:
        return run_to_the_end(trainer, flags["json"])


def run_to_the_end(trainer: Any, as_json: bool) -> int:
    """Trains until done, a signal or an error; whatever happens, the run says how it ended."""
    from rookery.run.ending import outcome, summary
    from rookery.runtime.interface import WorkerLost
    from rookery.workers.nonfinite import NonFinite

    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received:  # a second one means it
            os._exit(128 + number)
        received.append(number)
        trainer.stopped_because = trainer.stopped_because or signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        trainer.show(json=as_json)
        for _ in trainer:
            pass
        if received:
            trainer.say("stopping: what is in flight is learned from and saved; a second signal leaves at once")
        result = trainer.finish("stopped" if received else "done", evaluate=not received)
    except NonFinite as error:
        trainer.fail(str(error))
        trainer.close()
        fail(f"{error} {trainer.last_good()}", DIVERGED)
    except WorkerLost as error:
        trainer.fail(f"{type(error).__name__}: {error}")
        trainer.close()
        fail(f"{error}\n{trainer.last_good(go_on=True)}", error.exit_code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print(json.dumps(result.metrics) if as_json else summary(outcome(trainer, result)))
    return 128 + received[0] if received else 0


# ------------------------------------------------------------------------------------------------------ parsing


def parse_system(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, dict[str, bool]]:
    """SYSTEM --env ID [options] -> the resolved config, and the flags that are no part of it."""
    if not args or args[0].startswith("-"):
        names = "\n".join(f"  {s.name:<8} {s.summary} ({s.paper})" for s in systems.SYSTEMS.values())
        asked = bool({"-h", "--help"} & set(args))
        text = f"usage: rookery {command} SYSTEM --env ID [options]\n\nsystems:\n{names}\n\n"
        text += f"rookery {command} SYSTEM --env ID --help lists the options with their values for that environment."
        print(text, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else BAD_CONFIG)
    systems.system(args[0])
    env = peek(args, "--env") or env_default
    if env is None and not {"-h", "--help"} & set(args):
        fail(f"which environment? rookery {command} {args[0]} --env ID (rookery list envs shows some)")
    topology = peek(args, "--topology")
    other = systems.topology_named(topology)() if topology is not None else None
    from rookery.run import config, options, startup

    startup.prepare()
    base = config.resolve(args[0], env=env or "CartPole-v1", topology=other)
    return options.parse(f"rookery {command} {args[0]}", args[1:], base)


def peek(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag, before the rest can be parsed."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


# ------------------------------------------------------------------------------------------- eval, show, list, bench


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Plays the greedy policy of a run, or of a checkpoint, on seeded environments of its own."""

    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: int = 20
    """One in each of so many environments."""
    seed: int = 1
    """Of the environments."""
    runs: str = "runs"
    """The directory that holds the runs."""
    json: bool = False
    """One JSON line instead of the text."""


def run_and_options(args: list[str], kind: Any, command: str, usage: str) -> tuple[str, Any]:
    """Of `COMMAND RUN [options]`."""
    if not args or (args[0].startswith("-") and not {"-h", "--help"} & set(args)):
        fail(f"which run? {command} RUN {usage}: a run's name or path, or the path of a checkpoint")
    import tyro

    run = "" if args[0].startswith("-") else args[0]
    return run, tyro.cli(kind, args=args[1:] if run else args, prog=f"{command} {run or 'RUN'}")


def evaluate(args: list[str]) -> int:
    from rookery.run.config import ConfigError

    run, options = run_and_options(args, EvalOptions, "rookery eval", "[options]")
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: it must be at least 1")
    from rookery.run.api import evaluate_run

    report = evaluate_run(run, which=options.which, episodes=options.episodes, seed=options.seed, root=options.runs)
    if options.json:
        print(json.dumps(report))
        return 0
    low, high = min(report["returns"]), max(report["returns"])
    print(f"{report['run']}  {report['system']} on {report['env']}, checkpoint {report['checkpoint']}: "
          f"{report['env_steps']:,} steps trained")
    print(f"eval_return_mean {report['eval_return_mean']:.1f} over {report['episodes']} greedy episodes "
          f"(from {low:.1f} to {high:.1f}, mean length {report['length_mean']:.0f}, {report['seconds']:.1f} s)")
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Plays the greedy policy of a run, or of a checkpoint, and writes the episodes for `--demonstrations FILE`."""

    out: str
    """The directory that is written."""
    which: str | None = None
    """best (by evaluation), last, or the updates of a checkpoint; by default best if an evaluation ended the run, else last."""
    episodes: int = 10
    """One in each of so many environments."""
    best: int | None = None
    """Keep only so many of them, those with the highest returns."""
    seed: int = 1
    """Of the environments."""
    runs: str = "runs"
    """The directory that holds the runs."""
    json: bool = False
    """One JSON line instead of the text."""


def record(args: list[str]) -> int:
    from rookery.run.config import ConfigError

    run, options = run_and_options(args, RecordOptions, "rookery record", "--out FILE [options]")
    if options.episodes < 1 or (options.best is not None and not 1 <= options.best <= options.episodes):
        raise ConfigError(
            f"--episodes {options.episodes} --best {options.best}: keep at least 1, and at most as many as there are"
        )
    from rookery.run.demonstrations import record as record_run

    report = record_run(
        run, which=options.which, episodes=options.episodes, out=options.out, best=options.best, seed=options.seed,
        root=options.runs,
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


def show(args: list[str]) -> int:
    cfg, flags = parse_system("show", args, env_default="CartPole-v1")
    from rookery.run.show import describe

    graph, text = describe(cfg)
    print(json.dumps(graph) if flags["json"] else text)
    return 0


LISTS = ("systems", "envs", "runs")


def list_things(args: list[str]) -> int:
    from rookery.run import listing

    root, rest = peek(args, "--runs") or "runs", [word for word in args if word != "--json"]
    what = rest.pop(0) if rest else ""
    if what in ("-h", "--help"):
        print("usage: rookery list systems | envs | runs [--runs DIRECTORY] [--json]")
        return 0
    if what not in LISTS:
        fail(f"list what? rookery list systems | envs | runs.{nearest(what, LISTS)}")
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
            print("\nalgorithm × topology, each on local and on ray (-: refused, with the reason):\n")
            print(listing.table(listing.matrix(), width=listing.terminal_width()))
    return 0


def bench(args: list[str]) -> int:
    from rookery.bench import main as bench_main

    return bench_main(args)


if __name__ == "__main__":
    main()
