"""The `rookery` command.

    rookery train impala --env CartPole-v1
    rookery eval RUN
"""

from __future__ import annotations

import io
import os
import sys
import time

from rookery import signals

BEGAN = time.perf_counter()  # as near to the typed command as this process can tell
TYPE_CHECKING = False
if TYPE_CHECKING:  # until signals are watched, Python answers them with a traceback: what takes time is imported later
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

USAGE = """\
rookery: distributed reinforcement learning

  rookery train SYSTEM --env ID [options]    train an agent      (rookery train ppo --env CartPole-v1 --help)
  rookery resume RUN [options]               continue a run from its newest checkpoint
  rookery eval RUN [--which best|last|N]     play the greedy policy of a run or a checkpoint
  rookery record RUN --out FILE [options]    play it and keep the episodes, as demonstrations
  rookery show SYSTEM [--env ID] [options]   the figure of a system, with counts and bytes
  rookery list systems | matrix | envs | runs
                                             what there is
  rookery bench NAME [options]               measure           (rookery bench --help)

Every command takes --json: one JSON line at the end instead of the display.
First steps:  rookery train impala --env CartPole-v1
"""
BAD_CONFIG, ENV_FAILED, DIVERGED = 2, 3, 4


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and leave with its status: 0 done, 2 bad request, 3 environment, 4 diverged, 5 checkpoint, 6 disk,
    7 collectors or cluster lost, 130 and 143 after SIGINT and SIGTERM."""
    signals.watch()
    open_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None and args[:1] in (["train"], ["resume"]):
        from rookery.run import supervisor

        if supervisor.wanted(args):
            sys.exit(supervisor.supervise())
    try:
        status = command(args)
    finally:
        signals.hold()
    sys.exit(status)


def command(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if args[0] in ("--version", "version"):
        from rookery.run.versions import rookery_version

        print(rookery_version())
        return 0
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train, "resume": resume, "eval": evaluate, "record": record, "show": show, "list": list_things, "bench": bench,
    }  # fmt: skip
    if args[0] not in commands:
        fail(f"there is no command {args[0]!r}.{nearest(args[0], list(commands))} `rookery --help` lists them.")
    import warnings

    warnings.showwarning = lambda message, *_: print(f"rookery: {message}", file=sys.stderr)
    try:
        status = commands[args[0]](args[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `rookery list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except KeyboardInterrupt:  # raised by a bench, which answers signals itself
        status = 130
    except Exception as error:
        status = status_of(error)
        if status == 1:
            raise
        fail(str(error), status)
    return status


def open_streams() -> None:
    """Make standard streams safe to write to: characters that a stream cannot encode become `?`, and one that is closed
    (`>&-`) becomes /dev/null, else the next file to be opened would take its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or a notebook put in its place
            stream.reconfigure(errors="replace")
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or open(0), sys.stdout or open(1, "w"), sys.stderr or open(2, "w")  # noqa: SIM115


def fail(message: str, status: int = BAD_CONFIG) -> NoReturn:
    print(f"rookery: {message}", file=sys.stderr)
    sys.exit(status)


def nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def status_of(error: Exception) -> int:
    """Return the exit status of an error that is the user's to mend; 1 for one that is ours."""
    from rookery import systems
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
    from rookery.run.resuming import config_of

    startup.prepare()
    run = Run.open(args[0], root=peek(args, "--runs") or "runs")
    cfg, flags = options.parse(f"rookery resume {args[0]}", args[1:], config.from_dict(config_of(run)))
    threads.limit(cfg)
    with api.resume(run, cfg, began=BEGAN) as trainer:
        return run_to_the_end(trainer, flags["json"])


