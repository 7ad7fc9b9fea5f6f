"""How a run stands, as values: the row of now, the numbers of `rookery train --json`, and in the end the Result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rookery.run import checkpoint
from rookery.run.directory import LAST, Run, run_argument
from rookery.run.display import Row
from rookery.run.returns import of_seeds
from rookery.types import Agent


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: str
    status: str  # done, stopped or failed
    reason: str
    metrics: dict[str, Any]  # the last values, under the names of `rookery train --json`
    policy: Any = field(repr=False)
    kept: str = LAST  # which policy that is: the last, or the best where an evaluation ended the run


def num_parameters(agent: Agent) -> int:
    """Count the parameters of the network: what is learned by gradient."""
    import jax

    from rookery import ops

    params = jax.eval_shape(agent.init, ops.random.key(0)).params
    return sum(x.size for x in jax.tree.leaves(params.get("network", params) if isinstance(params, dict) else params))


def last_good(run: Run, *, go_on: bool) -> str:
    """Write a sentence on the checkpoint that is left; go_on: and the command that continues from it."""
    if not run.is_there:
        return f"{run.shown} was removed while it was trained, and its checkpoints with it."
    path = checkpoint.newest(run.checkpoints)[0]
    command = f" Go on with: rookery resume {run_argument(run.name, run.shown)}" if go_on else ""
    return f"Last good checkpoint: {run.shown_as(path)}.{command}" if path else "There was no checkpoint yet."


def row_of(trainer: Any, *, since: tuple[int, int]) -> Row:
    """Report a Trainer's run, for the display and the metrics. since: steps and updates at the row before."""
    progress, recent = trainer.progress, trainer.meter.recent
    total = trainer.config.run.total_steps
    if progress is None:  # nothing was done yet
        return Row(seconds=trainer.seconds, env_steps=0, total_steps=total, starting=True)
    rate = recent.env_steps_per_s
    stalled = progress.env_steps == since[0] or progress.updates == since[1]
    return Row(
        seconds=trainer.seconds,
        env_steps=progress.env_steps,
        total_steps=total,
        trained_steps=progress.trained_steps,
        updates=progress.updates,
        episodes=progress.episodes,
        return_mean=trainer.return_mean,
        eval_return_mean=trainer.eval_return_mean,
        env_steps_per_s=rate,
        updates_per_s=recent.updates_per_s,
        policy_lag_mean=recent.lag_mean,
        learner_idle=recent.learner_idle,
        phases=recent.phases,
        report=progress.report,
        eta_seconds=max(0, total - progress.env_steps) / rate if rate else None,
        starting=trainer.meter.started_at is None,
        waiting=progress.waiting if stalled else None,
    )


def metrics_of(trainer: Any) -> dict[str, Any]:
    """Return the numbers of `rookery train --json`."""
    p, total = trainer.progress, trainer.meter.total
    return {
        "run": trainer.directory,
        "system": trainer.config.system,
        "env": trainer.config.env_name,
        "env_steps": p.env_steps,
        "trained_steps": p.trained_steps,
        "updates": p.updates,
        "episodes": p.episodes,
        "return_mean": trainer.return_mean,
        **of_seeds(p.report),
        "eval_return_mean": trainer.eval_return_mean,
        "eval_return_best": trainer.best.eval_return_mean,
        **{f"eval_return_mean/{name}": mean for name, mean in trainer.eval_of_others.items()},
        "seconds": round(trainer.seconds, 3),
        "env_steps_per_s": round(p.env_steps / trainer.seconds, 1),
        "seconds_to_target": trainer.seconds_to_target,
        "learner_idle": round(total.learner_idle, 4),
        "policy_lag_mean": round(total.lag_mean, 3),
        "env_failures": p.env_failures,
        "parameters": trainer.num_parameters,
    }
