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
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Annotated, Any  # noqa: E402

from rookery import systems  # noqa: E402

USAGE = """\
rookery: distributed reinforcement learning

  rookery train SYSTEM --env ID [options]    train an agent      (rookery train ppo --env CartPole-v1 --help)
  rookery resume RUN [options]               continue a run from its newest checkpoint
  rookery eval RUN [--episodes N]            play the greedy policy of a run or a checkpoint
  rookery show SYSTEM [--env ID] [options]   the figure of a system, with counts and bytes
  rookery list systems | envs | runs         what there is
  rookery bench NAME [options]               measure           (rookery bench --help)

Every command takes --json: one JSON line at the end instead of the display.
First steps:  rookery train impala --env CartPole-v1
"""
BAD_CONFIG, ENV_FAILED, DIVERGED = 2, 3, 4


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and leaves with its status: 0 done, 2 bad request, 3 environment, 4 diverged, 5 checkpoint, 6 disk."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        sys.exit(0)
    if args[0] in ("--version", "version"):
        from importlib.metadata import version

        print(version("rookery"))
        sys.exit(0)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train, "resume": resume, "eval": evaluate, "show": show, "list": list_things, "bench": bench,
    }  # fmt: skip
    if args[0] not in commands:
        fail(f"there is no command {args[0]!r}.{nearest(args[0], list(commands))} `rookery --help` lists them.")
    try:
        status = commands[args[0]](args[1:])
    except BrokenPipeError:  # `rookery list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except Exception as error:
        status = status_of(error)
        if status == 1:
            raise
        fail(str(error), status)
    sys.stdout.flush()
    sys.exit(status)


def fail(message: str, status: int = BAD_CONFIG) -> None:
    print(f"rookery: {message}", file=sys.stderr)
    sys.exit(status)


def nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def status_of(error: Exception) -> int:
    """The exit status of an error that is the user's to mend; 1 for one that is ours."""
    from rookery.envs import EnvironmentFailed, UnknownEnvironment
    from rookery.run.config import ConfigError
    from rookery.spaces import UnsupportedSpace

    if isinstance(error, (ConfigError, UnknownEnvironment, UnsupportedSpace, systems.UnknownSystem)):
        return BAD_CONFIG
    if isinstance(error, EnvironmentFailed):
        return ENV_FAILED
    return getattr(error, "exit_code", 1)


# -------------------------------------------------------------------------------------------------------- train


def train(args: list[str]) -> int:
    cfg, flags = parse_system("train", args)
    from rookery.run.trainer import Trainer

    with Trainer.from_config(cfg, began=BEGAN) as trainer:
        return run_to_the_end(trainer, flags["json"])


def resume(args: list[str]) -> int:
    from rookery.run import config
    from rookery.run.directory import Run

    if not args or args[0].startswith("-"):
        fail("which run? rookery resume RUN (rookery list runs shows them)")
    run = Run.open(args[0], root=peek(args, "--runs") or "runs")
    saved = config.from_dict(run.config["config"])
    cfg, flags = parse_options("resume", args[1:], saved)
    from rookery.run.trainer import Trainer

    with Trainer.from_config(cfg, began=BEGAN) as trainer:
        trainer.continue_run(run)
        trainer.restore(run.checkpoint or run.path)
        return run_to_the_end(trainer, flags["json"])


def run_to_the_end(trainer: Any, as_json: bool) -> int:
    """Trains until done, a signal or an error; whatever happens, the run says how it ended."""
    from rookery.run.ending import summary
    from rookery.workers.learner import NonFinite

    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received:  # a second one means it
            os._exit(128 + number)
        received.append(number)
        trainer.stopped_because = trainer.stopped_because or signal.Signals(number).name

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    trainer.show(json=as_json)
    try:
        for _ in trainer:
            pass
        result = trainer.finish("stopped" if received else "done", evaluate=not received)
    except NonFinite as error:
        trainer.fail(str(error))
        fail(f"{error} {trainer.last_good()}", DIVERGED)
    except Exception as error:
        trainer.fail(f"{type(error).__name__}: {error}")
        raise
    if as_json:
        print(json.dumps(result.metrics))
    else:
        print(summary(trainer.outcome(result)))
    return 128 + received[0] if received else 0


# ------------------------------------------------------------------------------------------------------ parsing