def run_to_the_end(trainer: Any, as_json: bool) -> int:
    """Train until done, a signal or an error; whatever happens, record in the run how it ended."""
    import json

    from rookery.envs import EnvironmentFailed
    from rookery.run import supervisor
    from rookery.run.ending import outcome, summary
    from rookery.runtime.interface import WorkerLost
    from rookery.workers.learning.nonfinite import NonFinite

    def leave(error: EnvironmentFailed) -> None:
        """End the process for the watchdog: an environment that hangs cannot be interrupted, so nobody waits for it."""
        trainer.fail(f"{type(error).__name__}: {error}")
        print(f"rookery: {error}\n{trainer.last_good(go_on=True)}", file=sys.stderr, flush=True)
        os._exit(ENV_FAILED)

    trainer.on_hang = leave
    try:
        with signals.Saving(trainer):
            trainer.show(json=as_json)
            supervisor.tell(trainer.run.path)
            for _ in trainer:
                pass
            stopped = signals.received() is not None
            if stopped:
                trainer.say("stopping: what is in flight is learned from and saved; a second signal leaves at once")
            result = trainer.finish("stopped" if stopped else "done", evaluate=not stopped)
    except NonFinite as error:
        trainer.fail(str(error))
        trainer.close()
        fail(f"{error} {trainer.last_good()}", DIVERGED)
    except (WorkerLost, EnvironmentFailed) as error:
        trainer.fail(f"{type(error).__name__}: {error}")
        trainer.close()
        status = status_after_signal() or status_of(error)
        if trainer.config.run.runtime == "ray":
            leave_without_unloading(status)
        fail(f"{error}\n{trainer.last_good(go_on=True)}", status)
    print(json.dumps(result.metrics) if as_json else summary(outcome(trainer, result)))
    return status_after_signal()


def leave_without_unloading(status: int) -> None:
    """End the process at exit without unloading modules: after its cluster was lost, Ray's core may crash there."""
    import atexit

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)


def status_after_signal() -> int:
    """Return 128 + the number of the signal that came; 0 where none did."""
    return 0 if (number := signals.received()) is None else 128 + number


# ------------------------------------------------------------------------------------------------------ parsing


def parse_system(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, dict[str, bool]]:
    """Parse `SYSTEM --env ID [options]`: the resolved config, and the flags that are no part of it."""
    from rookery import systems

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
    """Read the value of a flag before the rest can be parsed."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


# ------------------------------------------------------------------------------------------- eval, show, list, bench


def run_and_options(args: list[str], kind: Any, command: str, usage: str) -> tuple[str, Any]:
    """Parse `COMMAND RUN [options]`: the run as it was typed, and the options, a `kind`."""
    if not args or (args[0].startswith("-") and not {"-h", "--help"} & set(args)):
        fail(f"which run? {command} RUN {usage}: a run's name or path, or the path of a checkpoint")
    import tyro

    from rookery import ranges
    from rookery.run import config, options

    run = "" if args[0].startswith("-") else args[0]
    chosen = tyro.cli(kind, args=args[1:] if run else args, prog=f"{command} {run or 'RUN'}", registry=options.NUMBERS)
    config.refuse([*ranges.problems(chosen)])
    return run, chosen


def evaluate(args: list[str]) -> int:
    import json

    from rookery.run.options import EvalOptions

    run, options = run_and_options(args, EvalOptions, "rookery eval", "[options]")
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


def record(args: list[str]) -> int:
    import json

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
    import json

    cfg, flags = parse_system("show", args, env_default="CartPole-v1")
    from rookery.run.show import describe

    graph, text = describe(cfg)
    print(json.dumps(graph) if flags["json"] else text)
    return 0


LISTS = ("systems", "matrix", "envs", "runs")


def list_things(args: list[str]) -> int:
    import json

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


def bench(args: list[str]) -> int:
    try:
        from rookery_bench import main as bench_main
    except ModuleNotFoundError as error:
        if error.name != "rookery_bench":
            raise
        fail("the benches are not installed: they are the package rookery_bench of the same source tree, where `pip install .` "
             "installs both.")
    signals.unwatch()  # a bench starts programs of its own, and ends them
    return bench_main(args)


if __name__ == "__main__":
    main()
