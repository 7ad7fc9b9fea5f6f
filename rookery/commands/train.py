"""`rookery train` and `rookery resume`: train to the end, and leave with the status that says how it ended."""

from __future__ import annotations

import os
import sys
from typing import Any

from rookery import references, signals
from rookery.commands import BEGAN
from rookery.commands.parsing import fail, own_parts, parse_system, peek
from rookery.commands.status import DIVERGED, ENV_FAILED, status_of


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
    from rookery.run import api, options, startup, threads
    from rookery.run.directory import Run
    from rookery.run.resuming import known_config

    startup.prepare()
    run = Run.open(args[0], root=peek(args, "--runs") or "runs")
    given = own_parts(args) | {"env": peek(args, "--env")}
    if not references.is_reference(given.get("topology")):  # one of Rookery's is refused below, unless it is the run's
        given.pop("topology", None)
    base = known_config(run, trust="--trust" in args, **given)
    cfg, flags = options.parse(f"rookery resume {args[0]}", args[1:], base, resumes=True)
    threads.limit(cfg)
    with api.continued(run, cfg, began=BEGAN) as trainer:
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
