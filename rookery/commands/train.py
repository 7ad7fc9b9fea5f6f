"""`rookery train` and `rookery resume`: train to the end, and leave with the status that says how it ended."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rookery import references, signals
from rookery.commands import BEGAN
from rookery.commands.parsing import fail, own_parts, parse_system, peek
from rookery.commands.status import DIVERGED, ENV_FAILED, status_of


def train(args: list[str]) -> int:
    cfg, flags = parse_system("train", args)
    if flags["seeds"] is not None or flags["jobs"] is not None:
        from rookery.commands import seeds

        return seeds.train(cfg, flags)
    return train_one(cfg, auto=flags["resume"] == "auto", as_json=flags["json"])


def train_one(cfg: Any, *, auto: bool, as_json: bool, began: float = BEGAN) -> int:
    """Train one run; auto: go on with it where it stands, or say its result where it is done."""
    from rookery.run import again, threads

    run = again.find(cfg) if auto else None
    if run is not None and (result := again.result_of(run, cfg)) is not None:
        print(json.dumps(result) if as_json else already_done(run, result))
        return 0
    threads.limit(cfg)
    with again.trainer(run, cfg, began=began) as trainer:
        return run_to_the_end(trainer, as_json)


def already_done(run: Any, result: dict[str, Any]) -> str:
    from rookery.run.directory import run_argument

    values = {name: result.get(name) for name in ("env_steps", "return_mean", "eval_return_mean")}
    told = "  ".join(f"{name} {value:,.6g}" for name, value in values.items() if value is not None)
    evaluate = f"rookery eval {run_argument(run.name, run.shown)}"
    return f"{run.shown} is done: {result.get('reason')}\n  {told}\n  evaluate   {evaluate}"


def resume(args: list[str]) -> int:
    if not args or args[0].startswith("-"):
        usage = "rookery resume RUN [options], with a run's name or path, or the path of one of its checkpoints"
        if not {"-h", "--help"} & set(args):
            fail(f"which run? {usage} (rookery list runs shows them)")
        print(f"usage: {usage}\n\nrookery resume RUN --help lists the options with the values of that run.")
        return 0
    from rookery.run import flags
    from rookery.run.directory import GROUP, Run
    from rookery.run.resuming import config_of, known_config

    root, explained = peek(args, "--runs") or "runs", bool({"-h", "--help"} & set(args))
    if any((place / GROUP).is_file() for place in (Path(root, args[0]), Path(args[0]))):
        from rookery.commands import seeds as several
        from rookery.run import seeds

        if (group := seeds.Group.open(args[0], root)) is not None:
            return several.resume(group, args[1:])
    run = Run.open(args[0], root=root)
    if explained:
        from rookery.run import help_page

        if (page := help_page.of_run(f"rookery resume {args[0]}", config_of(run), flags.ResumeFlags)) is not None:
            print(page)
            return 0
    from rookery.run import api, options, startup, threads  # none of them imports jax, whose flags `prepare` sets

    startup.prepare()
    given = own_parts(args) | {"env": peek(args, "--env")}
    if not references.is_reference(given.get("topology")):  # one of Rookery's is refused below, unless it is the run's
        given.pop("topology", None)
    base = known_config(run, trust="--trust" in args, **given)
    cfg, typed = options.parse(f"rookery resume {args[0]}", args[1:], base, flags.ResumeFlags)
    threads.limit(cfg)
    with api.continued(run, cfg, began=BEGAN) as trainer:
        return run_to_the_end(trainer, typed["json"])


def run_to_the_end(trainer: Any, as_json: bool) -> int:
    """Train until done, a signal or an error; whatever happens, record in the run how it ended."""
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