def parse_system(command: str, args: list[str], env_default: str | None = None) -> tuple[Any, dict[str, Any]]:
    """SYSTEM --env ID [options] -> the resolved config, and the flags that are no part of it."""
    if not args or args[0].startswith("-"):
        names = "\n".join(f"  {s.name:<8} {s.summary} ({s.paper})" for s in systems.SYSTEMS.values())
        print(f"usage: rookery {command} SYSTEM --env ID [options]\n\nsystems:\n{names}\n\n"
              f"rookery {command} SYSTEM --env ID --help lists the options with their values for that environment.")
        sys.exit(0 if args else BAD_CONFIG)
    systems.system(args[0])
    env = peek(args, "--env") or env_default
    if env is None and not {"-h", "--help"} & set(args):
        fail(f"which environment? rookery {command} {args[0]} --env ID (rookery list envs shows some)")
    from rookery.run import config, startup

    startup.prepare()
    return parse_options(command, args[1:], config.resolve(args[0], env=env or "CartPole-v1"))


def parse_options(command: str, args: list[str], base: Any) -> tuple[Any, dict[str, Any]]:
    """The options on top of a resolved config, by tyro: flat names, nearest-name suggestions, exit 2 on a mistake."""
    import tyro

    from rookery.run.config import ConfigError

    flat = tyro.conf.arg(name="")
    fields: list[Any] = [
        ("env", str, dataclasses.field(default=base.env_name)),
        ("env_options", tuple[str, ...], dataclasses.field(default=())),
        ("json", bool, dataclasses.field(default=False)),
    ]
    for part in ("algorithm", "topology", "run"):
        value = getattr(base, part)
        fields.append((part, Annotated[type(value), flat], dataclasses.field(default=value)))
    options = dataclasses.make_dataclass("Options", fields, frozen=True, kw_only=True)
    options.__doc__ = f"{base.system} on {base.env_name}: {systems.SYSTEMS[base.system].summary}."
    chosen: Any = tyro.cli(options, args=args, prog=f"rookery {command} {base.system}")
    env_options = dict(base.env_options)
    for item in chosen.env_options:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--env-options takes name=value, not {item!r}")
        env_options[key.replace("-", "_")] = _value(value)
    cfg = dataclasses.replace(
        base, env=chosen.env, env_options=env_options, algorithm=chosen.algorithm, topology=chosen.topology, run=chosen.run
    )
    return cfg, {"json": chosen.json}


def peek(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag, before the rest can be parsed."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# ------------------------------------------------------------------------------------------- eval, show, list, bench


def evaluate(args: list[str]) -> int:
    import tyro

    @dataclasses.dataclass(frozen=True)
    class Eval:
        """Plays the greedy policy of a run, or of a checkpoint, on seeded environments of its own."""

        run: tyro.conf.Positional[str]
        """A run's name or path, or the path of a checkpoint."""
        episodes: int = 20
        seed: int = 1
        runs: str = "runs"
        json: bool = False

    options = tyro.cli(Eval, args=args, prog="rookery eval")
    from rookery.run.api import evaluate_run

    report = evaluate_run(options.run, episodes=options.episodes, seed=options.seed, root=options.runs)
    if options.json:
        print(json.dumps(report))
    else:
        low, high = min(report["returns"]), max(report["returns"])
        print(f"{report['run']}  {report['env']}")
        print(f"eval_return_mean {report['eval_return_mean']:.1f} over {report['episodes']} greedy episodes "
              f"(from {low:.1f} to {high:.1f}, mean length {report['length_mean']:.0f}, {report['seconds']:.1f} s)")
    return 0


def show(args: list[str]) -> int:
    cfg, flags = parse_system("show", args, env_default="CartPole-v1")
    from rookery.run.show import describe

    graph, text = describe(cfg)
    print(json.dumps(graph) if flags["json"] else text)
    return 0


def list_things(args: list[str]) -> int:
    from rookery.run import listing

    as_json = "--json" in args
    words = [word for word in args if not word.startswith("--")]
    what = words[0] if words else ""
    if what not in ("systems", "envs", "runs"):
        fail(f"list what? rookery list systems | envs | runs.{nearest(what, ['systems', 'envs', 'runs'])}")
    rows = getattr(listing, what)(peek(args, "--runs") or "runs") if what == "runs" else getattr(listing, what)()
    print(json.dumps(rows) if as_json else listing.table(rows))
    return 0


def bench(args: list[str]) -> int:
    from rookery.bench import main as bench_main

    return bench_main(args)


if __name__ == "__main__":
    main()
